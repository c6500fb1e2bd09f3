"""Other trainers' own parsers, on a machine without a GPU: one file each.

TITLE, NEEDS        its name; how to have it here
CHECKS, UNCHECKED   what an acceptance proves, and what it doesn't
prepare()           imports it, with stand-ins for what only a GPU has; its version
refusal(folder, emitted, settings)     the parser's words, "" where it accepts
"""

"""Flight recorder dumps: which rank a hang began with.

dump.py     one rank's file
hang.py     who waits for whom, the root, and the JSON's keys
"""

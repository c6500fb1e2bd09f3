"""Numbers as text, files written atomically, JSON lines, and reading of untrusted files."""

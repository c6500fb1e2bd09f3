"""Flight recorder dumps: which rank a hang began with (hang.py)."""

"""Flight recorder dumps: which rank a hang began with.

dump.py     one rank's file
hang.py     who waits for whom, and the root
answer.py   the JSON's keys
"""

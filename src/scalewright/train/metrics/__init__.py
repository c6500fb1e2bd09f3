"""A run's records and reports, on rank 0.

run_files.py     opens the folder, its files, the console and the trackers
record.py        a row a step, events
│                readback.py: numbers leave a GPU one step late; callbacks.py: the caller's own
expectation.py   what a step should take, beside what it took
"""

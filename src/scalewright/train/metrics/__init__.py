"""A run's records and reports, on rank 0.

run_files.py     opens the folder, its files, the console and the trackers; the caller's callbacks
record.py        a row a step, events
measured.py      what ranks held and sent; numbers leave a GPU one step late
expectation.py   what a step should take, beside what it took
"""

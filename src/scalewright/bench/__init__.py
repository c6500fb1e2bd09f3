"""The speed that this hardware really reaches: benchmarks, a cluster profile made of them, its calibration.

collectives.py   messages between processes: checked, start and rate    pairs.py     every pair of processes
device.py        matrix products, memory, a step's operators beside     storage.py   files of a checkpoint's size
profile.py       all as a cluster file for `plan`                       correct.py   that file corrected by runs
step.py          a real training step

torch is imported only while a benchmark runs.
"""

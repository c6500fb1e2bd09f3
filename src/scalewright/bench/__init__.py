"""The speed that this hardware really reaches: benchmarks, a cluster profile made of them, its calibration.

collectives.py   messages between processes, checked   device.py    matrix products, passes over memory
message_fit.py   start and rate of a message           storage.py   files of a checkpoint's size
profile.py       all as a cluster file for `plan`      correct.py   that file corrected by runs
kernels.py       a step's operators beside the roofs   step.py      a real training step

torch is imported only while a benchmark runs.
"""

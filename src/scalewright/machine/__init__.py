"""This computer: its devices as a cluster, its rates as measured, and what is set up badly.

local.py    the cluster `local` (names.py, processor.py)     load.py    what others keep busy
probe.py    matmul rates, copies, bf16                       timings.py kernels.py, ranks.py: curves of a CPU
doctor.py   findings.py, checks/: a file for each part of a machine
"""

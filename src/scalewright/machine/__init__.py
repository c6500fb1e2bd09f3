"""This computer: its devices as a cluster, its rates as measured, and what is set up badly.

local.py    the cluster `local` (processor.py)               load.py    what others keep busy
probe.py    quick rates: matmuls, copies, bf16               kernels.py times every kernel, ranks.py messages;
                                                             timings.py keeps the curves
doctor.py   findings.py, checks/: a file for each part of a machine
"""

"""Ten minutes on a new cluster before a run is given to it: is every part of it as fast and as right as it should be?

check.py     one check's result, and all of them       ranks.py     the processes, and commands in each of them
hardware.py  devices, pairs and messages measured      accept.py    the checks in order
training.py  loss against the control, kill and resume
"""

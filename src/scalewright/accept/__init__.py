"""Ten minutes on a new cluster before a run is given to it: is every part as fast and as right as it should?

accept.py    the checks in order                    ranks.py     the processes, and commands in each of them
hardware.py  devices, pairs and messages measured   check.py     a check's result, and all of them
training.py  loss against the control, kill and resume
"""

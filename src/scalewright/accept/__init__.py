"""Ten minutes on a new cluster before a run is given to it: is every part as fast and as right as it should?

accept.py the checks in order; hardware.py devices, pairs and messages; training.py loss, kill and resume, and the ranks
"""

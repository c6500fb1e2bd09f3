"""`diagnose --against`: what became slower than another run, a plan or an earlier answer, by how much, where.

compare.py    which two are alike enough      traces.py   parts of a step, kernels, groups
times.py      is it more than noise           losses.py   does the loss leave the other's
planned.py    measured beside planned
"""

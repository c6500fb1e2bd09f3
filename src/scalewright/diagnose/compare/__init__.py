"""`diagnose --against`: what became slower than another run, a plan or an earlier answer, by how much, where.

compare.py   which two are alike enough; parts of a step, kernels, groups; measured beside planned
noise.py     is a step's time, or a loss, beyond noise
"""

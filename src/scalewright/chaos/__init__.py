"""A run under faults: does it come back by itself, and to the same weights?

faults.py     what can happen to a run, how it is done, and what this machine can't do
job.py        one command that trains: its processes, its progress, its end
chaos.py      an undisturbed run, then others under faults; how each recovered, and whether the weights are equal
injected/     what is done inside a rank: out of memory, a number that goes bad
"""

"""The planner against measured runs: how far off it is, and the constants fitted to what was measured.

runs.py       the bundled tables, as requests with what was measured
score.py      errors by source            rank.py       is the fastest layout found
fit.py        the constants, again        profile.py    those of one's own machine, from a few runs
baselines.py  what is to be beaten
"""

"""The planner compared with measured runs: its errors, and the fit of its constants.

runs.py       the bundled tables: requests and measurements
score.py      errors by source            rank.py       ranking of layouts
fit.py        fits the constants          calibrate.py  fits them to one's own machine, from a few runs
baselines.py  simple predictions to beat  facts.py      a measured run as evidence lists it
"""

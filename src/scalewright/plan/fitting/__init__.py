"""The planner compared with measured runs: its errors, and the fit of its constants.

runs.py   the bundled tables: requests and measurements   fit.py        fits the constants
score.py  errors by source, beside simple baselines,      calibrate.py  fits them to one's own machine
          and the ranking of layouts
"""

"""The planner: time and memory of a layout, from its operators, schedule and topology.

    request.py, chips.py, frameworks.py   the inputs: layout, device and links, the trainer's kernels
    constants.py + data/constants.yaml    numbers that no data sheet has, fitted or published
    cost/       the formulas: seconds and bytes           rows/      rows of tables as requests
    predict.py, stages.py, explain.py     one layout's prediction, its pipeline stages, the reasons
    search/     the best of all layouts                   measured/  errors on measured runs; the fit
    ask.py, answer.py                     from the user's arguments to the whole answer

The functions take arrays: a single layout is a table of one row.
"""

from scalewright.packages import make_callable

make_callable(__name__, "scalewright.api")

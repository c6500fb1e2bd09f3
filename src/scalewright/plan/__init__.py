"""How much, how fast, does it fit: a layout's cost from the operators, the schedule and the topology.

    request.py, chips.py, frameworks.py   what is asked: a layout of a run, whose device, whose kernels
    constants.py + data/constants.yaml    every number that no data sheet gives, fitted or read
    cost/       the formulas: seconds and bytes           rows/      rows of tables as requests
    predict.py, stages.py, explain.py     one layout's answer, each of its pipeline ranks, the reasons
    search/     the best of all layouts                   measured/  against what was measured; the fit
    ask.py, answer.py                     a question as users put it, and the whole answer

One row of a table and a single layout go through the same functions: they are written over arrays.
"""

from scalewright.packages import make_callable

make_callable(__name__, "scalewright.api")

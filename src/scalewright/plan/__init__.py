"""How much, how fast, does it fit: a layout's cost from the operators, the schedule and the topology.

    rows.py, request.py    what is asked            work.py        the operators of a rank, as arrays
    chips.py, frameworks.py   whose device, whose kernels          kernels.py     seconds of each
    collectives.py, exchange.py   seconds on the links             timeline.py    one step of the pipeline
    memory.py, band.py     bytes, and how sure      predict.py     the answer
    score.py, fit.py       against what was measured; constants.py + data/constants.yaml: every number that
    was fitted
    analytic/              textbooks' closed forms, to check a plan by hand (docs/rules-of-thumb.md)

One row of a table and a single layout go through the same functions: they are written over arrays.
"""

from scalewright.packages import make_callable

make_callable(__name__, "scalewright.api")

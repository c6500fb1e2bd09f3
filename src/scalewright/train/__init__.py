"""Train: the loop, the step, the optimizer. `run.train` is the entry, by way of `scalewright.api.train`."""

from scalewright.packages import make_callable

make_callable(__name__, "scalewright.api")

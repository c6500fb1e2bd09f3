"""Train: the loop, the step, the optimizer. `run.train` is the door."""

from scalewright.packages import make_callable

make_callable(__name__, "scalewright.train.run")

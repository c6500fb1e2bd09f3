"""Train: the loop, the step, the optimizer. `run.train` is the door."""

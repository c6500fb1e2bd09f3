"""Trains a run: the loop, the step, the optimizer. `scalewright.api.train` is the entry, by way of run.py.

run.py       reads and resolves (resolve.py), starts ranks (start.py), returns the end    sweep.py   many runs
worker.py    one rank: build.py and network.py make session.py, which loop.py takes (signals.py, garbage.py)
loop.py      batches, steps, validation, saves       step.py     one optimizer step       update.py   or none
clipping.py  its gradients, by the norm of all ranks' together
batches.py   the samples of a rank                   horizon.py, lr.py   how far a run is; its learning rate
loss.py      own_loss.py, reduction.py    optimizer.py   elementwise.py    columns.py   a step's report
diloco.py    islands and their outer optimizer
muon.py, packed_adamw.py (rounding.py, quantize.py)   optimizers of our own    precision.py, profile.py
balance.py, capacity.py   of experts    routes.py   their choices, for parity
guard/ bad numbers    hangs/ watchdog    memory/ what fits    metrics/ rows and events    state/ what is saved
"""

from scalewright.packages import make_callable

make_callable(__name__, "scalewright.api")

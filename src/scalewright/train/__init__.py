"""Trains a run: the loop, the step, the optimizer. `scalewright.api.train` is the entry, by way of run.py.

run.py       reads and resolves (resolve.py), starts ranks (start.py), returns the end    sweep.py   many runs
elastic.py   other worlds, and local ranks that are started again
regroup.py   ranks that go on in their processes when others have died; replicas.py: which
worker.py    one rank: build.py, network.py and engine.py make session.py, which loop.py takes (signals.py)
loop.py      batches, steps, validation, saves       step.py      one optimizer step      clipping.py   its gradients
batches.py   the samples of a rank                   learning_rate.py   and how far a run is
loss.py      diloco.py   islands    initial.py   what `init` brings    columns.py   a step's report    precision.py
optimizer.py (elementwise.py), muon.py, packed_adamw.py (rounding.py)    profile.py    compare_nodes.py
balance.py, capacity.py   of experts    routes.py   their choices, for parity
guard/ bad numbers    hangs/ watchdog    memory/ what fits    metrics/ rows and events    state/ what is saved
"""

from scalewright.packages import make_callable

make_callable(__name__, "scalewright.api")

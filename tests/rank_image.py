"""What ranks of tests are forked from: imported once by the fork server (launch/begin.py), not by each rank.

Besides the trainer that is pytest, which each file of tests imports, and the helpers that ranks run. A rank
is a process of its own, in the state after these imports, and ends with its world: nothing of a test is left
for the next one, whatever it changed.
"""

from __future__ import annotations

import os
import sys
from functools import cache, partial
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent
PATHS = [str(TESTS), str(TESTS.parent)]
NAME = Path(__file__).stem
PROBE_S = 0.03  # a rate that no test looks at: a run's peak is timed for 0.3 s otherwise


def shorten_starts() -> None:
    """The first run that starts in this process times its peak for a moment, later ones take that; none counts what is
    frozen (conftest.py)."""
    precision: Any = sys.modules.get("scalewright.train.precision")
    if precision is not None:
        precision.matmul_rate = cache(partial(precision.matmul_rate, seconds=PROBE_S))
    loop: Any = sys.modules.get("scalewright.train.loop")
    if loop is not None:
        loop.is_forked = lambda: True


def fill() -> None:
    """Imports, in the fork server."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if paths[: len(PATHS)] == PATHS:  # which conftest.py put there, for this import
        os.environ["PYTHONPATH"] = os.pathsep.join(paths[len(PATHS) :])
    import numpy.ma
    import psutil
    import pytest
    import tests.worlds
    import torch._dynamo

    import layout_steps
    import runs
    import worlds
    from scalewright.track.environment import environment
    from scalewright.train import precision, worker

    shorten_starts()
    torch.set_num_threads(1)  # threads of a product would be lost in a fork
    for kind in ("fp32", "bf16"):
        precision.matmul_rate(kind)
    environment()  # which looks for versions once a process
    del numpy, psutil, pytest, torch, layout_steps, runs, tests, worlds, worker


if any("multiprocessing.forkserver" in argument for argument in sys.orig_argv):
    fill()

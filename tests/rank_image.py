"""What ranks of tests are forked from: imported once by the fork server (launch/local.py), not by each rank.

Besides the trainer that is pytest, which each file of tests imports, and the helpers that ranks run. A rank
is a process of its own, in the state after these imports, and ends with its world: nothing of a test is left
for the next one, whatever it changed.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PATHS = [str(TESTS), str(TESTS.parent)]
NAME = Path(__file__).stem
PROBE_S = 0.03  # a rate that no test looks at: a run's peak is timed for 0.3 s otherwise, at each start


def shorten_probe() -> None:
    """A run that starts in this process times its peak for a moment."""
    precision = sys.modules.get("scalewright.train.precision")
    if precision is not None:
        precision.matmul_rate = partial(precision.matmul_rate, seconds=PROBE_S)


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
    from scalewright.train import worker

    del numpy, psutil, pytest, torch, layout_steps, runs, tests, worlds, worker
    shorten_probe()


if any("multiprocessing.forkserver" in argument for argument in sys.orig_argv):
    fill()

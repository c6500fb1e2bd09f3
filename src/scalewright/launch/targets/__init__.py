"""What `launch TARGET` writes: a file per target, each with `write(job: Job) -> Written`.

local.py       a script, for here
slurm.py       a batch script          kubernetes/     manifests
torchrun.py    a command per machine   ray.py          a driver
mpi.py         mpirun and a hostfile   skypilot.py, dstack.py, runpod.py   a task's file
ssh.py         a script, over hosts    dvc.py          stages of a repository
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from scalewright.launch.job import LaunchJob, Written
from scalewright.spec.errors import unknown

NAMES = ("local", "slurm", "torchrun", "mpi", "ssh", "kubernetes", "ray", "skypilot", "dstack", "runpod", "dvc")
TARGETS = {name: f"scalewright.launch.targets.{name}" for name in NAMES}  # modules, imported when they are asked for


def find_target(name: str) -> Callable[[LaunchJob], Written]:
    """The target's `write`; raises UserError for a name that none has."""
    if name not in TARGETS:
        raise unknown("target", name, TARGETS, "scalewright launch")
    write: Callable[[LaunchJob], Written] = import_module(TARGETS[name]).write
    return write

"""What asks a run to save and leave: signals, and the end of the time that a scheduler gives it.

scheduler's end of the job, or this process's start + launch.time_limit
└── less launch.save_before_s ──► save_at: the moment from which the next step is the last one
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping

from scalewright.launch.source import number_of
from scalewright.spec.launch import LaunchSpec

# Slurm sends USR1 or USR2 where a script asks for it, and TERM before it takes nodes away; INT is Ctrl-C.
STOP_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)
)
STOP_FILE = "STOP"  # in out_dir
JOB_ENDS = ("SLURM_JOB_END_TIME",)  # in seconds since 1970 (srun(1), from Slurm 22.05 on)


def save_at(
    launch: LaunchSpec, environ: Mapping[str, str] | None = None, now: float | None = None
) -> float | None:
    """When to save and leave, in seconds since 1970; None where no limit is set."""
    environ = os.environ if environ is None else environ
    ends: float | None = number_of(environ, JOB_ENDS)
    if ends is None and launch.limit_s is not None:
        ends = (time.time() if now is None else now) + launch.limit_s
    return None if ends is None else ends - launch.save_before_s

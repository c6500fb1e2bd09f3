"""The scheduler's job that this process belongs to, and how often it was started again: for events.jsonl."""

from __future__ import annotations

import os
from collections.abc import Mapping

# scheduler, the job's number or name, restarts so far ("": it doesn't count them)
SCHEDULERS = (
    ("Slurm", "SLURM_JOB_ID", "SLURM_RESTART_COUNT"),
    ("LSF", "LSB_JOBID", ""),
    ("Flux", "FLUX_JOB_ID", ""),
    ("PBS", "PBS_JOBID", ""),
    ("SkyPilot", "SKYPILOT_TASK_ID", ""),
    ("dstack", "DSTACK_RUN_NAME", ""),
    ("Ray", "RAY_JOB_ID", ""),
    ("torchrun", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
)


def attempt_facts(environ: Mapping[str, str] | None = None) -> dict[str, str | int]:
    """`scheduler`, `job`, and `restarts` where it counts them; empty outside of any."""
    environ = os.environ if environ is None else environ
    for name, job, restarts in SCHEDULERS:
        if not environ.get(job):
            continue
        facts: dict[str, str | int] = {"scheduler": name, "job": environ[job]}
        if restarts:  # Slurm sets it from the first restart on
            count = environ.get(restarts, "0")
            facts["restarts"] = int(count) if count.isdigit() else 0
        return facts
    return {}

"""What a worker of Ray Train runs: one rank, in a process of its own, on a port that all workers agree on.

    Ray's worker 0 ─ a free port ─► all workers          (a group of Ray's, on Gloo)
    each worker ──► `scalewright train run.yaml`         leaves when its worker does (exits_with_parent.py)
       0, 2, 75  returned: the job ends with that code; so do others of a run that was given up
       others    raised: Ray Train's controller starts all workers again; they resume from the checkpoint

The rank has its own process because Ray runs this function in a thread, beside a process group of Ray's own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from scalewright.launch.in_every_rank import environment
from scalewright.launch.rank import find_context
from scalewright.launch.rendezvous import free_port
from scalewright.launch.settings import ends_told
from scalewright.spec.errors import Stopped, UserError

# Starting again would change neither of the first two; a run that was asked to stop is to stay stopped.
ENDS = (0, UserError.exit_code, Stopped.exit_code)


def run_rank(config: Mapping[str, Any]) -> int:
    """Runs `train` with `config["arguments"]` in `config["folder"]` as the rank that this worker has.

    Returns the exit code: 0, 75, or that of a mistake of the user's. Raises RuntimeError for others, after
    which another start may go on.
    """
    context = find_context()
    with ends_told() as ended:
        process = subprocess.Popen(
            [sys.executable, "-m", "scalewright.launch.exits_with_parent", "train", *config["arguments"]],
            cwd=config["folder"],
            env=environment(context, _agree_on_port(context.rank), os.environ),
            stdin=subprocess.PIPE,  # closed when this worker dies, whatever kills it
        )
        code = process.wait()
        over = code in ENDS or ended()
    if not over:
        raise RuntimeError(f"rank {context.rank} left with exit code {code}")
    return code


def _agree_on_port(rank: int) -> int:
    """A port that is free on rank 0's machine, for the ranks to meet."""
    from torch import distributed

    port: list[int | None] = [free_port() if rank == 0 else None]
    if distributed.is_initialized():
        distributed.broadcast_object_list(port)
    assert port[0] is not None
    return port[0]

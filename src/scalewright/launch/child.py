"""`scalewright ...` in a process of its own, with a share of this machine: how a sweep starts its runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """A part of this machine: threads of each process, and the GPUs that it may see (null: as they are)."""

    threads: int
    gpus: tuple[int, ...] | None = None


def start_child(arguments: Sequence[str], share: Share) -> subprocess.Popen[str]:
    """Starts the command; stdout and stderr are pipes. A signal to this process's group doesn't reach it."""
    environ = {**os.environ, "OMP_NUM_THREADS": str(share.threads)}
    if share.gpus is not None:
        visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        names = [visible[gpu] if visible else str(gpu) for gpu in share.gpus]
        environ["CUDA_VISIBLE_DEVICES"] = ",".join(names)
    return subprocess.Popen(
        [sys.executable, "-m", "scalewright", *arguments], env=environ, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip

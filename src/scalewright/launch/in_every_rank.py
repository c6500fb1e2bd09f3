"""A command in every process of a world that a launcher started, as a world of its own.

    torchrun, srun ─► rank 0 ─ child ─╮
                  ─► rank 1 ─ child ─┼─ another port: they meet there, train, and may be killed and started
                  ─► rank 2 ─ child ─╯ again, while the ranks that torchrun watches live on

A process that nothing started has a child that is alone, too, and starts local workers itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from scalewright.launch.rank import RankContext
from scalewright.launch.starters import all_variables

MINE = all_variables()
ELASTIC = "TORCHELASTIC_"


def environment(context: RankContext, port: int | None, environ: Mapping[str, str]) -> dict[str, str]:
    """The child's variables: the same rank, met at `port`; without one, no launcher's variables at all."""
    kept = {name: value for name, value in environ.items() if not name.startswith(ELASTIC)}
    if context.alone:
        return kept
    kept = {name: value for name, value in kept.items() if name not in MINE}
    if port is None:
        return kept
    host = context.rendezvous.removeprefix("tcp://").rpartition(":")[0]
    here = {"LOCAL_WORLD_SIZE": str(context.local_world)} if context.local_rank < context.local_world else {}
    return kept | here | {  # a starter that doesn't tell how many ranks a node has leaves it at one
        "RANK": str(context.rank), "WORLD_SIZE": str(context.world), "LOCAL_RANK": str(context.local_rank),
        "MASTER_ADDR": host, "MASTER_PORT": str(port),
    }  # fmt: skip


class Child:
    """`scalewright ARGUMENTS` in a process group of its own; what it prints goes to a file."""

    def __init__(self, context: RankContext, port: int | None, arguments: Sequence[str], log: Path) -> None:
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "scalewright", *arguments], stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, env=environment(context, port, os.environ), start_new_session=True,
            )  # fmt: skip

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> int | None:
        """Its exit code; None where it still runs after that."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Ends it and what it started, at once: nobody saves anything."""
        with suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
        self._process.wait()


def run_alone(context: RankContext, arguments: Sequence[str], seconds: float) -> tuple[int | None, str, str]:
    """`scalewright ARGUMENTS` without launchers' variables: exit code (None: no end), stdout, stderr."""
    command = [sys.executable, "-m", "scalewright", *arguments]
    try:
        done = subprocess.run(command, env=environment(context, None, os.environ), timeout=seconds,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)  # fmt: skip
    except subprocess.TimeoutExpired:
        return None, "", f"no end after {seconds:.0f} s"
    return done.returncode, done.stdout, done.stderr

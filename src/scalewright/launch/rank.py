"""This process's rank: read once from the environment of its starter, then passed on as a value.

torchrun  RANK, WORLD_SIZE, LOCAL_RANK        Open MPI  OMPI_COMM_WORLD_RANK, ...
srun      SLURM_PROCID, SLURM_NTASKS, ...     MPICH     PMI_RANK, PMI_SIZE, MPI_LOCALRANKID
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from scalewright.spec.errors import UserError

# (name, rank, world, local rank, local world); the first whose rank and world are both there wins.
STARTERS = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    (
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
)


# srun numbers its steps from 0; processes that Slurm runs without it (the batch script, an interactive shell)
# have no number or one from here on, and are alone, however many tasks the job has (slurm.h:
# SLURM_INTERACTIVE_STEP).
FIRST_SPECIAL_STEP = 0xFFFFFFF0


@dataclass(frozen=True)
class RankContext:
    """One process's rank in a run, and how it finds the others."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    rendezvous: str = ""  # file:///... or tcp://host:port; empty when alone
    attempt: int = 0  # restarts so far; keeps a new attempt's addresses apart from the old one's
    starter: str = "none"
    shared_store: bool = False  # torchrun's agent already runs the store at that address; else rank 0 does
    threads: int | None = None  # CPU threads of this process; None = the library's default
    # Passes rank 0's ("train" | "valid" | "event", row) to the process that follows the run; true: stop.
    tell: Callable[[str, dict[str, Any]], bool | None] | None = None

    @property
    def last_words(self) -> Path | None:
        """A file for the reason of a rank that can't answer; None where no supervisor reads it."""
        if self.starter != "local":
            return None
        return Path(f"{unquote(urlparse(self.rendezvous).path)}-last-words-{self.rank}")

    @property
    def alone(self) -> bool:
        """Whether this is the only process."""
        return self.world == 1


def find_context(environ: Mapping[str, str] | None = None) -> RankContext:
    """This process's rank, from the environment of its starter; alone when nothing started it.

    A single-task Slurm or MPI job counts as alone, and so does a Slurm script outside of srun: `train` may
    then start local workers itself.
    """
    environ = os.environ if environ is None else environ
    for name, rank, world, local, local_world in STARTERS:
        if rank not in environ or world not in environ:
            continue
        if name == "Slurm" and _number(environ, "SLURM_STEP_ID", FIRST_SPECIAL_STEP) >= FIRST_SPECIAL_STEP:
            continue
        size = _number(environ, world)
        if size == 1:
            break
        return RankContext(
            rank=_number(environ, rank),
            world=size,
            local_rank=_number(environ, local, 0),
            local_world=_number(environ, local_world, 1),
            rendezvous=_address(environ, name),
            attempt=_number(environ, "TORCHELASTIC_RESTART_COUNT", 0),
            starter=name,
            shared_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            threads=_threads(environ),
        )
    return RankContext(threads=_threads(environ))


def _threads(environ: Mapping[str, str]) -> int | None:
    return _number(environ, "OMP_NUM_THREADS") if environ.get("OMP_NUM_THREADS") else None


def _number(environ: Mapping[str, str], key: str, default: int | None = None) -> int:
    text = environ.get(key)
    if text is None and default is not None:
        return default
    try:
        return int((text or "").split("(")[0])  # Slurm writes "2(x3)" for three nodes of two
    except ValueError:
        raise UserError(
            f"{key} is {text!r}, not a number", "environment", "unset it, or start with torchrun"
        ) from None


def _address(environ: Mapping[str, str], starter: str) -> str:
    host, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    if not host or not port:
        missing = "MASTER_ADDR" if not host else "MASTER_PORT"
        raise UserError(
            f"{starter} started {environ.get('WORLD_SIZE') or 'several'} ranks but {missing} is not set",
            "environment",
            "export MASTER_ADDR=<first host> MASTER_PORT=29500 before the launch",
        )
    return f"tcp://{host}:{port}"

"""This process's rank: read once from the environment of its starter, then passed on as a value.

detect.py  the starter ──► RankContext ──► join_world(rank, world, rendezvous)

A process that stands for a node (`whole_node`) may start the ranks of its node: `of_node`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from scalewright.launch.detect import find_address, find_source
from scalewright.launch.regroup import Line
from scalewright.launch.starters import RANK, Source, number_of
from scalewright.spec.errors import UserError

BROADCAST = "mpi://"  # a rendezvous that rank 0 has yet to tell the others (rendezvous.py)


@dataclass(frozen=True)
class RankContext:
    """One process's rank in a run, and how it finds the others."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    rendezvous: str = ""  # file:///... or tcp://host:port (`with_address` of rendezvous.py); empty when alone
    attempt: int = 0  # restarts so far; keeps a new attempt's addresses apart from the old one's
    meeting: str = "0"  # the attempt's name, once the ranks have met
    starter: str = "none"
    waited_for: bool = False  # by its starter, the parent process: without that, it is left behind
    whole_node: bool = False  # the only process of its node, or pod: it may start several ranks there
    shared_store: bool = False  # torchrun's agent already runs the store at that address; else rank 0 does
    threads: int | None = None  # CPU threads of this process; None = the library's default
    # Passes rank 0's ("train" | "valid" | "event", row) to the process that follows the run; true: stop.
    tell: Callable[[str, dict[str, object]], bool | None] | None = None
    supervisor: Path | None = None  # a folder of the process that started this one as a worker, and waits
    device: int | None = None  # its number on this machine; null: the local rank's
    seat: int | None = None  # its place among workers that may change their ranks; null: they don't
    joins: bool = False  # it takes the seat of one that died
    line: Line | None = None  # to the supervisor of such workers

    @property
    def last_words(self) -> Path | None:
        """A file for the reason of a rank that can't answer; None where no supervisor reads it."""
        return None if self.supervisor is None else self.supervisor / f"last-words-{self._place}"

    @property
    def _place(self) -> int:
        return self.rank if self.seat is None else self.seat

    @property
    def alone(self) -> bool:
        """Whether this is the only process."""
        return self.world == 1

    def of_node(self, index: int, per_node: int, supervisor: Path, threads: int) -> RankContext:
        """Worker `index` of this node, where every node has `per_node` of them."""
        return replace(
            self,
            rank=self.rank * per_node + index,
            world=self.world * per_node,
            local_rank=index,
            local_world=per_node,
            waited_for=False,  # the supervisor's pipe tells that
            whole_node=False,
            threads=threads,
            tell=None,
            supervisor=supervisor,
        )


def find_context(environ: Mapping[str, str] | None = None) -> RankContext:
    """This process's rank, from the environment of its starter; alone when nothing started it.

    A single-task Slurm or MPI job counts as alone, and so does a Slurm script outside of srun: `train` may
    then start local workers itself. Raises UserError for starters that contradict each other, and where
    nothing tells ranks on several hosts the place to meet.
    """
    environ = os.environ if environ is None else environ
    threads = number_of(environ, ("OMP_NUM_THREADS",))
    source = find_source(environ)
    if source is None or source.world == 1:
        return RankContext(threads=threads)
    starter = source.starter
    return RankContext(
        rank=source.rank,
        world=source.world,
        local_rank=source.local_rank,
        local_world=source.local_world or 1,
        rendezvous=_rendezvous(source, environ),
        attempt=number_of(environ, ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")) or 0,
        starter=starter.name,
        waited_for=starter.waits,
        whole_node=source.local_world == 1 and (starter.node or starter.rank != RANK),
        shared_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        threads=threads,
    )


def is_restarted(environ: Mapping[str, str] | None = None) -> bool:
    """Whether torchrun's agent started this process, also as the only one: it starts it again by itself."""
    return bool((os.environ if environ is None else environ).get("TORCHELASTIC_RUN_ID"))


def _rendezvous(source: Source, environ: Mapping[str, str]) -> str:
    host, port = find_address(source, environ)
    if host is None and source.starter.broadcasts:
        return BROADCAST
    if host is None:
        what = f"{source.starter.name} started {source.world} ranks but MASTER_ADDR is not set"
        raise UserError(what, "environment", source.starter.how)
    return f"tcp://{host}:{port}"

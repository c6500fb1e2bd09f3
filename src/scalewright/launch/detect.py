"""Who started this process: the innermost of the starters whose variables are set (starters.py).

torchrun (4 ranks here)  inside  srun --ntasks-per-node=1    fits: the ranks are torchrun's
torchrun (4 ranks here)  inside  srun --ntasks-per-node=4    an error (contradictions.py)
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext, suppress
from itertools import pairwise

from scalewright.launch.contradictions import check_address, check_complete, check_nested, check_numbers, check_pods
from scalewright.launch.nodes import expand_counts, expand_hosts
from scalewright.launch.source import Source, first_set, number_of
from scalewright.launch.starters import STARTERS, Names, Starter
from scalewright.spec.errors import UserError

# srun numbers its steps from 0; processes that Slurm runs without it (the batch script, an interactive shell)
# have no number or one from here on, and are alone, however many tasks the job has (slurm.h:
# SLURM_INTERACTIVE_STEP).
FIRST_SPECIAL_STEP = 0xFFFFFFF0
PORT = 29500
FIRST_PORT, PORTS = 20000, 10000  # those that a job's number chooses from: below Linux's own from 32768


def find_source(environ: Mapping[str, str]) -> Source | None:
    """The innermost starter of this process; None where nothing started it.

    Raises UserError for a variable that isn't a number, for half of a starter's variables, and for starters
    that contradict each other.
    """
    sources: list[Source] = []
    for starter in STARTERS:
        if any(starter.rank == source.starter.rank for source in sources):
            continue  # the same variables by another name
        # PET_NNODES=1:4 is wrong for `train`, and right for the torchrun that it runs under.
        with suppress(UserError) if sources else nullcontext():
            if (source := _read(starter, environ)) is not None:
                sources.append(source)
    for inner, outer in pairwise(sources):
        check_nested(inner, outer)
    if not sources:
        check_complete(environ)
        return None
    check_pods(sources[0], environ)
    same = [row for row in sources if (row.rank, row.world) == (sources[0].rank, sources[0].world)]
    # srun --mpi=pmi2 sets PMI_RANK, which has no local rank, beside its own variables
    return next((row for row in same if row.local_world is not None), sources[0])


def _read(starter: Starter, environ: Mapping[str, str]) -> Source | None:
    """The starter's numbers, where all that it needs to be recognised is set."""
    if any(not environ.get(name) for name in starter.marks) or any(environ.get(n) for n in starter.unless):
        return None
    rank, world = number_of(environ, starter.rank), number_of(environ, starter.world)
    if rank is None or world is None:
        return None
    if starter.name == "Slurm" and (number_of(environ, starter.marks) or 0) >= FIRST_SPECIAL_STEP:
        return None
    local_world = _local_world(starter, environ)
    agents = number_of(environ, (starter.agents,)) if starter.agents else None
    source = Source(starter, rank, world, number_of(environ, starter.local_rank) or 0, local_world, agents)
    check_numbers(source)
    return source


def _local_world(starter: Starter, environ: Mapping[str, str]) -> int | None:
    if starter.node:
        return 1
    text = first_set(environ, starter.local_world)
    if starter.name != "Slurm" or text is None:
        return number_of(environ, starter.local_world)
    counts = expand_counts(text)
    node = number_of(environ, ("SLURM_NODEID",)) or 0
    return counts[node] if node < len(counts) else counts[0]


def find_address(source: Source, environ: Mapping[str, str]) -> tuple[str | None, int]:
    """Host and port where the ranks meet; no host where neither the environment nor the starter gives one."""
    starter = source.starter
    here = "127.0.0.1" if source.local_world == source.world else None  # all on this machine
    check_address(environ.get("MASTER_ADDR", ""))
    host = environ.get("MASTER_ADDR") or here or _host(environ, starter.host)
    port = number_of(environ, ("MASTER_PORT", *starter.port))
    if port is None and (job := number_of(environ, starter.port_of)) is not None:
        step = number_of(environ, ("SLURM_STEP_ID",)) or 0
        port = FIRST_PORT + (job + 97 * step) % PORTS  # steps of a job may run side by side
    return host, PORT if port is None else port


def _host(environ: Mapping[str, str], names: Names) -> str | None:
    """The first host of whatever list the variable holds."""
    name = next((name for name in names if environ.get(name)), None)
    if name is None:
        return None
    if name.startswith("SLURM_"):
        return expand_hosts(environ[name])[0]
    words = environ[name].replace(",", " ").split()
    if name == "LSB_MCPU_HOSTS":  # host, slots, host, slots: the first one is where jsrun itself runs
        hosts = words[::2]
        return hosts[1] if len(hosts) > 1 else hosts[0]
    return words[0]

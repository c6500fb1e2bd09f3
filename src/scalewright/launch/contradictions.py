"""What an environment must not say: half of a starter's variables, impossible numbers, two that disagree.

    torchrun says rank 3 of 8,              srun --ntasks-per-node=8 bash -c "torchrun --nproc-per-node=8 ..."
    but around it Slurm says rank 5 of 16   └─ eight worlds a node: start one task a node

Each would start several runs where one was meant, or a rank that waits for others until its timeout. The
error shows what both say and names the usual cause.
"""

from __future__ import annotations

from collections.abc import Mapping

from scalewright.launch.source import Source, first_set, number_of
from scalewright.launch.starters import BY_HAND, STARTERS, Starter
from scalewright.spec.errors import UserError

WHERE = "environment"
OF_A_JOB = ("Slurm",)  # SLURM_NTASKS_PER_NODE stays that of the job in a step of fewer tasks


def check_nested(inner: Source, outer: Source) -> None:
    """Raises UserError unless both say the same, or the outer starter has one task a node, in which the inner
    one starts ranks."""
    same_world = inner.world == outer.world
    if outer.world == 1 or (same_world and inner.rank == outer.rank):
        return
    beside = outer.local_world or 1
    exported = not inner.starter.nests or (inner.starter.name == BY_HAND and same_world)
    shut_in = inner.starter.broadcasts and inner.local_world == inner.world  # mpirun that knows no other node
    if not exported and beside == 1 and inner.agents in (None, outer.world) and not shut_in:
        return
    if exported:
        why = _exported(inner, outer)
    elif beside > 1:
        why = _in_each_task(inner.starter.name, outer)
    else:
        why = _on_each_node(inner, outer)
    raise UserError(f"{inner.words}, but around it {outer.words}", WHERE, why)


def _exported(inner: Source, outer: Source) -> str:
    variables = " ".join(names[0] for names in (inner.starter.rank, inner.starter.world))
    name, around = inner.starter.name, outer.starter.name
    return f"usually those of {name} were exported before {around} started its tasks: unset {variables}"


def _in_each_task(name: str, outer: Source) -> str:
    like = ", as by srun with a task per GPU" if outer.starter.name == "Slurm" else ""
    command = f" ({outer.starter.one_a_node})" if outer.starter.one_a_node else ""
    cause = f"usually {name} was started in each of several tasks of a node{like}"
    return f"{cause}: start one task a node{command}, or leave {name} out"


def _on_each_node(inner: Source, outer: Source) -> str:
    own = f"where each task is to be a run of its own, unset {outer.starter.rank[0]}"
    if inner.agents is None:
        cause = f"usually {inner.starter.name} was started on each node without the hosts of the others"
        return f"{cause}: start it on one of them; {own}"
    left_out = f"--nnodes={outer.world} was left out ({inner.starter.name} has {inner.agents})"
    return f"usually {left_out}; {own}"


def check_numbers(source: Source) -> None:
    """Raises UserError for numbers that can't be: a rank beyond its world, a local rank beyond its node."""
    name, here = source.starter.name, source.local_world
    what = ""
    if not 0 <= source.rank < source.world:
        what = f"{name} says rank {source.rank} of {source.world}"
    elif source.local_rank < 0 or (here is not None and source.local_rank >= here):
        what = f"{name} says local rank {source.local_rank} of {'a node' if here is None else here}"
    elif here is not None and not 0 < here <= source.world and name not in OF_A_JOB:
        what = f"{name} says {here} ranks on this node, of {source.world} in all"
    if what:
        raise UserError(what, WHERE, "unset its variables, or correct them: ranks count from 0")


def check_complete(environ: Mapping[str, str]) -> None:
    """Raises UserError where half of a starter's variables are set, and no starter has all of its own.

    Such a process would be a run of its own, as many times as it is started.
    """
    for starter in STARTERS:
        rank, world = first_set(environ, starter.rank), first_set(environ, starter.world)
        if starter.alone or (rank is None) == (world is None) or world == "1":
            continue
        if any(environ.get(name) for name in starter.unless):
            continue
        there, missing = (starter.rank, starter.world) if world is None else (starter.world, starter.rank)
        name = next(name for name in there if environ.get(name))
        raise UserError(f"{name} is {environ[name]} and {missing[0]} isn't set", WHERE, _complete(starter, name))
    if environ.get("LOCAL_RANK") and not environ.get("RANK"):
        what = f"LOCAL_RANK is {environ['LOCAL_RANK']} and RANK isn't set"
        raise UserError(what, WHERE, "set RANK, WORLD_SIZE, LOCAL_RANK and MASTER_ADDR, or unset it")


def _complete(starter: Starter, name: str) -> str:
    if starter.rank == ("RANK",):
        return f"set RANK, WORLD_SIZE, LOCAL_RANK and MASTER_ADDR, or unset {name} (exported in a profile?)"
    return f"{starter.name} sets both: unset {name}, or pass the variables on to this process"


def check_pods(source: Source, environ: Mapping[str, str]) -> None:
    """Raises UserError where RANK, WORLD_SIZE and no LOCAL_RANK, which mean pods, aren't those of pods."""
    if environ.get("LOCAL_RANK"):
        return
    rank, here = number_of(environ, ("RANK",)), number_of(environ, ("LOCAL_WORLD_SIZE",))
    if source.starter.rank == ("PET_NODE_RANK",) and rank not in (None, source.rank):
        what = f"RANK is {rank} and PET_NODE_RANK is {source.rank}, and both are the number of a pod"
        raise UserError(what, WHERE, "unset RANK and WORLD_SIZE: the PyTorchJob's own are set again")
    if source.starter.rank == ("RANK",) and (here or 1) > 1:
        what = f"LOCAL_WORLD_SIZE is {here} and LOCAL_RANK isn't set: rank {source.rank} has no GPU of its own"
        raise UserError(what, WHERE, "set LOCAL_RANK for each process, or start them with torchrun")


def check_address(address: str) -> None:
    """Raises UserError for a MASTER_ADDR that is no single host."""
    what = ""
    if any(mark in address.strip() for mark in ",[ \n"):
        what, how = "a list of hosts", "take its first one: $(scontrol show hostnames | head -n 1)"
    elif "://" in address or address.count(":") == 1:
        host, _, port = address.rpartition("://")[2].partition(":")
        what, how = "a host and a port", f"export MASTER_ADDR={host} MASTER_PORT={port or 29500}"
    if what:
        raise UserError(f"MASTER_ADDR={address!r} is {what}", WHERE, how)

"""Who started this process: the innermost of the starters whose variables are set (starters.py).

torchrun (4 ranks here)  inside  srun --ntasks-per-node=1    fits: the ranks are torchrun's
torchrun (4 ranks here)  inside  srun --ntasks-per-node=4    an error: four worlds a node

Half of a starter's variables, impossible numbers and starters that disagree would start several runs where one was
meant, or a rank that waits for others until its timeout. The error has both sides, and the usual cause.

Slurm's lists: n[1-3,07],gpu-a[01-02]-ib     n1 n2 n3 n07 gpu-a01-ib gpu-a02-ib     hosts
               a[1-2]b[3-4]                  a1b3 a1b4 a2b3 a2b4
               2(x3),1                       2 2 2 1                                tasks of each node

Hosts have the order of `scontrol show hostnames`: the last brackets go fastest, and of those before them the first.
A name may go on after its last brackets, which Slurm 22.05 doesn't take.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from itertools import pairwise, product, zip_longest

from scalewright.launch.starters import BY_HAND, STARTERS, Names, Source, Starter, first_set, number_of
from scalewright.spec.errors import UserError

# srun numbers its steps from 0; processes that Slurm runs without it (the batch script, an interactive shell) have no
# number or one from here on, and are alone, however many tasks the job has (slurm.h: SLURM_INTERACTIVE_STEP).
FIRST_SPECIAL_STEP = 0xFFFFFFF0
WHERE = "environment"
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
    if not all(environ.get(name) for name in starter.marks) or first_set(environ, starter.unless):
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


_NAME = re.compile(r"(?:[^,\[\]\s]|\[[0-9,\-]+\])+")
_BRACKETS = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")
MOST = 65536  # of a range, as Slurm has it (MAX_RANGE in hostlist.h)


def expand_hosts(text: str) -> list[str]:
    """The hosts that a list names, in its order; raises UserError for one that isn't in Slurm's form."""
    names = _NAME.findall(text)
    if ",".join(names) != text.strip():
        raise UserError(f"'{text}' is no list of nodes", "environment", "write it as n[1-3],m07")
    hosts: list[str] = []
    for name in names:
        pieces = _BRACKETS.split(name)  # literal, numbers, literal, ...
        numbers = [_numbers(piece, text) for piece in pieces[1::2]]
        before, last = numbers[:-1], numbers[-1] if numbers else [""]
        for chosen in product(*reversed(before)):  # the first ones fastest
            for number in last:
                filled = zip_longest(pieces[::2], [*reversed(chosen), number], fillvalue="")
                hosts.append("".join(word + digits for word, digits in filled))
    return hosts


def _numbers(text: str, whole: str) -> list[str]:
    """1-3,07 as 1 2 3 07: a range's numbers are as wide as its first one."""
    numbers: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        what = f"'{part}' in '{whole}' is no range of nodes"
        if match is None:
            raise UserError(what, WHERE, "write it as n[1-3]")
        first, last = match[1], match[2] or match[1]
        if not int(first) <= int(last) < int(first) + MOST:
            raise UserError(what, WHERE, f"write the smaller number first, and {MOST} at most")
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return numbers


def expand_counts(text: str) -> list[int]:
    """The numbers of a list such as 2(x3),1; raises UserError for one that isn't in Slurm's form."""
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part.strip())
        if match is None:
            raise UserError(f"'{text}' is no list of tasks by node", "environment", "write it as 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


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
        name, around = inner.starter.name, outer.starter.name
        variables = f"{inner.starter.rank[0]} {inner.starter.world[0]}"
        why = f"usually those of {name} were exported before {around} started its tasks: unset {variables}"
    elif beside > 1:
        why = _in_each_task(inner.starter.name, outer)
    else:
        why = _on_each_node(inner, outer)
    raise UserError(f"{inner.words}, but around it {outer.words}", WHERE, why)


def _in_each_task(name: str, outer: Source) -> str:
    like = ", as by srun with a task per GPU" if outer.starter.name == "Slurm" else ""
    command = f" ({outer.starter.one_a_node})" if outer.starter.one_a_node else ""
    cause = f"usually {name} was started in each of several tasks of a node{like}"
    return f"{cause}: start one task a node{command}, or leave {name} out"


def _on_each_node(inner: Source, outer: Source) -> str:
    apart = f"where each task is to be a run of its own, unset {outer.starter.rank[0]}"
    if inner.agents is None:
        cause = f"usually {inner.starter.name} was started on each node without the hosts of the others"
        return f"{cause}: start it on one of them; {apart}"
    left_out = f"--nnodes={outer.world} was left out ({inner.starter.name} has {inner.agents})"
    return f"usually {left_out}; {apart}"


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
        if starter.alone or (rank is None) == (world is None) or world == "1" or first_set(environ, starter.unless):
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

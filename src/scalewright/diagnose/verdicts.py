"""What binds the run, how sure that is, what to change, and what it would gain: one rule, one function.

    rule(ranks) ──► Verdict or None        a rule looks at one cause, and stays silent below its threshold
    gain        ──► replay.py with the cause taken away: p90 the whole of it, p50 what its fix usually reaches

Gains are shares of the window, and aren't added up: with one cause gone another binds. The shares that a fix reaches
(`REACHES`) are judgements.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scalewright.diagnose import intervals
from scalewright.diagnose.cpu import operator_storms, short_operators
from scalewright.diagnose.graphs import compiling, graphed, storms, without
from scalewright.diagnose.host_function import in_one_function, late_after_launch, one_function, unexplained
from scalewright.diagnose.kernels import by_kind, short_kernels
from scalewright.diagnose.links import slow_links
from scalewright.diagnose.ranks import Rank, Ranks
from scalewright.diagnose.replay import Change
from scalewright.diagnose.stages import bubble, unbalanced, uneven_steps
from scalewright.diagnose.stragglers import Straggler
from scalewright.diagnose.verdict import Gain, Verdict, name, ratio_to_median

# The least share of the window (of short kernels: of the kernels), in percent, at which a cause is worth a line.
LEAST = {
    "data": 2.0, "sync": 2.0, "host": 5.0, "communication": 5.0, "copies": 3.0, "compiling": 2.0, "operators": 30.0,
    "short kernels": 25.0, "storms": 10.0,
}  # fmt: skip
HIDDEN = 10.0  # percent of the communication: less is none
LEAST_GAIN = 1.0  # percent: a cause without it isn't on the critical path
WORKERS_COST = 1.15  # of the host's own work once worker processes share its cores: resnet50 on a V100, 4 workers
REACHES = (0.8, 0.5, 0.0)  # what remains of the host's work, of transfers and of copies: p10, p50, p90


def verdicts(ranks: Ranks) -> list[Verdict]:
    """All causes above their threshold, the largest expected gain first."""
    result = [verdict for rule in RULES if (verdict := rule(ranks)) is not None]
    worth = [candidate for candidate in result if candidate.gain and candidate.gain.p90 >= LEAST_GAIN]
    if (rest := unexplained(ranks, worth)) is not None:
        worth.append(rest)
    return sorted(worth, key=lambda verdict: -verdict.usual_gain)


def _data(ranks: Ranks) -> Verdict | None:
    stepped = sum(r.stepped for r in ranks.ranks)
    share = 100 * sum(r.data for r in ranks.ranks) / stepped if stepped else _idle_share(ranks, "data")
    if share < LEAST["data"]:
        return None
    most = ranks.gain(Change(data=0.0))
    usual = max(min(ranks.gain(Change(data=0.0, host=WORKERS_COST)), most), 0.0) if ranks.on_gpu else most
    of_what = "steps" if stepped else "window"
    line = f"in {share:.1f}% of the {of_what} the host loads data while the device has nothing to do"
    fix = "load in worker processes: num_workers of 4 or more on the DataLoader, with pin_memory and persistent_workers"
    return Verdict("data", [line], fix, 0.9, Gain(usual / 2, usual, most))


def _sync(ranks: Ranks) -> Verdict | None:
    share, apart = _idle_share(ranks, "sync"), _kept_apart_share(ranks)
    if share < LEAST["sync"] and apart < LEAST["communication"]:
        return None
    least = max(ranks.gain(Change(waits=False)), 0.0)
    most = max(ranks.gain(Change(waits=False, proven=True)), least)
    evidence = [f"{share:.1f}% of the window the device is idle because the host had waited for it and begins anew"]
    low, middle = least / 2, least
    if apart >= LEAST["sync"]:  # whether something may run beside it isn't recorded
        evidence += [f"{apart:.1f}% it communicates alone: what could run beside it is launched after the host's wait"]
        low, middle = least, (least + most) / 2
    middle = min(middle, share + apart)  # what it hides of the loader's time is the gain of fixing that
    fix = "keep values on the device: no .item(), .cpu(), print(loss) or synchronize() within a step"
    return Verdict("sync", evidence, fix, 0.7, Gain(min(low, middle), middle, most))


def _operators(ranks: Ranks) -> Verdict | None:
    if ranks.on_gpu:
        return None
    share = _idle_share(ranks, "host") - one_function(ranks)[2]
    short, count = (sum(column) for column in zip(*(short_operators(r.trace) for r in ranks.ranks), strict=True))
    if share < LEAST["operators"] or short < count / 2:
        return None
    evidence = [
        f"{share:.1f}% of the window no operator runs: Python between them, and what they cost to call",
        f"{short:,} of {count:,} operators take less than 10 microseconds",
    ]
    fix = "fewer and larger operators: a larger micro-batch, fused ones, torch.compile"
    return Verdict("host", evidence, fix, 0.6, Gain(*(max(ranks.gain(Change(host=part)), 0.0) for part in REACHES)))


def _operator_storms(ranks: Ranks) -> Verdict | None:
    if ranks.on_gpu or not ranks.replays:
        return None
    storms = [operator_storms(rank.trace) for rank in ranks.ranks]
    spans, operators = [storm.spans for storm in storms], sum(storm.operators for storm in storms)
    share = 100 * sum(map(intervals.length, spans)) / _windows(ranks)
    if share < LEAST["storms"]:
        return None
    most = ranks.gain_with(ranks.recorded_without(spans, 1.0))
    if most < LEAST["host"]:
        return None
    usual = most * max(storm.calls for storm in storms)
    line = (
        f"in {share:.1f}% of the window {operators:,} operators of less than 10 microseconds follow one another: most "
        "of it is what calling them costs"
    )
    fix = "fewer and larger operators in their place: batched, fused, or compiled by torch.compile"
    return Verdict("short kernels", [line], fix, 0.8, Gain(usual / 2, usual, most))


def _host(ranks: Ranks) -> Verdict | None:
    if not ranks.on_gpu:
        return None
    share = _idle_share(ranks, "host") + _idle_share(ranks, "launch")
    if share < LEAST["host"]:
        return None
    short, count = (sum(column) for column in zip(*(short_kernels(r.trace) for r in ranks.ranks), strict=True))
    evidence = [f"{share:.1f}% of the window the device waits for the host to launch its next kernel"]
    if count and short > count / 2:
        evidence.append(f"{short:,} of {count:,} kernels take less than 10 microseconds, less than a launch does")
    # The share of the loader, of waits and of a function that takes most of it is the gain of fixing those.
    most = share + _waited_share(ranks) - max(one_function(ranks)[2] - _idle_share(ranks, "sync"), 0.0)
    gain = Gain(*(min(max(ranks.gain(Change(host=part)), 0.0), most) for part in REACHES))
    fix = (
        "launch less: CUDA graphs or torch.compile(mode='reduce-overhead'), fused kernels and a fused optimizer, a "
        "larger micro-batch"
    )
    return Verdict("host", evidence, fix, 0.8, gain)


def _short_kernels(ranks: Ranks) -> Verdict | None:
    share = _idle_share(ranks, "host") + _idle_share(ranks, "launch")
    if not ranks.on_gpu or share < LEAST["host"]:
        return None
    runs = [storms(recorded) for recorded in ranks.recorded]
    kernels, count = sum(run.kernels for run in runs), sum(run.of for run in runs)
    most = max(runs, key=lambda run: run.kernels)
    if kernels < LEAST["short kernels"] / 100 * count or most.kernel > most.apart / 2:
        return None
    gain = ranks.gain_with([graphed(recorded) for recorded in ranks.recorded])
    gain = min(gain, share + _waited_share(ranks))  # as that of the host
    if gain < LEAST["host"]:
        return None
    line = (
        f"{kernels:,} of {count:,} kernels come in {sum(run.runs for run in runs):,} runs in which the device waits "
        f"for each: {most.kernel / 1e3:.1f} µs a kernel, {most.apart / 1e3:.1f} between launches"
    )
    fix = (
        "a CUDA graph a run: torch.compile(mode='reduce-overhead') or torch.cuda.make_graphed_callables; shapes must "
        "stay the same, and nothing within may wait for the device"
    )
    return Verdict("short kernels", [line], fix, 0.7, Gain(gain / 4, gain / 2, gain))


def _compiling(ranks: Ranks) -> Verdict | None:
    hidden = [compiling(rank.trace) for rank in ranks.ranks]
    idle = [
        100 * intervals.length(intervals.overlap(some, rank.activity.idle)) / rank.breakdown.window
        for some, rank in zip(hidden, ranks.ranks, strict=True)
    ]
    share = float(np.mean(idle))
    if share < LEAST["compiling"]:
        return None
    gain = max(ranks.gain_with([*map(without, ranks.recorded, hidden)]), 0.0)
    line = f"{share:.1f}% of the window the device is idle while the host compiles or captures a graph"
    fix = (
        "record after warm-up; if it goes on, shapes change from step to step: pad them, or "
        "torch.compile(dynamic=True), and see TORCH_LOGS=recompiles"
    )
    return Verdict("compilation", [line], fix, 0.8, Gain(gain / 2, gain, gain))


def _communication(ranks: Ranks) -> Verdict | None:
    share = max(_transfer_share(ranks) - _kept_apart_share(ranks), 0.0)
    if share < LEAST["communication"]:
        return None
    if ranks.replays:
        low, middle, most = (max(ranks.gain(Change(transfer=part)), 0.0) for part in REACHES)
        most = max(most, ranks.gain(Change(hides=True)))  # hidden, waiting for ranks that vary is, too
    else:
        low, middle, most = 0.0, share / 2, share
    if most < LEAST["communication"] / 2:
        return None
    evidence = [f"{share:.1f}% of the window the device communicates and nothing hides it"]
    hidden = [rank.breakdown.overlap_pct for rank in ranks.ranks if rank.breakdown.overlap_pct is not None]
    if most > middle + LEAST["communication"] and hidden and max(hidden) < HIDDEN:
        evidence.append("no computation runs beside it: what could overlap waits")
    if not ranks.matched:
        evidence.append("one rank alone doesn't tell transfer from waiting for another: give all ranks' traces")
    fix = (
        "hide it (overlapping gathers and reductions, prefetch) or send less: sharding within a node, a larger "
        "micro-batch, a smaller tensor-parallel group"
    )
    return Verdict("communication", evidence, fix, 0.8 if ranks.matched else 0.4, Gain(low, middle, most))


def _copies(ranks: Ranks) -> Verdict | None:
    share = _mean(ranks, lambda r: 100 * r.breakdown.exposed_copy / r.breakdown.window)
    if share < LEAST["copies"]:
        return None
    low, middle, most = (ranks.gain(Change(copies=part)) for part in REACHES)
    line = f"{share:.1f}% of the window the device copies between memories and does nothing else"
    fix = "pin the host's memory and copy with non_blocking=True, or ahead on a stream of its own"
    return Verdict("copies", [line], fix, 0.7, Gain(max(low, 0.0), max(middle, 0.0), most))


def _stragglers(ranks: Ranks) -> Verdict | None:
    late = ranks.stragglers
    if not late:
        return None
    most = max(ranks.gain(*(_without(ranks, straggler) for straggler in late)), 0.0)
    usual = min(max(ranks.gain(*(as_the_median(ranks, straggler) for straggler in late)), 0.0), most)
    evidence = [
        f"the others wait {slow.imposed / 1e6:,.1f} ms for {name(ranks, slow.rank)}, late in {slow.last_in} "
        f"of {slow.of} collectives: {LATE[slow.cause][0]}"
        for slow in late
    ]
    transfer = sum(int(group.transfer.sum()) for group in ranks.matched)
    evidence.append(f"the collectives themselves take {transfer / 1e6:,.1f} ms: a faster network gains no more")
    who = " and ".join(name(ranks, straggler.rank) for straggler in late)
    look = LATE[late[0].cause][1] if ranks.on_gpu or late[0].cause != "compute" else LATE_CPU
    fix = f"look at {who}: {look}"
    return Verdict("straggler", evidence, fix, 0.8, Gain(usual / 2, usual, most))


LATE = {  # the cause of a straggler -> why it is late, and what to look at
    "compute": ("its kernels take longer", "its clock, temperature and power, or its share of the work"),
    "communication": ("it is held up by another group", "the groups that it is in"),
    "copies": ("it copies more", "what it copies"),
    "host": (
        "its host launches late",
        "other processes on its cores, its NUMA node, Python work that other ranks don't do",
    ),
    "launch": ("its launches take longer", "its driver and the load of its CPU"),
    "data": ("it waits for its data", "its data loader and its disk"),
    "sync": ("it synchronises with its host", "what it reads back from the device"),
    "other": ("its kernels wait for another stream", "its streams"),
}


LATE_CPU = "other processes on its cores, how many threads it has, or its share of the work"


def _without(ranks: Ranks, late: Straggler) -> Change:
    """The change that takes all of a cause away from a late rank."""
    only = frozenset({late.rank})
    if late.cause == "compute":  # no rank computes nothing
        return Change(compute=min(ratio_to_median(ranks.compute_work, late.rank), 0.5), ranks=only)
    if late.cause == "data":
        return Change(data=0.0, ranks=only)
    return Change(host=0.0, waits=late.cause != "sync", proven=True, ranks=only)


def as_the_median(ranks: Ranks, late: Straggler) -> Change:
    """The change that makes a late rank as fast as the median one in what it is late by."""
    only = frozenset({late.rank})
    if late.cause == "compute":
        return Change(compute=ratio_to_median(ranks.compute_work, late.rank), ranks=only)
    if late.cause in ("data", "sync"):
        return _without(ranks, late)
    beyond = 1 - late.excess["host"] / max(ranks.host_work[late.rank], 1)
    factor = max(min(ratio_to_median(ranks.host_work, late.rank), beyond), 0.0)
    return Change(host=factor, proven=True, ranks=only)  # the others hold it up where it does depend on them


def _idle_share(ranks: Ranks, cause: str) -> float:
    return _mean(ranks, lambda r: 100 * r.idle.totals()[cause] / r.breakdown.window)


def _waited_share(ranks: Ranks) -> float:
    """Percent of the ranks' windows that they waited in collectives for others, with nothing beside it."""
    return 100 * sum(ranks.waited) / _windows(ranks)


def _transfer_share(ranks: Ranks) -> float:
    """Percent of the ranks' windows that they communicate alone, without waiting for others."""
    exposed = sum(rank.breakdown.exposed_communication for rank in ranks.ranks)
    return 100 * exposed / _windows(ranks) - _waited_share(ranks)


def _kept_apart_share(ranks: Ranks) -> float:
    """Percent of the ranks' windows that the device communicates alone because the host waits for it."""
    if not ranks.on_gpu or _transfer_share(ranks) < LEAST["communication"]:
        return 0.0
    return 100 * sum(ranks.kept_apart) / _windows(ranks)


def _windows(ranks: Ranks) -> int:
    return sum(rank.breakdown.window for rank in ranks.ranks)


def _mean(ranks: Ranks, figure: Callable[[Rank], float]) -> float:
    return float(np.mean([figure(rank) for rank in ranks.ranks]))


def bound_by(ranks: Ranks) -> str:
    """One line for a run without a cause above its threshold."""
    kinds = by_kind(ranks.ranks[0].trace)
    most = ", ".join(f"{kind} {share:.0f}%" for kind, share in list(kinds.items())[:3])
    return f"compute: {most}" if most else "nothing in particular"


# Of rules with equal gains the more specific comes first.
RULES: tuple[Callable[[Ranks], Verdict | None], ...] = (
    _data, _sync, slow_links, unbalanced, uneven_steps, in_one_function, _host, _short_kernels, _compiling, _operators,
    _operator_storms, _communication, _copies, _stragglers, bubble, late_after_launch,
)  # fmt: skip

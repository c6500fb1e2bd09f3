"""Pipelines: stages of unequal work, and what stages wait for each other.

    stage 0  F F F F ░░░░░░░ B B B B      ░ the bubble: in a send or receive whose other end hasn't come
    stage 1    F F F F ░░░ B B B B          (p - 1) of p - 1 + m micro-batches, by 1F1B's order
    stage 2      FFFFFFFFBBBBBBBBBB       ◄─ more work than the others: they wait for it as well

Stages are ranks that exchange messages. One with more kernels than the mean has more work; one whose kernels take
longer is a slow device. Gloo's messages aren't matched: there the actions' own times tell, which `train` writes beside
the traces (pipeline_steps.py).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from scalewright.diagnose import intervals
from scalewright.diagnose.pipeline_steps import balanced, costs, length, work
from scalewright.diagnose.ranks import Ranks
from scalewright.diagnose.replay import Change
from scalewright.diagnose.traces.kinds import communicates
from scalewright.diagnose.traces.trace import KERNEL
from scalewright.diagnose.verdict import Gain, Verdict, name, ratio_to_median

LEAST_EXCESS = 1.08  # times the mean's work
LEAST_BUBBLE = 10.0  # percent of the window: below, more micro-batches gain little


def unbalanced(ranks: Ranks) -> Verdict | None:
    """The stage with the most work, or the slowest device, where it exceeds the others."""
    works = [{place: _work(ranks, place) for place in chain} for chain in _chains(ranks)]
    work = max(works, key=_excess, default={})
    if not work or (excess := _excess(work)) < LEAST_EXCESS:
        return None
    place = max(work, key=work.__getitem__)
    kernels = {rank: _kernels(ranks, rank) for rank in work}
    mean, mean_kernels = float(np.mean([*work.values()])), float(np.mean([*kernels.values()]))
    evidence = [
        f"{name(ranks, place)} computes {work[place] / 1e6:,.1f} ms, the mean stage {mean / 1e6:,.1f} ms, in "
        f"{kernels[place]:,} kernels of a mean of {mean_kernels:,.0f}"
    ]
    if kernels[place] / mean_kernels - 1 < (excess - 1) / 2:  # as many kernels, each longer
        factor = ratio_to_median([*work.values()], [*work].index(place))
        gain = ranks.gain(Change(compute=factor, ranks=frozenset({place})))
        fix = f"look at {name(ranks, place)}: its clock, temperature and power, or its share of the work"
        return Verdict("straggler", evidence, fix, 0.8, Gain(gain / 2, gain, gain))
    equal = (Change(compute=mean / work[rank], ranks=frozenset({rank})) for rank in work)
    gain = max(ranks.gain(*equal), 0.0)
    fix = f"move layers from {name(ranks, place)} to the others: the embedding, head and loss are work, too"
    return Verdict("stages", evidence, fix, 0.8, Gain(gain / 2, gain, gain))


def uneven_steps(ranks: Ranks) -> Verdict | None:
    """The rank of a recorded pipeline with the most work, where messages aren't matched."""
    if not ranks.pipeline or any(group.message for group in ranks.matched):
        return None
    step, cost = ranks.pipeline[-1], costs(ranks.pipeline)
    shares = work(step, cost)
    mean, most = float(np.mean(shares)), int(np.argmax(shares))
    if shares[most] < LEAST_EXCESS * mean:
        return None
    steps = ranks.ranks[0].steps
    whole = float((steps.host_end - steps.host_start).mean()) / 1e9 if len(steps) else length(step.ranks)
    gain = 100 * balanced(step, cost) / whole
    stages = " and ".join(map(str, step.plan.stages_of(most)))
    line = f"stage {stages} computes {1e3 * shares[most]:,.1f} ms of a step, the mean rank {1e3 * mean:,.1f} ms"
    fix = (
        f"move layers from stage {stages} to the others (stage_layers): the embedding, head and loss are work, too; "
        "if it has no more of them, look at its device"
    )
    return Verdict("stages", [line], fix, 0.7, Gain(gain / 2, gain, gain))


def bubble(ranks: Ranks) -> Verdict | None:
    """The share of the window that stages of equal work wait for each other's messages."""
    share = 100 * sum(ranks.waited_for_messages) / sum(rank.breakdown.window for rank in ranks.ranks)
    uneven = unbalanced(ranks) or uneven_steps(ranks)
    rest = share - (uneven.usual_gain if uneven else 0.0)
    if rest < LEAST_BUBBLE:
        return None
    line = f"stages wait for each other's messages in {share:.1f}% of the window"
    fix = "more micro-batches a step (twice as many halve it), an interleaved schedule, or a zero-bubble one"
    return Verdict("bubble", [line], fix, 0.6, Gain(rest / 4, rest / 2, rest))


def _chains(ranks: Ranks) -> list[list[int]]:
    """Places of ranks that are joined by messages."""
    joined: list[set[int]] = []
    for group in ranks.matched:
        if group.message:
            near = [chain for chain in joined if not chain.isdisjoint(group.ranks)]
            joined = [*(chain for chain in joined if chain not in near), set(group.ranks).union(*near)]
    return [sorted(chain) for chain in joined]


def _excess(work: Mapping[int, int]) -> float:
    return max(work.values()) / max(float(np.mean([*work.values()])), 1.0)


def _work(ranks: Ranks, place: int) -> int:
    return max(intervals.length(ranks.ranks[place].activity.compute), 1)


def _kernels(ranks: Ranks, place: int) -> int:
    trace = ranks.ranks[place].trace
    return int(np.count_nonzero((trace.category == KERNEL) & ~communicates(trace.names)[trace.name]))

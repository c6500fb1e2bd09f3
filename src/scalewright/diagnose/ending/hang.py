"""Watchdogs' lines of all ranks together: who waits in which collective, who is in another one, who never came.

rank 7   SeqNum 80078 BROADCAST      ┐ one number, two operations: these ranks called different collectives,
rank 1   SeqNum 80078 ALLREDUCE      ┘ the fewer ones are named

rank 2   waits in #31, rank 0 enqueued 30: rank 0 never came to #31
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from scalewright.diagnose.ending.events import Event

SHOWN = 8


@dataclass(frozen=True)
class Hang:
    """What the watchdogs tell."""

    evidence: list[str]
    fix: str
    ranks: list[int]  # to look at first
    different: bool = False  # ranks called different collectives


def hang(events: Sequence[Event], world: int | None = None) -> Hang:
    """The timeouts of one end, with the ranks that they point to."""
    waiting = {event.rank: event for event in events if "op" in event.facts and event.rank is not None}
    progress = {event.rank: event for event in events if "enqueued" in event.facts and event.rank is not None}
    evidence, suspects, different = [], [], False
    by_number: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, event in sorted(waiting.items()):
        by_number[int(event.facts["seq"])][_call(event)].append(rank)
    for number, calls in sorted(by_number.items()):
        for call, ranks in calls.items():
            evidence.append(f"{_ranks(ranks)} waited in {call} #{number}")
        if len({call.split(" ")[0] for call in calls}) > 1 or len(calls) > 1:
            different = True
            fewest = min(calls.items(), key=lambda item: len(item[1]))
            most = max(calls.items(), key=lambda item: len(item[1]))
            suspects += fewest[1]
            evidence.append(
                f"#{number} is {fewest[0]} on {_ranks(fewest[1])} and {most[0]} on {_ranks(most[1])}: not the same call"
            )
    first = min(by_number, default=None)
    if first is not None and not different:
        behind = [r for r, event in progress.items() if int(event.facts["enqueued"]) < first]
        later = [
            rank for number, calls in by_number.items() if number > first for ranks in calls.values() for rank in ranks
        ]
        if behind:
            suspects += sorted(behind)
            evidence.append(f"{_ranks(sorted(behind))} had not called #{first}: behind the others")
        elif later:
            early = [rank for ranks in by_number[first].values() for rank in ranks]
            suspects += early
            evidence.append(f"{_ranks(early)} stood at #{first}, the others further on")
        elif world is not None and len(waiting) < world:
            absent = [rank for rank in range(world) if rank not in waiting]
            suspects += absent if len(absent) <= SHOWN else []
            evidence.append(f"{_ranks(absent)} told of no timeout: the first to look at")
    dumps = [path for event in events for key in ("path", "path2") if (path := event.facts.get(key))]
    if dumps:
        evidence.append(f"flight recorder written: {', '.join(dict.fromkeys(dumps[:3]))}")
    return Hang(evidence, _fix(different, dumps), suspects, different)


def _call(event: Event) -> str:
    elements = event.facts.get("elements")
    return f"{event.facts['op']} of {int(elements):,} elements" if elements else event.facts["op"]


def _fix(different: bool, dumps: Sequence[str]) -> str:
    if different:
        return (
            "the ranks' control flow differs there, often at an epoch's end, in an evaluation or a save on one rank "
            "alone: make all ranks call the same collectives in the same order"
        )
    if dumps:
        return f"scalewright diagnose {dumps[0].rpartition('/')[0] or '.'}/ reads the flight recorder: who is where"
    return (
        "see what that rank did then (py-spy dump, its own log); with TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and "
        "TORCH_NCCL_DUMP_ON_TIMEOUT=1 the next one leaves dumps that diagnose reads"
    )


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:SHOWN])) + (f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else "")
    return f"{'ranks' if len(ranks) != 1 else 'rank'} {shown}"


def most_common(values: Sequence[str]) -> str:
    """The value that most have."""
    return Counter(values).most_common(1)[0][0] if values else ""

"""Watchdogs' lines of all ranks together: who waits in which collective, who is in another one, who never came.

rank 7   SeqNum 80078 BROADCAST      ┐ one number, two operations: these ranks called different collectives,
rank 1   SeqNum 80078 ALLREDUCE      ┘ the fewer ones are named

rank 2   waits in #31, rank 0 enqueued 30: rank 0 never came to #31
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scalewright.diagnose.ending.events import Event
from scalewright.diagnose.verdict import named_ranks

SHOWN = 8


@dataclass(frozen=True)
class Hang:
    """What the watchdogs tell."""

    evidence: list[str]
    fix: str
    ranks: list[int]  # to look at first
    different: bool = False  # ranks called different collectives


def hang(events: Sequence[Event], world: int | None = None) -> Hang:
    """The timeouts of one end, with the ranks that they point to; numbers count within a process group."""
    progress = [event for event in events if "enqueued" in event.facts and event.rank is not None]
    waiting = [event for event in events if "op" in event.facts and event.rank is not None]
    by_group: dict[str, list[Event]] = defaultdict(list)
    for event in waiting:
        by_group[_group(event, progress)].append(event)
    evidence, suspects, different = list[str](), list[int](), False
    ranks = {event.rank for event in waiting}
    for group, here in by_group.items():
        its = {event.rank or 0: event for event in progress if _named(event) in (group, "") or not group}
        everyone = len(by_group) == 1 and (not group or "default" in group)
        lines, accused, differ = _of_group(here, its, world if everyone else None)
        evidence += [f"{line}, in group {group}" for line in lines] if len(by_group) > 1 else lines
        suspects, different = suspects + accused, different or differ
    suspects = [rank for rank in suspects if rank not in ranks] or suspects  # who waits elsewhere waits for another one
    if len(ranks) == 1 and not suspects:
        evidence.append(f"only rank {waiting[0].rank} tells of a timeout here: see who never came in the others' logs")
    dumps = [path for event in events for key in ("path", "path2") if (path := event.facts.get(key))]
    if dumps:
        evidence.append(f"flight recorder written: {', '.join(dict.fromkeys(dumps[:3]))}")
    return Hang(evidence, _fix(different, dumps), suspects, different)


def _named(event: Event) -> str:
    """A process group by the name that all ranks have for it: of `0 PG GUID 5(tp)` what stands behind GUID."""
    return event.facts.get("group", "").rpartition("GUID ")[2]


def _group(event: Event, progress: Sequence[Event]) -> str:
    """A timeout's group; in older lines only the same rank's next one has it."""
    number = int(event.facts["seq"])
    for other in progress if "group" not in event.facts else ():
        if other.rank == event.rank and int(other.facts["completed"]) < number <= int(other.facts["enqueued"]):
            return _named(other)
    return _named(event)


def _of_group(
    here: Sequence[Event], progress: Mapping[int, Event], world: int | None
) -> tuple[list[str], list[int], bool]:
    """What the timeouts of one group tell, the ranks to look at, and whether they called different things."""
    evidence, suspects, different = list[str](), list[int](), False
    waiting = {event.rank: event for event in here if event.rank is not None}
    by_number: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, event in sorted(waiting.items()):
        by_number[int(event.facts["seq"])][_call(event)].append(rank)
    for number, calls in sorted(by_number.items()):
        evidence += [f"{named_ranks(ranks, SHOWN)} waited in {call} #{number}" for call, ranks in calls.items()]
        if len(calls) > 1:
            different = True
            fewest = min(calls.items(), key=lambda item: len(item[1]))
            most = max(calls.items(), key=lambda item: len(item[1]))
            suspects += fewest[1]
            few, many = (f"{call} on {named_ranks(ranks, SHOWN)}" for call, ranks in (fewest, most))
            evidence.append(f"#{number} is {few} and {many}: not the same call")
    first = min(by_number)
    behind = sorted(rank for rank, event in progress.items() if int(event.facts["enqueued"]) < first)
    if different:
        return evidence, suspects, True
    if behind:
        suspects += behind
        evidence.append(f"{named_ranks(behind, SHOWN)} had not called #{first}: behind the others")
    elif len(by_number) > 1:
        suspects += [rank for ranks in by_number[first].values() for rank in ranks]
        evidence.append(f"{named_ranks(suspects, SHOWN)} stood at #{first}, the others further on")
    elif world is not None and 1 < len(waiting) < world:
        absent = [rank for rank in range(world) if rank not in waiting]
        suspects += absent if len(absent) <= SHOWN else []
        evidence.append(f"{named_ranks(absent, SHOWN)} told of no timeout: the first to look at")
    return evidence, suspects, False


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

"""The end of a job, from its events: the first cause, and what followed from it.

1  ends that training went on after (steps stand behind them) are restarts: the last one counts
2  hardware and a scheduler's word come before what processes tell of themselves, an exception before a signal
3  of two causes of one kind the earlier: by their times where all have one, else by their lines
4  what only tells that another rank is gone is a consequence; it is named where there is no cause

    finished   time limit   preempted   cancelled   device / host out of memory   raised   hung   hardware   ...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scalewright.diagnose.ending import signs
from scalewright.diagnose.ending.events import Event
from scalewright.diagnose.ending.hang import Hang, hang
from scalewright.diagnose.ending.memory import out_of_memory
from scalewright.diagnose.ending.signs import SIGNALS, xid
from scalewright.spec.common.formatting import counted

# Of causes near each other the lower one made the others. A watchdog's timeout comes long after what it waits for.
ORDER = {
    signs.HARDWARE: 0, signs.STOPPED: 1, signs.HOST_MEMORY: 2, signs.DEVICE_MEMORY: 2, signs.STORAGE: 3, signs.DATA: 3,
    signs.RAISED: 4, signs.HUNG: 5, signs.KILLED: 6,
}  # fmt: skip
SHOWN, WIDE, LINE = 4, 160, 300  # lines, characters
LATE = 2  # steps that other ranks may still print


@dataclass(frozen=True)
class Ending:
    """How a job ended; `kind` is one of signs.py's."""

    kind: str
    what: str  # in a few words: `rank 3: device out of memory`
    evidence: list[str]
    fix: str
    rank: int | None = None
    host: str | None = None
    facts: Mapping[str, float | str] | None = None
    consequences: int = 0  # lines that follow from it

    def dump(self) -> dict[str, object]:
        """`ended` of `diagnose --json`."""
        return {"how": self.kind, "what": self.what, "rank": self.rank, "host": self.host, "facts": self.facts or {}}


def ending(events: Sequence[Event], world: int | None = None, steps: int = 0) -> Ending | None:
    """The end that these events tell of; None where they tell of none. `steps`: of training, in all.

    What steps follow isn't the end: a restart, or an exception that was caught.
    """
    events = [event for event in events if event.steps >= steps - LATE]
    causes = [event for event in events if event.grade == signs.CAUSE and not _harmless(event)]
    if not causes:
        finished = [event for event in events if event.kind == signs.FINISHED]
        noticed = [event for event in events if event.grade == signs.CONSEQUENCE]
        if finished and (not noticed or finished[-1].order > noticed[-1].order):
            return Ending(signs.FINISHED, "finished", [finished[-1].text], "")
        if noticed:
            return _noticed(noticed)
        return None
    first = _located(min(causes, key=lambda event: (_weight(event, causes), _when(event, causes))), causes)
    others = len([event for event in events if event is not first and event.grade != signs.END])
    if first.kind == signs.HUNG:
        return _hung(events, first, world, others)
    return _ending(first, causes, others)


def _located(event: Event, causes: Sequence[Event]) -> Event:
    """The same event with the rank that another line about this process names."""
    pid = event.facts.get("pid")
    for other in causes:
        if event.rank is None and pid and other.facts.get("pid") == pid and other.rank is not None:
            return replace(event, rank=other.rank, host=other.host)
    return event


def _harmless(event: Event) -> bool:
    """An exit code of a process that a launcher ended, or that ended well."""
    code = event.facts.get("code")
    return code in ("0", "1", "15", "-15", "143") or event.facts.get("name") == "SIGTERM"


def _weight(event: Event, causes: Sequence[Event]) -> int:
    if event.name == "Xid" and xid(int(event.facts["xid"])).software:
        return ORDER[signs.KILLED]
    if event.kind == signs.STOPPED and any(
        other.kind != signs.STOPPED and other.order < event.order for other in causes
    ):
        return ORDER[signs.HUNG]  # the job had failed before its limit
    return ORDER[event.kind]


def _when(event: Event, causes: Sequence[Event]) -> float:
    dated = all(other.seconds is not None for other in causes)
    return event.seconds if dated and event.seconds is not None else event.order


def _who(event: Event) -> str:
    names = [f"rank {event.rank}"] * (event.rank is not None) + [event.host] * (event.host is not None)
    return " on ".join(name for name in names if name)


def _ending(event: Event, causes: Sequence[Event], others: int) -> Ending:
    who = _who(event)
    facts: Mapping[str, float | str] = {}
    what, fix, evidence = event.name, event.fix, [event.text[:LINE]]
    if event.kind == signs.DEVICE_MEMORY:
        sizes = out_of_memory(event.text)
        evidence = [*sizes.evidence(), *evidence]
        fix = sizes.fix() or fix
        facts = {key: round(value / 2**30, 3) for key, value in vars(sizes).items() if isinstance(value, float)}
    elif event.name == "Xid":
        number = int(event.facts["xid"])
        what = f"Xid {number}: {xid(number).what}"
        facts = {"xid": number, "pci": event.facts["pci"]}
        if xid(number).software:
            fix = "a kernel's own fault: compute-sanitizer, or CUDA_LAUNCH_BLOCKING=1, shows which one"
    elif event.kind == signs.KILLED:
        what, fix = _killed(event)
    elif event.kind == signs.RAISED:
        what = f"{event.name}: {event.facts.get('words', '')}".rstrip(": ")[:WIDE]
        fix = fix or "mend what raised it; the messages of other ranks follow from it"
    if event.place:
        evidence.append(f"raised in {event.place}")
    same = {other.rank for other in causes if other.name == event.name and other.rank is not None}
    if len(same) > 1:
        evidence.append(f"{counted(len(same), 'ranks')} tell of it; the first one is rank {event.rank}")
    return Ending(event.kind, f"{who}: {what}" if who else what, evidence, fix, event.rank, event.host, facts, others)


def _killed(event: Event) -> tuple[str, str]:
    """What a signal or an exit code means, and what to do."""
    code = event.facts.get("code")
    number = abs(int(code)) - (128 if code and int(code) > 128 else 0) if code else None
    name = (
        event.facts.get("name")
        or (SIGNALS.get(number) if number is not None else event.facts.get("signal"))
        or f"code {code}"
    )
    if name in ("SIGKILL", "Killed", "Out Of Memory"):
        return f"killed by {name}", (
            "nothing of the process tells why: most often the host's memory (dmesg | grep -i oom, the job's MaxRSS), "
            "else a limit of the scheduler's"
        )
    if name in ("SIGSEGV", "Segmentation fault", "SIGBUS", "Bus error"):
        return f"ended by {name}", "a library's own fault, or /dev/shm that is full: python -X faulthandler shows where"
    if name in ("SIGABRT", "Aborted"):
        return f"ended by {name}", "a library ended the process on purpose, often NCCL's watchdog: see the lines before"
    return f"ended with {name}", "see the lines of that rank before its end"


def _hung(events: Sequence[Event], first: Event, world: int | None, others: int) -> Ending:
    found: Hang = hang(events, world)
    suspects = f": look at rank {found.ranks[0]}" if len(found.ranks) == 1 else ""
    if found.different:
        what = f"ranks called different collectives{suspects}"
    else:
        what = f"{first.name}{suspects}"
    came = first.facts.get("came")
    if came:
        what = f"{int(first.facts['wanted']) - int(came)} of {first.facts['wanted']} processes never came"
    evidence = found.evidence or [first.text[:LINE]]
    return Ending(
        signs.HUNG, what, evidence, found.fix, found.ranks[0] if len(found.ranks) == 1 else None, None, None, others
    )


def _noticed(events: Sequence[Event]) -> Ending:
    first = events[0]
    evidence = [event.text[:LINE] for event in events[:SHOWN]]
    fix = "the rank that ended first isn't in these lines: look at the other ranks' and nodes' output, dmesg and sacct"
    return Ending(
        signs.KILLED,
        f"{_who(first) or 'a rank'} noticed that another one was gone",
        evidence,
        fix,
        first.rank,
        first.host,
    )

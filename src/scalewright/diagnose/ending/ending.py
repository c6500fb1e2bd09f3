"""The end of a job, from its events: the first cause, and what followed from it.

1  ends that training went on after (steps stand behind them, or the end of all of it) are restarts: the last one counts
2  hardware and a scheduler's word come before what processes tell of themselves, an exception before a signal
3  of two causes of one kind the earlier: by their times where all have one, else by their lines
4  what only tells that another rank is gone is a consequence; it is named where there is no cause

    finished   time limit   preempted   cancelled   device / host out of memory   raised   hung   hardware   ...
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from scalewright.diagnose.ending import out_of_memory, signs
from scalewright.diagnose.ending.events import Event
from scalewright.diagnose.ending.hang import hang
from scalewright.diagnose.ending.signs import SIGNALS, xid
from scalewright.spec.common.formatting import counted

# Of causes near each other the lower one made the others. A watchdog's timeout comes long after what it waits for.
ORDER = {
    signs.HARDWARE: 0, signs.STOPPED: 1, signs.HOST_MEMORY: 2, signs.DEVICE_MEMORY: 2, signs.STORAGE: 3, signs.DATA: 3,
    signs.RAISED: 4, signs.HUNG: 5, signs.KILLED: 6,
}  # fmt: skip
# Exceptions in which another one, or a line beside them, tells more.
ONLY_REPORTS = re.compile(
    r"NCCL error in:|backend='\w+' raised|returned non-zero exit status|Caught \w+ in \w+ worker process"
)
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

    @property
    def needed_gib(self) -> float | None:
        """What a device held and was asked for, where an out-of-memory line has both."""
        facts = {key: value for key, value in (self.facts or {}).items() if isinstance(value, float)}
        held = facts.get("in_use") or facts.get("capacity", 0.0) - facts.get("free", 0.0)
        return held + facts["tried"] if held and "tried" in facts else None

    def dump(self) -> dict[str, object]:
        """`ended` of `diagnose --json`."""
        return {"how": self.kind, "what": self.what, "rank": self.rank, "host": self.host, "facts": self.facts or {}}


def ending(events: Sequence[Event], world: int | None = None, steps: int = 0) -> Ending | None:
    """The end that these events tell of; None where they tell of none. `steps`: of training, in all.

    What steps follow isn't the end: a restart, or an exception that was caught.
    """
    events = [event for event in events if event.steps >= steps - LATE]
    finished = [event for event in events if event.kind == signs.FINISHED]
    whole = {event.rank: event.order for event in finished if event.name == "finished"}  # the last of each rank
    causes = [event for event in events if event.grade == signs.CAUSE and not _harmless(event)]
    causes = [event for event in causes if event.order > whole.get(event.rank, 0) or event.kind == signs.HARDWARE]
    if not causes:
        noticed = [event for event in events if event.grade == signs.CONSEQUENCE]
        if finished and (not noticed or finished[-1].order > noticed[-1].order):
            return Ending(signs.FINISHED, "finished", [finished[-1].text], "")
        failed = [event for event in events if event.facts.get("code") == "1"]
        if failed and all(event.name == "the launcher ended it" for event in noticed):
            return _ending(_located(failed[0], failed), failed)  # what it raised isn't in these lines
        return _noticed(noticed) if noticed else None
    first = _located(min(causes, key=lambda event: (_weight(event, causes), _when(event, causes))), causes)
    return _hung(events, first, world) if first.kind == signs.HUNG else _ending(first, causes)


def ends_before(events: Sequence[Event], lives: Sequence[int]) -> dict[str, int]:
    """How often each end was that of a life which a restart followed; `lives`: the steps of each but the last."""
    ends: Counter[str] = Counter()
    for done in accumulate(lives):
        end = ending([event for event in events if done - LATE <= event.steps <= done])
        if end is not None and end.kind != signs.FINISHED:
            ends[end.what] += 1
    return dict(ends)


def _located(event: Event, causes: Sequence[Event]) -> Event:
    """The same event with the rank that another line about this process names, or the node that it does."""
    pid = event.facts.get("pid")
    for other in causes:
        if event.host is None and event.name == other.name == "node failed" and other.host:
            return replace(event, host=other.host)
        if event.rank is None and pid and other.facts.get("pid") == pid and other.rank is not None:
            return replace(event, rank=other.rank, host=other.host)
    return event


def _harmless(event: Event) -> bool:
    """An exit code of a process that a launcher ended, or that ended well."""
    code = event.facts.get("code")
    return code in ("0", "1", "15", "-15", "143") or event.facts.get("name") == "SIGTERM"


def _weight(event: Event, causes: Sequence[Event]) -> float:
    if event.name == "a network adapter's retries ran out":  # a rank that ended made them
        return max(ORDER.values()) + 1
    if event.kind == signs.RAISED and ONLY_REPORTS.search(event.text):
        return ORDER[signs.RAISED] + 0.5
    if event.name == "Xid" and xid(int(event.facts["xid"])).software:
        return ORDER[signs.KILLED]
    if event.kind == signs.STOPPED and any(
        other.kind != signs.STOPPED and other.order < event.order for other in causes
    ):
        return ORDER[signs.KILLED] + 0.5  # the job had failed before its limit, or its other tasks were ended
    return ORDER[event.kind]


def _when(event: Event, causes: Sequence[Event]) -> float:
    dated = all(other.seconds is not None for other in causes)
    return event.seconds if dated and event.seconds is not None else event.order


def _who(event: Event) -> str:
    local = event.facts.get("local_rank")  # where no line has its rank among all
    rank = f"rank {event.rank}" if event.rank is not None else f"local rank {local}" if local else None
    return " on ".join(name for name in (rank, event.host) if name)


def _ending(event: Event, causes: Sequence[Event]) -> Ending:
    who = _who(event)
    facts: Mapping[str, float | str] = {}
    what, fix, evidence = event.name, event.fix, [event.text[:LINE]]
    if event.kind == signs.DEVICE_MEMORY:
        sizes = out_of_memory.sizes_of(event.text)
        evidence = [*out_of_memory.evidence(event.text, sizes), *evidence]
        fix = out_of_memory.fix(sizes) or fix
        facts = {name: round(size / 2**30, 3) for name, size in sizes.items()}
    elif event.name == "Xid":
        number = int(event.facts["xid"])
        what = f"Xid {number}: {xid(number).what}"
        facts, fix = {"xid": number, "pci": event.facts["pci"]}, signs.fix(xid(number).fix)
        if xid(number).software:
            fix = "a kernel's own fault: compute-sanitizer, or CUDA_LAUNCH_BLOCKING=1, shows which one"
    elif event.kind == signs.KILLED:
        what, fix = _killed(event)
    elif event.kind == signs.RAISED or "words" in event.facts:
        what = f"{event.name}: {event.facts.get('words', '').strip(': ')}".rstrip(": ")[:WIDE]
        fix = fix or signs.advice(event.text) or "mend what raised it; the messages of other ranks follow from it"
    if event.place:
        evidence.append(f"raised in {event.place}")
    same = {other.rank for other in causes if other.name == event.name and other.rank is not None}
    if len(same) > 1:
        evidence.append(f"{counted(len(same), 'ranks')} tell of it; the first one is rank {event.rank}")
    return Ending(event.kind, f"{who}: {what}" if who else what, evidence, fix, event.rank, event.host, facts)


def _killed(event: Event) -> tuple[str, str]:
    """What a signal or an exit code means, and what to do."""
    code = event.facts.get("code")
    number = None
    if code and (int(code) < 0 or int(code) > 128 or "on signal" in event.text):  # else the program's own
        number = abs(int(code)) % 128
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


def _hung(events: Sequence[Event], first: Event, world: int | None) -> Ending:
    watchdogs = hang(events, world)
    suspect = watchdogs.ranks[0] if len(watchdogs.ranks) == 1 else None
    what = "ranks called different collectives" if watchdogs.different else first.name
    what += "" if suspect is None else f": look at rank {suspect}"
    fix = first.fix or watchdogs.fix
    if "words" in first.facts:  # of our own trainer, which compared the ranks itself
        what = first.facts["words"]
    came = first.facts.get("came")
    if came:
        what = f"{int(first.facts['wanted']) - int(came)} of {first.facts['wanted']} processes never came"
    return Ending(signs.HUNG, what, watchdogs.evidence or [first.text[:LINE]], fix, suspect)


def _noticed(events: Sequence[Event]) -> Ending:
    first = events[0]
    evidence = [event.text[:LINE] for event in events[:SHOWN]]
    if all(event.name == "KeyboardInterrupt" for event in events):
        return Ending(signs.STOPPED, "interrupted at its terminal (SIGINT)", evidence, signs.fix("limit"))
    sent = next((event for event in events if event.name == "the launcher was sent a signal"), None)
    # DeepSpeed ends its ranks first and then tells why: what the others noticed may stand between.
    ended = [
        event.order for event in events if event.name in ("the launcher was sent a signal", "the launcher ended it")
    ]
    if sent is not None and all(event.order > min(ended) for event in events if event.name == "another rank ended"):
        name = sent.facts.get("name") or SIGNALS.get(int(sent.facts.get("number", 0)), "a signal")
        return Ending(sent.kind, f"the launcher was sent {name}", evidence, sent.fix, None, sent.host)
    fix = "the rank that ended first isn't in these lines: look at the other ranks' and nodes' output, dmesg and sacct"
    what = f"{_who(first) or 'a rank'} noticed that another one was gone"
    return Ending(signs.KILLED, what, evidence, fix, first.rank, first.host)

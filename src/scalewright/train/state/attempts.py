"""A run's failures, as its events have them, and what the next start makes of them.

    fault {failure, step, ranks, detect_s}     each, by who noticed: the launcher of local ranks, rank 0, or the next
                                               start where rank 0 died without a word
    the same failure at the same step          the third: the newest checkpoint is set aside (`back`), and the run
                                               goes on from the one before; again: it wasn't the checkpoint, which
                                               gets its name back, and the run stops (`gave_up`)
    ten failures, none of them further         it stops

A failure is the same when its exception and the place are, or the cause of a death. All of it is read from
events.jsonl, so that it outlives every process: torchrun's agents, a requeued job, a pod that is new.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewright.checkpoint.format import STEP_FOLDER, committed, free_name
from scalewright.launch.deaths import likeness
from scalewright.spec.common.formatting import counted
from scalewright.spec.common.jsonl import read_jsonl
from scalewright.spec.common.untrusted import parse_json
from scalewright.spec.errors import RunError
from scalewright.track.events import EventsFile

ALIKE = 3  # failures of a kind at a step
STUCK = 10  # failures of any kind, none of which got further
STARTS, ENDS = ("start", "resume"), ("finish", "stop")
TAIL = 1 << 18  # bytes of metrics.jsonl that hold its last training row
SILENT = "its ranks ended without a word"
Event = Mapping[str, Any]


class GaveUpError(RunError):
    """A run that fails in the same way again and again: no further start of the same would change that."""


@dataclass(frozen=True)
class Verdict:
    """What becomes of a run after its failures."""

    back: bool = False  # the newest checkpoint may be at fault
    stop: str = ""  # why it is over


def _read_events(folder: Path) -> list[dict[str, Any]]:
    """A run's events, but for those that damage left with something else in a number's place."""
    rows = read_jsonl(folder / "events.jsonl")
    return [row for row in rows if all(_is_number(row.get(key, 0)) for key in ("time", "step", "detect_s"))]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def judge(events: Sequence[Event]) -> Verdict:
    """The verdict on the failures since the run last ended by itself, or was given up."""
    failures: list[tuple[str, int]] = []  # newest first
    went_back = False
    for event in reversed(events):
        kind = event.get("kind")
        if event.get("gave_up") or kind in ENDS:
            break
        if kind == "fault" and "failure" in event:
            failures.append((str(event["failure"]), int(event.get("step", 0))))
        went_back = went_back or kind == "back"
    alike = next((n for n, failure in enumerate(failures) if failure != failures[0]), len(failures))
    if alike >= ALIKE:
        again = f"{counted(alike, 'times')} the same failure at step {failures[0][1]}"
        return Verdict(stop=f"{again}, also from the checkpoint before") if went_back else Verdict(back=True)
    if len(failures) >= STUCK and max(step for _, step in failures[: STUCK - 1]) <= failures[STUCK - 1][1]:
        return Verdict(stop=f"{STUCK} failures, and none got beyond step {failures[STUCK - 1][1]}")
    return Verdict()


def decide(folder: Path, error: RunError | None = None) -> str:
    """Acts on the verdict: a line where a checkpoint was set aside, else ''. Raises GaveUpError. Rank 0, or who started
    local ranks, calls it before the next start; `error`: the newest failure."""
    events = _read_events(folder)
    verdict = judge(events)
    reason = next((event.get("message", "") for event in reversed(events) if event.get("kind") == "fault"), "")
    reason = str(error or reason)
    line = _set_newest_aside(folder, events) if verdict.back else ""
    if verdict.back and not line:
        verdict = Verdict(stop=f"{ALIKE} times the same failure, and there is no checkpoint to go back to")
    if verdict.stop:
        _bring_back(folder, events)
        raise GaveUpError(f"the run was given up ({verdict.stop}): {reason}")
    return line


def _set_newest_aside(folder: Path, events: Sequence[Event]) -> str:
    """Renames the newest checkpoint, if the run has an older one, or begins anew without losing more than that."""
    saves = committed(folder / "checkpoints")
    only = len({event.get("step") for event in events if event.get("kind") == "save"}) == 1
    if not saves or (len(saves) == 1 and not only):
        return ""
    aside = saves[0].rename(free_name(saves[0], "aside")).name
    on = f"on from {saves[1].name}" if saves[1:] else "begins anew"
    line = f"set {saves[0].name} aside after {ALIKE} failures alike: the run goes {on}".replace("goes begins", "begins")
    write_event(folder, "back", message=line, aside=aside)
    return line


def went_back(folder: Path) -> bool:
    """Whether this start goes on behind a checkpoint that was set aside: a copy elsewhere is no newer one."""
    kinds = [event.get("kind") for event in _read_events(folder)]
    return next((kind for kind in reversed(kinds) if kind in (*STARTS, "back")), "") == "back"


def _bring_back(folder: Path, events: Sequence[Event]) -> None:
    """Gives a checkpoint that was set aside for nothing its name again, if no later save has it."""
    for event in (event for event in events if event.get("kind") == "back"):
        name, root = str(event.get("aside")), folder / "checkpoints"
        step = name.partition(".")[0]
        if Path(name).name == name and STEP_FOLDER.match(step) and not (root / step).exists():  # a line is anybody's
            with suppress(OSError):
                (root / name).rename(root / step)


def note_failure(folder: Path, error: Exception, **fields: Any) -> None:
    """Leaves the reason in events.jsonl, if the run got as far as having a folder."""
    known = isinstance(error, RunError)
    if isinstance(error, GaveUpError):
        fields["gave_up"] = True
    else:
        failure = getattr(error, "failure", "")
        failure = failure or likeness(error, "" if known else "".join(traceback.format_exception(error)))
        fields |= {"failure": failure, "step": last_step(folder)}
    if ranks := getattr(error, "ranks", ()):
        fields["ranks"] = list(ranks)
    write_event(folder, "fault", message=f"{error}" or type(error).__name__, **fields)


def note_silent_end(folder: Path) -> None:
    """The failure of a life that nobody noted: rank 0 and what started it were killed, or their node was."""
    last = [event for event in _read_events(folder) if event.get("kind") in (*STARTS, *ENDS, "fault")]
    lives = [place for place, event in enumerate(last) if event["kind"] in STARTS]
    if not lives or any("failure" in event or event["kind"] in ENDS for event in last[lives[-1] :]):
        return
    files = [folder / name for name in ("events.jsonl", "metrics.jsonl")]
    when = max(file.stat().st_mtime for file in files if file.exists())
    write_event(folder, "fault", time=when, message=SILENT, failure=SILENT, step=last_step(folder))


def write_event(folder: Path, kind: str, **fields: Any) -> None:
    """Appends one event, where the folder is there and takes it."""
    if folder.is_dir():
        with suppress(OSError, RunError):
            events = EventsFile(folder / "events.jsonl")
            events.write(kind, **fields)
            events.close()


def last_step(folder: Path) -> int:
    """The last step that a run has a row of; 0 without any."""
    path, rows = folder / "metrics.jsonl", list[Any]()
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL))
        for text in file.read().splitlines():
            with suppress(ValueError):  # half a line
                rows.append(parse_json(text))
    steps = [row.get("step") for row in rows if isinstance(row, dict) and row.get("kind") == "train"]
    return next((step for step in reversed(steps) if type(step) is int), 0)


@dataclass
class Recovery:
    """Seconds from a failure to the first step after it, for the event `restart`; rank 0's."""

    fault: Event
    number: int  # of the run's restarts
    was: int | None  # ranks before
    begun: float  # of the fault, in seconds since 1970
    in_process: bool = False  # ranks that were left have gone on, or have taken in others
    met: float = 0.0
    loaded: float = 0.0

    def fields(self, ranks: int) -> dict[str, Any]:
        """The event's fields, at the end of the first step; without `detect_s` where a launcher noticed the failure and
        nobody measured how long it took."""
        noticed = {"detect_s": float(seconds)} if (seconds := self.fault.get("detect_s")) is not None else {}
        more = {"in_process": True} if self.in_process else {}
        parts = {
            **noticed, "rendezvous_s": self.met - self.begun, "load_s": self.loaded - self.met,
            "first_step_s": time.time() - self.loaded,
        }  # fmt: skip
        seconds = {key: round(max(0.0, value), 3) for key, value in parts.items()}
        about = {"attempt": self.number, "world": ranks, "world_before": self.was, "error": self.fault.get("failure")}
        return {**about, **more, **seconds, "seconds": round(sum(seconds.values()), 3)}


def find_recovery(folder: Path) -> Recovery | None:
    """The failure that this start comes after, or the taking in of ranks; None where the run ended otherwise, or never
    began."""
    events = _read_events(folder)
    breaks = [n for n, event in enumerate(events) if "time" in event and _is_break(event)]
    place = breaks[-1] if breaks else None
    if place is None or any(event.get("kind") in (*STARTS, *ENDS) for event in events[place:]):
        return None
    was = next((event.get("world") for event in reversed(events) if event.get("kind") in STARTS), None)
    number = 1 + sum(event.get("kind") == "restart" for event in events)
    return Recovery(events[place], number, was, float(events[place]["time"]))


def _is_break(event: Event) -> bool:
    return "failure" in event or event.get("kind") == "regroup"

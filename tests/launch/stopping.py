"""One run that is disturbed: asked to stop, or robbed of a rank; then started again until it ends.

step 3 ──► SIGTERM, ... or kill -9 ──► the end of all: code, seconds, steps of each rank, processes left
                                       └─ the same command, or the scheduler's requeue ──► the last step
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.launch.launchers import Attempt, Launcher, Services, family

from runs import alive, events, run_data, steps_done, wait_for, write_run

STEPS, EVERY = 40, 4  # of the run, and between its own checkpoints
PAUSE_S = 0.12  # of each of a step's two micro-batches: long enough to be disturbed
LIMIT, LIMITED_S = "0:14", 0.3  # a start on a busy machine fits into the limit, and 40 steps don't
SLOW_S = 1.5  # where a launcher kills two seconds after it was asked
STARTS = 5  # attempts after the first: more, and the run would never end
LEAVE_S = 15.0  # after the launcher's end, for processes on their way out
KILL, TWICE = "kill -9", "SIGINT twice"


@dataclass
class Ending:
    """What a disturbance led to."""

    code: int | str  # the launcher's, as its user sees it
    seconds: float  # from the disturbance to the launcher's end
    stop: dict[str, Any] | None  # the event of that attempt: all ranks agreed on a step, and saved
    committed: bool  # that step's checkpoint, before anything was started again
    done: dict[int, float]  # steps that each rank has behind it, by what the ranks themselves wrote
    left: list[str]  # commands of processes that stayed
    text: str
    codes: list[int | str] = field(default_factory=list)  # of the attempts that followed


def data_of(folder: Path, ranks: int, **launch: Any) -> dict[str, Any]:
    """A tiny run of one rank or two, the same for every launcher."""
    marks = folder / "marks"
    marks.mkdir(exist_ok=True)
    return run_data(
        folder,
        layout={"devices": ranks, "zero_stage": 3 if ranks > 1 else 0, "micro_batch": 4 // ranks},
        loss={"python": "parts:watched", "folder": str(marks)},
        train={"steps": STEPS},
        checkpoint={"every": EVERY, "at_end": True},
        launch=launch,
    )


def keys_of(launcher: Launcher, services: Services, folder: Path, way: str) -> dict[str, Any]:
    """The keys of `launch:` for this disturbance."""
    keys = launcher.keys(services, folder)
    if way == KILL and launcher.restarts:
        return {**keys, "max_restarts": 1}
    if way == "time limit" and launcher.name == "launch slurm":
        return {**keys, "time_limit": "2", "save_before_s": 75}  # Slurm counts in minutes
    return {**keys, "time_limit": LIMIT, "save_before_s": 1} if way == "time limit" else keys


def disturb(folder: Path, launcher: Launcher, services: Services, way: str, pause_s: float = PAUSE_S) -> Ending:
    """Starts, disturbs after three steps, waits for the end, and starts again until the last step is done."""
    keys = keys_of(launcher, services, folder, way)
    write_run(folder, data_of(folder, launcher.ranks, **keys))
    pause = folder / "marks" / "pause"
    pause.write_text(str(pause_s))
    out = folder / "out"
    attempt = launcher.begin(folder, services)
    try:
        wait_for(lambda: steps_done(out) >= 3 or attempt.over, 120, "three steps")
        assert not attempt.over, attempt.finish(10) or attempt.text
        members = family(folder)
        since = time.monotonic()
        _disturb(attempt, folder, way)
        if way == KILL:  # the rest of the run, where the launcher starts the rank again
            last = launcher.ranks - 1
            wait_for(lambda: len(marks(folder)[last]) > 1 or attempt.over, 120, "an end, or another rank")
            pause.unlink()
        code = attempt.finish(120)
        seconds = time.monotonic() - since
        pause.unlink(missing_ok=True)
        ending = Ending(code, seconds, *_stop(out), _done(folder, out), _left(folder, members), attempt.text)
        if way not in (KILL, TWICE):
            assert set(attempt.codes) <= {code}, attempt.text
        keys = launcher.keys(services, folder)  # without a limit
        write_run(folder, data_of(folder, launcher.ranks, **keys))
        while [code, *ending.codes][-1] != 0 and len(ending.codes) < STARTS:
            attempt = attempt.again()
            ending.codes.append(attempt.finish(120))
            ending.text += attempt.text
        return ending
    finally:
        attempt.end()


def _disturb(attempt: Attempt, folder: Path, way: str) -> None:
    if way == KILL:
        last = marks(folder)[max(marks(folder))]
        os.kill(list(last)[-1], signal.SIGKILL)
    elif way == "file STOP":
        (folder / "out" / "STOP").touch()
    elif way == TWICE:
        attempt.ask("SIGINT")
        time.sleep(0.3)
        attempt.ask("SIGINT")
    elif way != "time limit":
        attempt.ask(way)


def marks(folder: Path) -> dict[int, Counter[int]]:
    """The micro-batches that each rank's processes did, oldest first: of rank 1, {4711: 12, 4750: 68}."""
    return {
        int(path.name.removeprefix("rank-")): Counter(map(int, path.read_text().split()))
        for path in sorted((folder / "marks").glob("rank-*"))
    }


def _done(folder: Path, out: Path) -> dict[int, float]:
    resumed = [event["step"] for event in events(out, "resume")]
    return {
        rank: list(calls.values())[-1] / 2 + (resumed[-1] if resumed else 0) for rank, calls in marks(folder).items()
    }


def _stop(out: Path) -> tuple[dict[str, Any] | None, bool]:
    """The newest attempt's stop, and whether its checkpoint is whole."""
    last = [event for event in events(out) if event["kind"] in ("start", "resume", "stop")][-1]
    if last["kind"] != "stop":
        return None, False
    return last, (out / "checkpoints" / f"step-{last['step']:08d}" / "COMMIT").exists()


def _left(folder: Path, members: list[int]) -> list[str]:
    """Commands of the run's processes that don't leave."""
    import psutil

    deadline = time.monotonic() + LEAVE_S
    while (left := {*family(folder), *alive(members)}) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [" ".join(psutil.Process(pid).cmdline()) for pid in left]

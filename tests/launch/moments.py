"""One signal at some moment of a run's life, whichever; then the same command until the run is finished.

start ─ imports ─ checks ─ workers ─ meeting ─ build ─ steps, validations, saves ─ finish ─ report ─ end
  └── before Python hears signals: the signal's own code      └── elsewhere: 75, or 0 once it is finished
"""

from __future__ import annotations

import json
import platform
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from tests.launch.launchers import Attempt, Launcher, Services, family
from tests.launch.stopping import STARTS, _left, data_of
from tests.launch.stops_table import expected, table

from runs import bits, events, merge, steps_done, weights, write_run
from scalewright.launch.begin import cores

STEPS, EVERY, PAUSE_S = 8, 4, 0.03
LONG, CHAIN = 32, 8  # steps of a run of random moments, and its attempts that get a signal
PHASES = ("start of Python", "before the first step", "steps", "validation", "save", "after the last step")

FOREIGN = ("torchrun", "mpirun, Open MPI", "srun")


@dataclass
class Strike:
    """What a signal led to."""

    launcher: str
    way: str
    phase: str  # of PHASES, as the run's files and processes show it
    at_s: float  # after the start
    code: int | str
    seconds: float  # from the signal to the end
    left: list[str]
    text: str
    codes: list[int | str] = field(default_factory=list)  # of the attempts that followed
    same: bool = False  # bit for bit: metrics, weights and states of the optimizer of an undisturbed run

    @property
    def expected(self) -> tuple[int | str, ...]:
        """The codes that the moment allows."""
        saved, killed = expected(self.launcher, self.way).code, 128 + signal.Signals[self.way]
        if self.launcher in FOREIGN:  # what it makes of a signal is its own affair
            return (0, 1, killed, saved)
        if self.phase == PHASES[0]:
            return (killed, saved)
        if self.phase == PHASES[-1]:
            return (0, saved)
        return (saved,) if self.text.count("finished") == 0 else (0, saved)


def moments_of(folder: Path, ranks: int, steps: int = STEPS, **launch: Any) -> dict[str, Any]:
    """A run whose validations and saves take a share of its life that a signal can hit."""
    train = {"steps": steps, "valid_every": EVERY, "valid_batches": 40}
    return merge(data_of(folder, ranks, **launch), {"train": train, "checkpoint": {"every": EVERY}})


def start(folder: Path, launcher: Launcher, services: Services, steps: int = STEPS) -> Attempt:
    """Writes the run file of `moments_of`, and starts it."""
    write_run(folder, moments_of(folder, launcher.ranks, steps, **launcher.keys(services, folder)))
    (folder / "marks" / "pause").write_text(str(PAUSE_S))
    return launcher.begin(folder, services)


def strike(attempt: Attempt, name: str, way: str, when: Callable[[Attempt], bool]) -> Strike:
    """Sends a signal to what was started when `when` becomes true, and waits for the end of all."""
    begun, since = time.monotonic(), steps_done(attempt.folder / "out")
    try:
        while not when(attempt) and not attempt.over:
            assert time.monotonic() < begun + 300, "the moment didn't come"
            time.sleep(0.002)
        over = attempt.over  # before its moment came: the code is that of a run that nothing disturbed
        phase = PHASES[-1] if over else phase_of(attempt, since)
        members, at = family(attempt.folder), time.monotonic()
        if not over:
            attempt.ask(way)
        code = attempt.finish(120)
        seconds = time.monotonic() - at
        left = _left(attempt.folder, members)
        return Strike(name, way, phase, at - begun, code, seconds, left, attempt.text)
    except BaseException:
        attempt.end()  # and not otherwise: it would take a requeued job from the queue
        raise


def go_on(attempt: Attempt, strikes: Sequence[Strike], control: str) -> None:
    """Starts it again until it is finished, and compares it with the undisturbed run."""
    last = strikes[-1]
    while [last.code, *last.codes][-1] != 0 and len(last.codes) < STARTS:
        attempt = attempt.again()
        try:
            last.codes.append(attempt.finish(240))
        except BaseException:
            attempt.end()
            raise
        last.text += attempt.text
    out = attempt.folder / "out"
    mine, theirs = weights(out, optimizer=True), weights(control, optimizer=True)
    same = bits(out) == bits(control) and all(mine[name].equal(theirs[name]) for name in theirs)
    for done in strikes:
        done.same = same


def moment(draw: random.Random, since: int) -> Callable[[Attempt], bool]:
    """A moment of an attempt that goes on from step `since`: of its start, its steps, a validation or a save.

    A start takes 3 to 10 s, a validation 0.5 to 1 s, a save 0.03 to 0.15 s.
    """
    part, after, delay_s = draw.choice(
        [
            (lambda attempt: True, -1, draw.uniform(0, 10)),
            (lambda attempt: True, since + draw.randrange(4), draw.uniform(0, PAUSE_S * 4)),
            (validates, since, draw.uniform(0, 0.6)),
            (saves, since, draw.uniform(0, 0.08)),
            (saves, since, 0.0),
        ]
    )
    begun: list[float] = []

    def look(attempt: Attempt) -> bool:
        if not begun and (after < 0 or (steps_done(attempt.folder / "out") > after and part(attempt))):
            begun.append(time.monotonic())
        return bool(begun) and time.monotonic() >= begun[0] + delay_s

    return look


def phase_of(attempt: Attempt, since: int) -> str:
    """Where a run that goes on from step `since` is, as its files and processes show it."""
    out = attempt.folder / "out"
    kinds = {event["kind"] for event in events(out)} if (out / "events.jsonl").exists() else set()
    done = steps_done(out)
    if "finish" in kinds or attempt.over:
        return PHASES[-1]
    if not hears(attempt):
        return PHASES[0]
    if done == since:
        return PHASES[1]
    if validates(attempt):
        return PHASES[3]
    return PHASES[4] if saves(attempt) else PHASES[2]


def hears(attempt: Attempt) -> bool:
    """Whether what was started has a handler for SIGTERM; of a batch job: whether it runs."""
    if not attempt.processes:
        return bool(family(attempt.folder))
    try:
        status = Path(f"/proc/{attempt.processes[0].pid}/status").read_text()
    except OSError:
        return False
    caught = re.search(r"SigCgt:\s*(\w+)", status)
    return caught is not None and bool(int(caught[1], 16) & 1 << 14)


def validates(attempt: Attempt) -> bool:
    """Whether a step that is to be validated has its row, and the validation none."""
    text = metrics(attempt)
    done = steps_done(attempt.folder / "out")
    return bool(done) and done % EVERY == 0 and f'"kind": "valid", "step": {done},' not in text


def saves(attempt: Attempt) -> bool:
    """Whether a checkpoint is being written."""
    return any((attempt.folder / "out" / "checkpoints").glob("*.tmp"))


def metrics(attempt: Attempt) -> str:
    """The rows so far."""
    path = attempt.folder / "out" / "metrics.jsonl"
    return path.read_text() if path.exists() else ""


def children(attempt: Attempt) -> list[str]:
    """The commands below what was started."""
    found = []
    for child in psutil.Process(attempt.processes[0].pid).children(recursive=True):
        try:
            found.append(" ".join(child.cmdline()))
        except psutil.Error:
            continue
    return found


def save_moments(strikes: Sequence[Strike], folder: Path) -> None:
    """Writes the page and its numbers, dated; those of the same day stay: launchers are tried one by one."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = folder / f"{date.today()}-moments.json"
    before = json.loads(numbers.read_text()) if numbers.exists() else []
    lines = [*before, *({**asdict(strike), "text": ""} for strike in strikes)]
    numbers.write_text("[\n" + ",\n".join(map(json.dumps, lines)) + "\n]\n")
    numbers.with_suffix(".md").write_text(markdown([Strike(**line) for line in lines]))


def markdown(strikes: Sequence[Strike]) -> str:
    """The page of a result: how many signals of each phase ended in which code."""
    rows = [["", *PHASES, "slowest end"]]
    for name in dict.fromkeys(strike.launcher for strike in strikes):
        mine = [strike for strike in strikes if strike.launcher == name]
        cells = []
        for phase in PHASES:
            codes = Counter(str(strike.code) for strike in mine if strike.phase == phase)
            cells.append(", ".join(f"{count} × {code}" for code, count in sorted(codes.items())))
        rows.append([name, *cells, f"{max(strike.seconds for strike in mine):.1f} s"])
    left = sum(len(strike.left) for strike in strikes)
    same = sum(strike.same for strike in strikes)
    about = [
        f"Runs of {LONG} steps on Gloo with a validation and a save every {EVERY}. Each attempt was sent",
        "SIGTERM, SIGHUP, SIGUSR1 or Ctrl-C during its start, its steps, a validation or a save, and the",
        f"same command started again, up to {CHAIN} times a run. Each cell: how many, and the exit code.",
        "Of runs that then finished with the metrics, weights and optimizer states of an undisturbed",
        f"run, bit for bit: {same} of {len(strikes)}. Processes left: {left}.",
    ]
    title = f"# Signals at {len(strikes)} random moments, {date.today()}"
    versions = f"- {cores()} cores, Python {platform.python_version()}, torch {version('torch')}"
    return "\n".join([title, "", *about, "", table(rows), "", versions, ""])

"""What each launcher is expected to make of each request to stop; the tables of it, in docs and results.

EXPECTED[launcher][way] = Expected(code, saved)      unless something else stands in ELSE: 75, and saved
"""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path

from tests.launch.launchers import LAUNCHERS, REQUEUED
from tests.launch.stopping import KILL, TWICE

from scalewright.launch.begin import cores

ASKED = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT", "file STOP", "time limit")
WAYS = (*ASKED, TWICE, KILL)
NAMES = {"SIGINT": "Ctrl-C", TWICE: "Ctrl-C twice", KILL: "a rank killed"}


@dataclass(frozen=True)
class Expected:
    """The end of the attempt that was disturbed."""

    code: int | str = 75
    saved: bool = True  # at the step at which it was asked; else it goes on from its last checkpoint
    slow: bool = False  # with steps longer than the second that the launcher grants before it kills
    ignored: bool = False  # the launcher keeps the request to itself, and the run goes on to its end

    def __str__(self) -> str:
        if self.ignored:
            return "goes on"
        if self.code == 0:
            return "restarts"
        return str(self.code) if self.saved else f"lost, {self.code}"


def tried(launcher: str, way: str) -> bool:
    """Whether the pair is: a batch job has no terminal, ranks by hand have each their own, and mpirun alone
    ends them at the first Ctrl-C, or hands it on."""
    return way != TWICE or launcher not in ("launch slurm", "ranks by hand", *PLAIN_MPI)


PLAIN_MPI = ("mpirun, Open MPI", "mpirun, MPICH")
AT_ONCE = Expected(130, saved=False, slow=True)
ELSE: dict[tuple[str, str], Expected] = {
    # torchrun turns each code into 1; USR1 and USR2 end it, and the ranks that it leaves behind save.
    **{("torchrun", way): Expected(1) for way in ("SIGTERM", "SIGINT", "file STOP", "time limit")},
    ("torchrun", "SIGUSR1"): Expected(138),
    ("torchrun", "SIGUSR2"): Expected(140),
    ("launch slurm", "time limit"): Expected(REQUEUED, slow=True),  # it counts in minutes
    # srun answers the first Ctrl-C with its tasks' states, and ends them at the second.
    ("srun", "SIGINT"): Expected(0, saved=False, ignored=True),
    # Open MPI's mpirun sends SIGTERM after a second, SIGKILL after two; MPICH's has no handler for USR2.
    ("mpirun, Open MPI", "SIGTERM"): Expected(1, saved=False, slow=True),
    ("mpirun, Open MPI", "SIGINT"): Expected(1, saved=False, slow=True),
    ("mpirun, MPICH", "SIGUSR2"): Expected(140, saved=False),
    **{(name, TWICE): AT_ONCE for name in LAUNCHERS},
    ("torchrun", TWICE): Expected(1, slow=True),
    ("launch ssh", TWICE): Expected(slow=True),  # nothing but the end of its stdin reaches a host
    **{(name, KILL): Expected(1, saved=False) for name in LAUNCHERS},
    **{(name, KILL): Expected(0, saved=False) for name, launcher in LAUNCHERS.items() if launcher.restarts},
    ("one process", KILL): Expected(137, saved=False),
    **{(name, KILL): Expected(137, saved=False) for name in LAUNCHERS if "mpi" in name},
    ("mpirun, MPICH", KILL): Expected(9, saved=False),
    ("launch mpi, MPICH", KILL): Expected(9, saved=False),
    ("launch mpi, MPICH", TWICE): Expected(slow=True),  # its mpirun hands a SIGTERM on, and waits
    ("srun", TWICE): Expected(137, saved=False, slow=True),
    ("srun", KILL): Expected(137, saved=False),
}


def expected(launcher: str, way: str) -> Expected:
    """What is to happen."""
    return ELSE.get((launcher, way), Expected(REQUEUED) if launcher == "launch slurm" else Expected())


@dataclass(frozen=True)
class Line:
    """What happened."""

    launcher: str
    way: str
    step: int | None  # agreed on by all ranks; None: nothing was saved
    cause: str | None
    code: int | str
    seconds: float
    left: int  # processes, a while after that
    then: list[int | str]  # exit codes of the attempts that followed
    same: bool  # bit for bit, as an undisturbed run: metrics, weights, states of the optimizer
    total_s: float

    def __str__(self) -> str:
        after = "" if self.same else ", OTHER BITS"
        step = f"step {self.step}" if self.step else "not saved"
        return f"{step}, {self.code}, {self.seconds:.1f} s{after}"


def documented() -> str:
    """The table of docs/launch.md."""
    head = ["", *(NAMES.get(way, way.removeprefix("SIG")) for way in WAYS)]
    rows = [[name, *(str(expected(name, way)) if tried(name, way) else "–" for way in WAYS)] for name in LAUNCHERS]
    return table([head, *rows])


def markdown(lines: Sequence[Line], versions: Iterable[str]) -> str:
    """The page of a result."""
    total, same, left = (sum(getattr(line, key) for line in lines) for key in ("total_s", "same", "left"))
    cells = {(line.launcher, line.way): str(line) for line in lines}
    launchers = [name for name in LAUNCHERS if any(line.launcher == name for line in lines)]
    ways = [way for way in WAYS if any(line.way == way for line in lines)]
    head = ["", *(NAMES.get(way, way) for way in ways)]
    rows = [[name, *(cells.get((name, way), "") for way in ways)] for name in launchers]
    about = [
        "Two ranks (`one process`: one) on Gloo, disturbed after 3 of 40 steps, started again to the end;",
        f"{cores()} cores, {platform.machine()}, {len(lines)} runs in {total / 60:.0f} minutes.",
        "Each cell: the step at which all ranks stopped and saved, the exit code, seconds from the request",
        f"to the launcher's end. Processes left after it: {left}. Runs that ended with the metrics, weights",
        f"and optimizer states of an undisturbed run, bit for bit: {same} of {len(lines)}.",
        "What the codes mean: [launch.md](../../docs/launch.md#stopping-and-going-on).",
    ]
    title = f"# Stops of {len(launchers)} launchers, {date.today()}"
    said = [f"- {words}" for words in versions]
    return "\n".join([title, "", *about, "", table([head, *rows]), "", *said, ""])


def versions_of(lines: Iterable[Line]) -> list[str]:
    """The first line that each launcher says of itself."""
    import torch

    names = dict.fromkeys(line.launcher for line in lines)
    said = [f"Python {platform.python_version()}, torch {torch.__version__}"]
    if "launch ray" in names:
        said.append(f"Ray {version('ray')}")
    commands = dict.fromkeys(LAUNCHERS[name].version for name in names if LAUNCHERS[name].version)
    for command in commands:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        said.append(next((f"MPICH {line.split()[-1]}" for line in lines if line.startswith("Version:")), lines[0]))
    return said


def save(lines: Sequence[Line], folder: Path) -> Path:
    """Writes the page and its numbers, dated; returns the page. Pairs of the same day that aren't among the
    lines stay: launchers may be tried one after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{date.today()}-stops.md"
    numbers = path.with_suffix(".json")
    before = json.loads(numbers.read_text()) if numbers.exists() else {"versions": [], "lines": []}
    all_lines = [*(Line(**line) for line in before["lines"]), *lines]
    merged = list({(line.launcher, line.way): line for line in all_lines}.values())
    versions = list(dict.fromkeys([*before["versions"], *versions_of(lines)]))
    numbers.write_text(json.dumps({"versions": versions, "lines": [asdict(line) for line in merged]}, indent=1) + "\n")
    path.write_text(markdown(merged, versions))
    return path


def table(rows: Sequence[Sequence[str]]) -> str:
    """In markdown; the first row is its head."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])

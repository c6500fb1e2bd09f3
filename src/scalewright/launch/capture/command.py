"""`scalewright record -- COMMAND`: the command as it is, with a trace of some steps of each rank.

PYTHONPATH = injected/ : ...         Python imports injected/sitecustomize.py at its start, in the command,
                                     in what it starts, and on other machines only where a launcher passes
                                     the environment on
DIR/rank00000.json.gz, ...           the traces
DIR/.processes/                      what each process came to; read here, then removed
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewright.launch.stop import run_with_signals
from scalewright.spec.errors import RunError, UserError

INJECTED = Path(__file__).parent / "injected"
COLLECTIVES = 20_000  # entries of torch's flight recorder: it names the groups of the last ones


@dataclass(frozen=True)
class Captured:
    """The exit code of a command, and the traces that it left."""

    code: int
    files: list[Path]


def capture(command: Sequence[str], steps: int, after: int, ranks: Sequence[int] | None, out: Path) -> Captured:
    """Runs the command and waits for it; its output and its exit code stay as they are.

    Steps `after` + 1 to `after` + `steps` are traced, of all ranks or of `ranks`. Raises UserError where the
    command can't be started, or `out` holds traces already; RunError where it ended well without a trace.
    """
    if [*out.glob("rank*.json.gz")]:
        raise UserError("it holds traces already", str(out), "remove them, or choose another --out")
    asked = {"steps": steps, "after": after, "ranks": ranks and list(ranks), "out": str(out.absolute())}
    environ = {
        **os.environ,
        "SCALEWRIGHT_RECORD": json.dumps(asked),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(INJECTED), os.environ.get("PYTHONPATH")])),
    }
    environ.setdefault("TORCH_FR_BUFFER_SIZE", str(COLLECTIVES))
    try:
        code = run_with_signals(command, environ)
    except OSError as error:
        how = "give a command that the shell finds, such as: scalewright record -- python train.py"
        raise UserError(f"it can't be started: {error.strerror}", command[0], how) from None
    files = sorted(out.glob("rank*.json.gz"))
    processes = _processes(out)
    problems = sorted({str(report["problem"]) for report in processes if report.get("problem")})
    if problems and not files:
        raise RunError(f"no trace was made: torch's profiler failed with {problems[0]}")
    if not files and code == 0:
        raise RunError(f"no trace was made: {why_none(processes, steps, after, ranks)}")
    return Captured(code, files)


def why_none(processes: Sequence[dict[str, Any]], steps: int, after: int, ranks: Sequence[int] | None) -> str:
    """The reason, from the reports of the command's processes, and the way out."""
    if not processes:
        return (
            "no Python process of the command imported torch.optim; one that was started with -I, -E or -S "
            "can't be recorded"
        )
    done = max(int(report.get("steps", 0)) for report in processes)
    if not done:
        return "no optimizer of torch.optim made a step: an optimizer of another kind isn't seen"
    if ranks is not None and not any(report.get("asked") for report in processes if report.get("steps")):
        seen = sorted({int(report["rank"]) for report in processes if report.get("steps")})
        return f"--ranks {','.join(map(str, ranks))} ran no steps here, but {', '.join(map(str, seen))} did"
    return (
        f"it ended after {done} optimizer steps, and step {after + steps} was to be the last one traced: "
        "give a smaller --after, or fewer --steps"
    )


def _processes(out: Path) -> list[dict[str, object]]:
    folder, reports = out / ".processes", []
    for path in sorted(folder.glob("*.json")):
        try:
            report = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(report, dict):
            reports.append(report)
    shutil.rmtree(folder, ignore_errors=True)
    if out.is_dir() and not any(out.iterdir()):
        out.rmdir()
    return reports

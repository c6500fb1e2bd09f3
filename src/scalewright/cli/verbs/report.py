"""`scalewright report RUN_DIR|PLAN.json`: one self-contained HTML file about a run, a plan, or another answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from scalewright.cli.options import Force, Json, argument, option
from scalewright.cli.output import only_answer, print, print_json, working
from scalewright.spec.errors import UserError

PLANS = {".json", ".yaml", ".yml"}


def report(
    subjects: Annotated[
        list[Path],
        argument("RUN_DIR...|PLAN.json", "A run's folder, several, or what `plan`, `budget`, ... wrote with --json."),
    ],
    out: Annotated[
        Path | None, option("FILE", "Default: report.html in the folder, or above several; PLAN.html.")
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Write one self-contained HTML page about a run, several runs, or a plan.

    A run: loss, throughput, memory, configuration and environment. A plan: timeline, memory, time, what would
    help, and the map of ranks. Several runs, or a folder that holds them: their losses in one frame, and what
    differs. Nothing is loaded from elsewhere.
    """
    with only_answer(json), working("writing the report"):
        path = _write(subjects, out, force)
    print_json({"report": str(path)}) if json else print(path)


def _write(subjects: list[Path], out: Path | None, force: bool) -> Path:
    from scalewright.report.answer import kind_of, write_answer
    from scalewright.report.inference import is_served, write_served
    from scalewright.report.plan import write_plan_file
    from scalewright.report.run import write_report
    from scalewright.report.runs import find_runs, is_run, write_overlay

    first = subjects[0]
    if len(subjects) == 1 and (first.suffix == ".json" or first.is_file()):
        answer = _answer(first)
        if kind_of(answer) is not None:
            return write_answer(answer, out or first.with_suffix(".html"), force)
        if is_served(answer):
            return write_served(answer, out or first.with_suffix(".html"), force)
        return write_plan_file(first, out, force)
    if len(subjects) == 1 and (is_run(first) or not first.is_dir()):
        return write_report(first, out, force)
    runs = find_runs(subjects if len(subjects) == 1 else _folders(subjects))
    if len(runs) == 1:
        return write_report(runs[0].path, out, force)
    default = (first if len(subjects) == 1 else first.parent) / "report.html"
    return write_overlay(runs, out or default, force)


def _answer(path: Path) -> dict[str, Any]:
    """What a verb wrote with --json; nothing of a file that isn't JSON, which a plan may be."""
    from scalewright.spec.common.untrusted import read_json

    try:
        answer = read_json(path)
    except (OSError, ValueError, UserError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _folders(subjects: list[Path]) -> list[Path]:
    """The subjects without the files that a glob such as `runs/*` brings; raises UserError for a plan."""
    files = [path for path in subjects if path.is_file() or (path.suffix in PLANS and not path.is_dir())]
    for path in files:
        if path.suffix in PLANS:
            raise UserError("a plan's page is about one plan", str(path), "give it alone; several runs are folders")
    folders = [path for path in subjects if path not in files]
    if not folders:
        raise UserError("no run is here", str(files[0]), "give the out_dir of a run, or a folder of several")
    if files:
        print(f"left out, as no run's folder: {', '.join(map(str, files))}", file=sys.stderr)
    return folders

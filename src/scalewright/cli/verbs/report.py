"""`scalewright report RUN_DIR|PLAN.json`: one self-contained HTML file about a run, or about a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import Force, Json


def report(
    subjects: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_DIR...|PLAN.json",
            help="A run's folder, several, or what `plan --json` or `predict --json` wrote.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Default: report.html in the folder, or above several; PLAN.html.",
        ),
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Write one self-contained HTML page about a run, several runs, or a plan.

    A run: loss, throughput, memory, configuration and environment. A plan: timeline, memory, time, what would
    help, and the map of ranks. Several runs, or a folder that holds them: their losses in one frame, and what
    differs. Nothing is loaded from elsewhere.
    """
    from scalewright.cli.output import only_answer, print_json, working

    with only_answer(json), working("writing the report"):
        path = _write(subjects, out, force)
    if json:
        print_json({"report": str(path)})
    else:
        print(path)


def _write(subjects: list[Path], out: Path | None, force: bool) -> Path:
    """The page about a plan, a run, or several runs."""
    from scalewright.report import write_plan_file, write_report
    from scalewright.report.overlay import write_overlay
    from scalewright.report.runs import find_runs, is_run

    first = subjects[0]
    if len(subjects) == 1 and (first.suffix == ".json" or first.is_file()):
        return write_plan_file(first, out, force)
    if len(subjects) == 1 and (is_run(first) or not first.is_dir()):
        return write_report(first, out, force)
    runs = find_runs([path for path in subjects if len(subjects) == 1 or not path.is_file()])
    if len(runs) == 1:
        return write_report(runs[0].path, out, force)
    default = (first if len(subjects) == 1 else first.parent) / "report.html"
    return write_overlay(runs, out or default, force)

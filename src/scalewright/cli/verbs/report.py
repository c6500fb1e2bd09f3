"""`scalewright report RUN_DIR|PLAN.json`: one self-contained HTML file about a run, or about a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import Force, Json


def report(
    subject: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_DIR|PLAN.json",
            help="A run's folder, or what `plan --json` or `predict --json` wrote.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Default: report.html in the folder; PLAN.html beside the plan."),
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Write one self-contained HTML page about a run or a plan.

    A run: loss, throughput, memory, configuration and environment. A plan: timeline, memory, time, what would
    help, and the map of ranks. Nothing is loaded from elsewhere.
    """
    from scalewright.cli.output import only_answer, print_json, working
    from scalewright.report import write_plan_file, write_report

    with only_answer(json), working("writing the report"):
        if subject.suffix == ".json" or subject.is_file():
            path = write_plan_file(subject, out, force)
        else:
            path = write_report(subject, out, force)
    if json:
        print_json({"report": str(path)})
    else:
        print(path)

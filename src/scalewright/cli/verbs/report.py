"""`scalewright report RUN_DIR`: one self-contained HTML file about a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import Json


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A run's folder.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Default: report.html in that folder.")
    ] = None,
    json: Json = False,
) -> None:
    """Write one self-contained HTML page about a run.

    Loss, throughput, memory, configuration and environment; nothing is loaded from elsewhere.
    """
    from scalewright.cli.output import only_answer, print_json, working
    from scalewright.report import write_report

    with only_answer(json), working("writing the report"):
        path = write_report(run, out)
    if json:
        print_json({"report": str(path)})
    else:
        print(path)

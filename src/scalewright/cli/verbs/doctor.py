"""`scalewright doctor`: what this machine can do, and what about it is misconfigured."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import Json


def doctor(
    folder: Annotated[Path, typer.Option(metavar="DIR", help="Where runs would be written.")] = Path(),
    measure: Annotated[bool, typer.Option(help="Measure rates too; takes a second.")] = True,
    json: Json = False,
) -> None:
    """What this machine can do, and what is misconfigured.

    It looks and changes nothing.
    """
    from scalewright.cli.output import only_answer, print_json, working
    from scalewright.launch.settings import present_environment
    from scalewright.machine.doctor import examine, render

    with only_answer(json), working("looking at this machine"):
        report = examine(folder, present_environment(), measure)
    if json:
        print_json(report.dump())
    else:
        width = min(120, shutil.get_terminal_size((100, 24)).columns)
        print(render(report, width, colour=sys.stdout.isatty()), end="")

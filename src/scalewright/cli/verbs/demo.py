"""`scalewright demo`: the main job in one command, on this machine, with the text that comes along."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from scalewright.cli.options import Json, option


def demo(
    out: Annotated[Path, option("DIR", "Where everything is written.")] = Path("runs/demo"), json: Json = False
) -> None:
    """The main job in one command: text to trained model.

    Plans for this machine, prepares a text, trains a small model on two processes, has one killed,
    resumes, evaluates, prints a sample and writes a report, predicted beside measured. Takes minutes.
    """
    from scalewright.cli.demo import run_demo
    from scalewright.cli.output import only_answer, print_json

    with only_answer(json):
        summary = run_demo(out, json)
    if json:
        print_json(summary)

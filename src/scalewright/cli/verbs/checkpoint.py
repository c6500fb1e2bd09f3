"""`scalewright checkpoint ls|verify RUN_DIR`: what a run has saved, and whether every byte of it is sound."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import Json

Run = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A run's folder, or one of its checkpoints.")]


def list_checkpoints(run: Run, json: Json = False) -> None:
    """List the checkpoints of a run: step, size, age, whether each is complete."""
    raise NotImplementedError


def verify_checkpoints(run: Run, json: Json = False) -> None:
    """Read every byte of a run's checkpoints and compare checksums; exit code 1 when one is damaged."""
    raise NotImplementedError

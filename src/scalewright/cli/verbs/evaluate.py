"""`scalewright evaluate MODEL_OR_RUN --data DIR`: validation loss and bits per byte."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import Json


def evaluate(
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL_OR_RUN", help="A run's folder, a checkpoint or a Hugging Face folder."),
    ],
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Prepared data; default: the run's own.")
    ] = None,
    seq_len: Annotated[
        int | None, typer.Option(min=2, help="Tokens per sequence; default: the run's own.")
    ] = None,
    batches: Annotated[int, typer.Option(min=1, help="How many batches to average over.")] = 16,
    json: Json = False,
) -> None:
    """Measure validation loss and bits per byte."""
    raise NotImplementedError

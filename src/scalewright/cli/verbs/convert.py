"""`scalewright convert SOURCE OUT`: a Hugging Face folder from a checkpoint of ours, and the way back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import Json, one_of

_DTYPES = ("float32", "bfloat16", "float16")


def convert(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="A checkpoint, a run's folder, or a Hugging Face folder.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write.")],
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(_DTYPES), callback=one_of("dtype", _DTYPES), help="Default: as it is stored."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Checkpoint to Hugging Face folder, or back.

    What was written is read back and compared.
    """
    raise NotImplementedError

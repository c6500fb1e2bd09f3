"""`scalewright generate MODEL --prompt TEXT`: what a model writes on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import Json


def generate(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A run's folder, a checkpoint or a Hugging Face folder.")
    ],
    prompt: Annotated[str, typer.Option(help="The text to go on from.")] = "",
    max_tokens: Annotated[int, typer.Option(min=1, help="How many tokens to write at most.")] = 128,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 takes the likeliest token each time.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(min=1, help="Choose among the k likeliest.")] = None,
    top_p: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Choose among the likeliest that make up p.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed writes the same text.")] = 0,
    stop: Annotated[
        list[str] | None, typer.Option(help="Stop before this text; may be given several times.")
    ] = None,
    json: Json = False,
) -> None:
    """Write on from a prompt with what was trained."""
    raise NotImplementedError

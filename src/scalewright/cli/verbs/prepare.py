"""`scalewright prepare INPUT... --out DIR`: text to token shards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import Json


def prepare(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT",
            help="Text, JSONL or parquet files, folders; or shakespeare, python-stdlib, wikitext-2.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the shards go.")],
    vocab_size: Annotated[
        int | None, typer.Option(min=257, help="Train a byte-level BPE of this size.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Take this tokenizer.json instead.")
    ] = None,
    valid_fraction: Annotated[
        float | None, typer.Option(min=0.0, max=0.5, help="Share kept for validation.")
    ] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Show the histogram of document lengths.")] = False,
    json: Json = False,
) -> None:
    """Turn text into token shards that training reads."""
    raise NotImplementedError

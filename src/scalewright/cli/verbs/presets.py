"""`scalewright presets models|clusters|new`: what is known by name, and a model shape of a wanted size."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import Json, starting_with


def _model_names() -> list[str]:
    from scalewright.spec.presets import model_presets

    return list(model_presets())


def _cluster_names() -> list[str]:
    from scalewright.spec.cluster import cluster_presets

    return list(cluster_presets())


def models(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]", help="Show this one whole.", autocompletion=starting_with(_model_names)
        ),
    ] = None,
    json: Json = False,
) -> None:
    """List the known models with their parameter counts, or show one."""
    raise NotImplementedError


def clusters(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[CLUSTER]", help="Show this one whole.", autocompletion=starting_with(_cluster_names)
        ),
    ] = None,
    json: Json = False,
) -> None:
    """List the known clusters and devices, or show one."""
    raise NotImplementedError


def new(
    params: Annotated[float, typer.Option(min=1, help="Parameters wanted, such as 13e9.")],
    like: Annotated[str, typer.Option(help="The family whose shape to follow.")] = "llama",
    vocab: Annotated[int, typer.Option(min=1, help="Vocabulary size.")] = 32000,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it there instead of stdout.")
    ] = None,
    json: Json = False,
) -> None:
    """Print a sensible model shape of a wanted size, as YAML that `model:` takes."""
    raise NotImplementedError

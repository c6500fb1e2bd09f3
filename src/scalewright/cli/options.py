"""The flags that verbs share, and values that are one of a few words.

A word that isn't among the valid ones is answered like a misspelt verb: with the nearest that is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from scalewright.spec.errors import UserError, unknown

RunFile = Annotated[Path, typer.Argument(metavar="RUN.yaml", help="The run file.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Keys to set, such as layout.tp=2.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")]
All = Annotated[bool, typer.Option("--all", help="Print all that is known, not only what most people need.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that this tool didn't write.")]
TrustCode = Annotated[
    bool,
    typer.Option("--trust-code", help="Run the code that this folder's files name as its model or data."),
]
NoVerify = Annotated[
    bool, typer.Option("--no-verify", help="Don't compare a checkpoint's large files with their checksums.")
]

DEVICES = ("cpu", "cuda", "mps")
DTYPES = ("float32", "bfloat16", "float16")


def choice(kind: str, words: Sequence[str], help: str) -> Any:
    """A flag that takes only these words; raises UserError with the nearest ones."""

    def check(value: str | None) -> str | None:
        if value is not None and value not in words:
            raise unknown(kind, value, words, f"--{kind.replace(' ', '-')}")
        return value

    return typer.Option(metavar="|".join(words), callback=check, help=help)


Device = Annotated[str, choice("device", DEVICES, "Where to run.")]


def check_device(device: str) -> None:
    """Raises UserError when torch can't use this device here."""
    import torch

    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available[device]:
        usable = " or ".join(name for name in available if available[name])
        raise UserError(f"torch can't use {device} on this machine", "--device", f"use {usable}")


def starting_with(words: Callable[[], Sequence[str]]) -> Callable[[str], list[str]]:
    """A shell completion over the words that `words()` gives when it is asked."""

    def complete(incomplete: str) -> list[str]:
        try:
            return [word for word in words() if word.startswith(incomplete)]
        except Exception:  # a completion that fails must not print into the user's prompt
            return []

    return complete

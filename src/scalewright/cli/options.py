"""The flags that verbs share, values that are one of a few words, and `key=value,key=value` in one flag.

A word that isn't among the valid ones is answered like a misspelt verb: with the nearest that is.

    "tp=8, recompute={every: 2}, stage-layers=[9,7]"  ->  {tp: 8, recompute: {every: 2}, stage_layers: [9, 7]}

A value is YAML on one line; commas inside brackets belong to it. Keys may be kebab-case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from scalewright.spec.errors import UserError, unknown

Pairs: TypeAlias = dict[str, Any]  # of key=value flags: values as YAML reads them


Words = Callable[[], Sequence[str]]  # that a shell completes


def argument(metavar: str, help: str, words: Words | None = None) -> Any:
    """A word of the command line that has no flag."""
    return typer.Argument(metavar=metavar, help=help, autocompletion=words and starting_with(words))


def flag(help: str, *names: str, **rules: Any) -> Any:
    """A flag, by its parameter's name or other names; `rules` are typer's."""
    return typer.Option(*names, help=help, **rules)


def option(metavar: str, help: str, *names: str, words: Words | None = None, **rules: Any) -> Any:
    """A flag with a value, and a word for that in the help."""
    return typer.Option(*names, metavar=metavar, help=help, autocompletion=words and starting_with(words), **rules)


RunFile = Annotated[Path, argument("RUN.yaml", "The run file.")]
Overrides = Annotated[list[str] | None, argument("KEY=VALUE", "Keys to set, such as layout.tp=2.")]
Json = Annotated[bool, flag("Print one JSON document on stdout and nothing else.", "--json")]
All = Annotated[bool, flag("Print all that is known, not only what most people need.", "--all")]
Force = Annotated[bool, flag("Replace a file that this tool didn't write.", "--force")]
TrustCode = Annotated[bool, flag("Run the code that this folder's files name as its model or data.", "--trust-code")]
NoVerify = Annotated[bool, flag("Don't compare a checkpoint's large files with their checksums.", "--no-verify")]

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


def starting_with(words: Words) -> Callable[[str], list[str]]:
    """A shell completion over the words that `words()` gives when it is asked."""

    def complete(incomplete: str) -> list[str]:
        try:
            return [word for word in words() if word.startswith(incomplete)]
        except Exception:  # a completion that fails must not print into the user's prompt
            return []

    return complete


def parse_pairs(text: str | None, flag: str, known: Iterable[str]) -> Pairs:
    """The keys and values of a flag; raises UserError for a key that isn't known, or one given twice."""
    names, pairs = list(known), {}
    for part in split_outside(text or ""):
        key, equals, value = part.partition("=")
        key = key.strip().replace("-", "_")
        if not equals:
            raise UserError(f"'{part.strip()}' has no value", flag, "write key=value,key=value")
        if key not in names:
            raise unknown("key", key, names, flag)
        if key in pairs:
            raise UserError(f"{key} is given twice", flag, "give it once")
        pairs[key] = parse_value(value, f"{flag} {key}")
    return pairs


def parse_value(text: str, where: str) -> Any:
    """A value as YAML reads it: 8, true, {every: 2}, [1, 2], zb-h1."""
    from scalewright.spec.base import parse_yaml

    if not text.strip():
        raise UserError("the value is missing", where, "write key=value")
    return parse_yaml(text, where)


def merge(flags: Pairs, pairs: Pairs, flag: str) -> Pairs:
    """Both together; raises UserError when they give one key different values."""
    merged = {key: value for key, value in flags.items() if value is not None}
    for key, value in pairs.items():
        if key in merged and merged[key] != value:
            raise UserError(f"{key} {merged[key]} and {key} {value} are both given", flag, "give one of them")
        merged[key] = value
    return merged


def split_outside(text: str) -> list[str]:
    """The parts between commas that no bracket holds; empty ones are dropped."""
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(text):
        depth += (letter in "[{(") - (letter in "]})")
        if letter == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    return [part for part in [*parts, text[start:]] if part.strip()]

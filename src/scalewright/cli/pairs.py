"""`key=value,key=value` in one flag, as `--layout tp=8,pp=4` and `--fix schedule=zb-h1` take it.

    "tp=8, recompute={every: 2}, stage-layers=[9,7]"  ->  {tp: 8, recompute: {every: 2}, stage_layers: [9, 7]}

A value is YAML on one line; commas inside brackets belong to it. Keys may be kebab-case.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from scalewright.spec.errors import UserError, unknown


def parse_pairs(text: str | None, flag: str, known: Iterable[str]) -> dict[str, Any]:
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


def merge(flags: dict[str, Any], pairs: dict[str, Any], flag: str) -> dict[str, Any]:
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

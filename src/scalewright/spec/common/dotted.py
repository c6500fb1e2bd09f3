"""Nested data by dotted keys, as users write them: {"layout": {"tp": 2}} is layout.tp = 2."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any


def dotted(data: Mapping[str, Any], prefix: str = "", whole: Container[str] = ()) -> Iterator[tuple[str, Any]]:
    """Dotted keys and their values; lists, empty sections, and those named in `whole` are values, too."""
    for name, value in data.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value and key not in whole:
            yield from dotted(value, f"{key}.", whole)
        else:
            yield key, value


def flat(data: Mapping[str, Any], whole: Container[str] = ()) -> dict[str, Any]:
    """The same without empty sections."""
    return {key: value for key, value in dotted(data, whole=whole) if value != {} or key in whole}


def below(key: str, prefixes: Iterable[str]) -> bool:
    """Whether a dotted key is one of these, or below one."""
    return any(key == prefix or key.startswith(f"{prefix}.") for prefix in prefixes)

"""Values of other trainers' files: numbers that may be texts, or no numbers at all."""

from __future__ import annotations

from math import isfinite
from typing import Any


def real(value: Any) -> float | None:
    """A finite number, of a text such as `3e-4` too; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if isfinite(number) else None


def whole(value: Any) -> int | None:
    """A whole number from 1 on; None for anything else."""
    number = real(value)
    return int(number) if number is not None and 1 <= number < 1e15 and number == int(number) else None


def true(value: Any) -> bool:
    """Whether a value is true, as YAML, JSON or a command line have it."""
    return str(value).lower() in ("true", "1", "yes", "on")

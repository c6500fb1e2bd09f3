"""Numbers of other trainers' files, where they may be texts.

whole, real, number    of a value that must be one: a ValueError or TypeError is the file's fault
whole_of, real_of      of a value that may be anything: None where it is no such number
"""

from __future__ import annotations

from math import isfinite
from typing import Any


def number(value: Any) -> float | int:
    """A number of a command line; `1e-5` is one."""
    real = float(value)
    return (
        int(real) if real.is_integer() and "." not in str(value) and "e" not in str(value).lower() else real
    )


def whole(value: Any) -> int:
    """A whole number of a command line, where `1_000` and 1000.0 are ones."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value  # a seed may be longer than a float's digits
    return int(float(str(value).replace("_", "")))


def real(value: Any) -> float:
    """A number with a fraction."""
    return float(value)


def real_of(value: Any) -> float | None:
    """A finite number, of a text such as `3e-4` too; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if isfinite(number) else None


def whole_of(value: Any) -> int | None:
    """A whole number from 1 on; None for anything else."""
    number = real_of(value)
    return int(number) if number is not None and 1 <= number < 1e15 and number == int(number) else None


def true(value: Any) -> bool:
    """Whether a value is true, as YAML, JSON or a command line have it."""
    return str(value).lower() in ("true", "1", "yes", "on")

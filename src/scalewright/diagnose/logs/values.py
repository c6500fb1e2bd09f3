"""Numbers as trainers print them, and the pairs of a line.

    6,344     8.79K     1.087129E+01     68.57GiB(86.69%)     nan          number(...)
    lm loss: 1.0E+01 | grad norm: 0.5 |      {'loss': 2.09, 'epoch': 0.44}      loss: 12.3  tps: 6,344

Every pattern is bounded or has one way to match, so that no line costs more than its length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from functools import lru_cache

NUMBER = re.compile(r"[-+]?(?:\d[\d,]{0,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][-+]?\d{1,4})?|[-+]?(?:nan|inf)\b", re.I)
UNITS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
QUOTED = re.compile(r"['\"]([\w/]{1,80})['\"]: ['\"]?([-+]?[\w.]{1,40}(?:[-+]\d{1,4})?)")
WORDS = re.compile(r"([A-Za-z][\w/]{0,60}(?: in s)?)\s{0,4}[:=]\s{0,4}([-+]?[\w.,]{1,40}(?:[-+]\d{1,4})?)")
STAMP = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d):(\d\d(?:[.,]\d{1,6})?)"  # ISO 8601, Python's logging
)


def number(text: str, units: bool = False) -> float | None:
    """The number that a text begins with; `units` reads K, M, B and T behind it as powers of 1,000.

    >>> number("6,344"), number("8.79K", units=True), number("68.57GiB(87%)"), number("n/a")
    (6344.0, 8790.0, 68.57, None)
    """
    try:
        return float(text)  # most are plain, and the pattern costs four times as much
    except ValueError:
        text = text.strip()
        match = NUMBER.match(text)
    if match is None:
        return None
    value = float(match[0].replace(",", ""))
    return value * UNITS.get(text[match.end() : match.end() + 1], 1.0) if units else value


def real(value: object) -> float | None:
    """A number of a JSON document as a float; None for anything else, and for one that no float holds.

    >>> real(2), real(True), real("2"), real(10**400)
    (2.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def barred(text: str) -> Iterator[tuple[str, str]]:
    """The pairs of `key: value | key: value |`; a key may hold words, brackets and slashes."""
    for part in text.split("|"):
        key, colon, value = part.rpartition(": ")
        if colon:
            yield key.strip(), value


def quoted(text: str) -> Iterator[tuple[str, str]]:
    """The pairs of a Python dictionary or a JSON object that is printed on one line."""
    return ((match[1], match[2]) for match in QUOTED.finditer(text))


def words(text: str) -> Iterator[tuple[str, str]]:
    """The pairs of `key: value  key: value` and `key=value, key=value`; a key is a word."""
    return ((match[1], match[2]) for match in WORDS.finditer(text))


def clock(text: str) -> float | None:
    """The first date and time of a line in seconds since 1970, as if it were UTC; None where it has none."""
    match = STAMP.search(text, 0, 300)
    if match is None:
        return None
    minute = _minute(match[1])
    return None if minute is None else minute + float(match[2].replace(",", "."))


@lru_cache(maxsize=64)
def _minute(text: str) -> float | None:
    """Seconds since 1970 at `2026-11-23 17:05`; None for one that no calendar has."""
    with suppress(ValueError, OverflowError):
        return datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()
    return None

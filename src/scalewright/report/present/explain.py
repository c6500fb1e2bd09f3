"""An entry of `explain` as blocks: what it is, its formula and number, what shows it; then its picture."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from scalewright.report.present.blocks import Bar, Bars, Block, Line, Shown, Table, Text
from scalewright.spec.common.formatting import count, decimal, gib, metric, share, short_time

PREFIXED = ("B", "B/s", "FLOP", "FLOP/s", "bit")  # units that take k, M, G
WIDTH = 96  # columns of a paragraph


def show_entry(answer: Mapping[str, Any]) -> Shown:
    """The answer as blocks."""
    return Shown(f"{answer['term']}: {answer['title']}", list(_head(answer)), list(_blocks(answer)))


def quantity(number: float, unit: str) -> str:
    """A number with its unit, as people write it.

    >>> quantity(3.35e12, "B/s"), quantity(0.158, "share"), quantity(4096, "tokens")
    ('3.35 TB/s', '15.8%', '4,096 tokens')
    """
    if unit == "share":
        return share(number)
    if unit == "s":
        return short_time(number) if 1e-4 <= number < 100 else _long(number)
    if unit == "GiB":
        return gib(number)
    if unit in PREFIXED and number >= 1e18:
        return f"{number:.3g} {unit}"
    if unit in PREFIXED:
        return metric(number, unit)
    if abs(number) >= 1e6:
        return f"{count(number)} {unit}".strip()
    if float(number).is_integer():
        things = re.sub(r"(?<=ch)es$|s$", "", unit) if number == 1 else unit
        return f"{number:,.0f} {things}".strip()
    digits = f"{number:,.0f}" if number >= 1000 else decimal(number, 3) if number > 1e-3 else f"{number:.2g}"
    return f"{digits} {unit}".strip()


def _long(seconds: float) -> str:
    if seconds < 1e-4:
        return f"{seconds * 1e6:.3g} µs" if seconds >= 1e-7 else f"{seconds * 1e9:.3g} ns"
    for size, name in ((86400.0, "days"), (3600.0, "hours")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.3g} {name}"
    return f"{seconds:,.0f} s"


def _head(answer: Mapping[str, Any]) -> Iterator[Line]:
    value = answer["value"]
    yield Line("what", answer["text"])
    if answer["formula"]:
        yield Line("formula", answer["formula"])
    if answer["source"]:
        yield Line("source", answer["source"])
    amount = quantity(value["number"], value["unit"])
    yield Line("number", f"{amount} {value['of']} ({value['run']}; {value['function']})")
    yield Line("next", answer["command"])
    if answer["see"]:
        yield Line("see", ", ".join(answer["see"]))
    yield Line("read", answer["read"])


def _blocks(answer: Mapping[str, Any]) -> Iterator[Block]:
    picture = answer["picture"]
    if picture is None:
        return
    if picture["kind"] == "bars":
        beside = picture["beside"]
        rows = [Bar(name, value, text, 0 if beside else at) for at, (name, value, text) in enumerate(picture["rows"])]
        yield Bars(picture["title"], rows, beside=beside)
    elif picture["kind"] == "table":
        yield Table(picture["heads"], picture["rows"], picture["title"])
    else:
        yield Text(picture["title"], picture["text"])


def show_listing(answer: Mapping[str, Any]) -> Iterator[str]:
    """The lines of `--list`: themes, and a line for each term."""
    theme = None
    for row in answer["terms"]:
        if row["theme"] != theme:
            yield f"\n{row['theme']}" if theme else row["theme"]
            theme = row["theme"]
        yield f"  {row['term']:<30} {textwrap.shorten(row['title'], WIDTH, placeholder=' ...')}"

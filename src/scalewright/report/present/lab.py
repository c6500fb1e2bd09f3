"""A lab's answer as blocks: its verdict, what was measured beside what is expected, pictures, what to do next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from scalewright.report.present.blocks import Bar, Bars, Block, Line, Note, Shown, Table, Text, Tone
from scalewright.report.present.explain import quantity
from scalewright.spec.common.formatting import counted, share

COLUMNS, FEW = 84, 8  # of a time line; rows of a plot's table
TONES: dict[str, Tone] = {"holds": "good", "differs": "bad", "too busy": "warn"}
RELATIONS = {"near": "", "at most": "at most ", "at least": "at least "}


def show_lab(answer: Mapping[str, Any]) -> Shown:
    """The answer as blocks."""
    return Shown(f"lab {answer['lab']}: {answer['title']}", list(_head(answer)), list(_blocks(answer)))


def _head(answer: Mapping[str, Any]) -> Iterator[Line]:
    yield Line("question", answer["question"])
    yield Line("verdict", f"{answer['verdict']}: {answer['conclusion']}", TONES[answer["verdict"]])
    yield Line("theory", answer["theory"])
    yield Line("formula", f"{answer['formula']} ({answer['source']})")
    if answer["notes"]:
        yield Line("note", "; ".join(answer["notes"]))
    yield Line("next", answer["change"][0])


def _blocks(answer: Mapping[str, Any]) -> Iterator[Block]:
    yield beside(answer)
    for picture in answer["pictures"]:
        yield DRAWN[picture["kind"]](picture)
    yield Note("change, and try", answer["change"])
    yield Note("on a thousand GPUs", [answer["at_scale"]])
    check = f"scalewright lab {answer['lab']} --check ANSWER"
    yield Note("an exercise", [answer["exercise"], check, f"words: {', '.join(answer['terms'])}"])


def beside(answer: Mapping[str, Any]) -> Table:
    """Each value beside what is expected of it."""
    rows = [
        [
            measured["name"], quantity(measured["value"], measured["unit"]),
            RELATIONS[expected["relation"]] + quantity(expected["value"], measured["unit"]), expected["formula"],
            _difference(measured["value"], expected["value"]) + ("" if expected["holds"] else " differs"),
            _within(expected),
        ]
        for measured, expected in zip(answer["measured"], answer["expected"], strict=True)
    ]  # fmt: skip
    heads = ["value", "measured", "expected", "by", "off by", "within"]
    return Table(heads, rows, "measured, and expected", spare=("within", "by"))


def _within(expected: Mapping[str, Any]) -> str:
    tolerance = expected["tolerance"]
    words = share(tolerance) if tolerance >= 1e-3 else f"{tolerance:.0e}"
    return f"{words}: {expected['because']}" if tolerance else str(expected["because"])


def _difference(measured: float, expected: float) -> str:
    return "" if not expected else f"{measured / expected - 1:+.1%}" if measured != expected else "0"


def _bars(picture: Mapping[str, Any]) -> Bars:
    rows = [Bar(name, value, text) for name, value, text in picture["rows"]]
    return Bars(picture["title"], rows, beside=True)


def _table(picture: Mapping[str, Any]) -> Table:
    return Table(picture["heads"], picture["rows"], picture["title"])


def _curves(picture: Mapping[str, Any]) -> Table:
    """The lines as columns over all their places."""
    x_unit, y_unit = picture["units"]
    lines = [(line["name"], dict(line["points"])) for line in picture["lines"]]
    places = sorted({x for _, points in lines for x in points})
    rows: list[Sequence[str]] = [
        [quantity(x, x_unit), *(quantity(points[x], y_unit) if x in points else "" for _, points in lines)]
        for x in places
    ]  # fmt: skip
    heads = [picture["x"], *(name for name, _ in lines)]
    return Table(heads, rows, f"{picture['title']} ({picture['y']})", few=FEW)


def _lanes(picture: Mapping[str, Any]) -> Text:
    """A time line as letters: the first of what a piece is, a dot where nothing runs."""
    rows = []
    for row in picture["rows"]:
        letters = ["."] * COLUMNS
        for piece in row["pieces"]:
            first = round(piece["left"] * COLUMNS)
            for place in range(first, min(max(first + 1, round((piece["left"] + piece["width"]) * COLUMNS)), COLUMNS)):
                letters[place] = piece["words"][0].upper()
        rows.append(f"{row['name']} | {''.join(letters)}")
    return Text(f"{picture['title']}, {picture['length']}", "\n".join(rows))


DRAWN: dict[str, Callable[[Mapping[str, Any]], Block]] = {
    "bars": _bars, "table": _table, "curves": _curves, "lanes": _lanes,
}  # fmt: skip


def show_labs(answer: Mapping[str, Any]) -> Iterator[str]:
    """The lines of `--list`: a lab's number, name, question, and how long it takes."""
    for number, row in enumerate(answer["labs"], 1):
        yield f"{number:>3}  {row['lab']:<18} {row['title']} ({counted(row['seconds'], 'seconds')})"

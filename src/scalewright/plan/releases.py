"""Which release of an engine a trainer's name means, and what that release has (`engines` of data/frameworks.yaml).

    "Megatron-LM (2025-10, core 0.14, TE 2.11)"   core 0.14: as it says
    "Megatron-Bridge 0.4"  "NeMo 2.7"             core 0.17, core 0.16: what these were made with
    "NeMo 24.07"  "Primus Megatron-LM (2025-12)"  core 0.8, core 0.15: the newest of that month
    "megatron"                                    today's

A date only finds the release; nothing is priced by it. What a release has, later ones have, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from scalewright.spec.base import read_yaml

FILE = Path(__file__).parent / "data" / "frameworks.yaml"
NO_FACTS = ("version", "date", "bridge", "nemo", "source")  # of a line: its names, and where they stand
DATES = (r"\b(2[0-9])\.(0[1-9]|1[0-2])\b", r"20(1[89]|2[0-9])(?:[-/.]?(0[1-9]|1[0-2])(?!\d\b))?")
MONTH = 1 / 12
CORE, NUMBER = r"\bcore[ _v-]*(\d\.\d+)", r"(?<![\d.])v?(\d\.\d+)"


def date_of(text: str) -> float | None:
    """The date in a name, as a year: `25.11` and `2025-11` are November 2025, `2022` is June; None without one."""
    for pattern in DATES:
        if match := re.search(pattern, text):
            return 2000 + int(match[1]) + (int(match[2] or 6) - 1) * MONTH
    return None


def release_facts(engine: str, text: str, numbers: str, date: float | None) -> dict[str, Any]:
    """What an engine has in the release that a name means, with its name and date.

    `numbers`: whose versions a bare number of the name is: the engine's own (`version`), or `bridge` or `nemo`.
    """
    lines, stated = engines()[engine], _stated(text, numbers)
    if stated is not None:
        column, number = stated
        chosen = [line for line in lines if column in line and _number(line[column]) <= number] or lines[:1]
        lines = lines[: lines.index(chosen[-1]) + 1]
    elif date is not None:
        lines = [line for line in lines if line["date"] <= date + MONTH / 2] or lines[:1]
    facts: dict[str, Any] = {"release": f"{engine} {lines[-1]['version']}", "year": date or lines[-1]["date"]}
    for line in lines:
        facts |= without(line, NO_FACTS)
    return facts


@lru_cache(maxsize=1)
def table() -> dict[str, Any]:
    """The file of trainers."""
    read: dict[str, Any] = read_yaml(FILE)
    return read


@lru_cache(maxsize=1)
def engines() -> dict[str, list[dict[str, Any]]]:
    """The releases of each engine, oldest first; `date` as a year."""
    read = table()["engines"]
    return {name: [{**line, "date": date_of(str(line["date"]))} for line in lines] for name, lines in read.items()}


def without(entry: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """An entry less these keys."""
    return {word: value for word, value in entry.items() if word not in names}


def _stated(text: str, numbers: str) -> tuple[str, tuple[int, ...]] | None:
    """The version that a name states, and whose it is."""
    for column, pattern in (("version", CORE), (numbers, NUMBER)):
        if match := re.search(pattern, text):
            return column, _number(match[1])
    return None


def _number(version: object) -> tuple[int, ...]:
    return tuple(int(part) for part in str(version).split("."))

"""JSON lines of a run: one object per line, and perhaps half a line where it was killed.

    {"kind": "train", "step": 7, ...}\n      read
    {"kind": "train", "st                    skipped: the process died while it wrote this

Planner, report and tracker read the same files, so the reader is in this lowest package.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scalewright.spec.text.untrusted import open_regular, parse_json


def read_jsonl(path: str | Path) -> list[dict[str, Any]]:
    """Every whole object, in order; broken lines are skipped, a missing file is empty."""
    return [row for _, row in scan_jsonl(path)]


def scan_jsonl(path: str | Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The same, one line at a time, each with its bytes in the file (without the newline)."""
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return
    with file:
        for line in file:
            text = line.strip()
            row = _object(text) if text else None
            if row is not None:
                yield text, row


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        value = parse_json(text)
    except ValueError:  # not JSON, or not UTF-8
        return None
    return value if isinstance(value, dict) else None

"""A dated result: JSON for machines, a table for people, written again after every part.

A run that is cut short still leaves what it had measured by then.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "results"


class Result:
    """One run's numbers and text, as `DATE-NAME.json` and `DATE-NAME.md` in a folder."""

    def __init__(
        self, name: str, title: str, facts: dict[str, Any], folder: Path | None = None, *, quiet: bool = False
    ) -> None:
        stamp = time.strftime("%Y-%m-%d", time.gmtime())
        self.folder, self.quiet = folder or RESULTS, quiet
        self.folder.mkdir(parents=True, exist_ok=True)
        self.json = self.folder / f"{stamp}-{name}.json"
        self.markdown = self.folder / f"{stamp}-{name}.md"
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.data: dict[str, Any] = {"title": title, "started": started, "finished": None, "facts": facts}
        self._text: list[str] = [f"# {title}", ""]
        self._text += [f"Started {started}. The raw numbers are in `{self.json.name}`.", ""]
        self.write()

    def put(self, key: str, value: Any) -> None:
        """Stores one part and writes the files."""
        self.data[key] = value
        self.write()

    def say(self, *lines: str) -> None:
        """Adds lines to the text, prints them unless `quiet`, and writes the files."""
        self._text += [*lines, ""]
        if not self.quiet:
            print("\n".join(lines), flush=True)
        self.write()

    def close(self) -> None:
        """Marks the result as whole."""
        self.put("finished", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))

    def write(self) -> None:
        """Replaces both files, each in one move."""
        _replace(self.json, json.dumps(self.data, indent=1, default=str) + "\n")
        _replace(self.markdown, "\n".join(self._text).rstrip() + "\n")


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; the first column is text, the others are aligned right."""
    cells = [[str(cell) for cell in row] for row in [heads, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    lines = []
    for number, row in enumerate(cells):
        padded = [
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("| " + " | ".join(padded) + " |")
        if number == 0:
            rules = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
            lines.append("| " + " | ".join(rules) + " |")
    return "\n".join(lines)


def facts_text(facts: dict[str, Any]) -> str:
    """The machine in a few lines."""
    cpu, source = facts["cpu"], facts.get("source") or {}
    load = facts.get("load_average")
    lines = [
        f"- command: `{facts['command']}`",
        f"- commit: {source.get('commit', 'unknown')}" + (" (with changes)" if source.get("dirty") else ""),
        f"- processor: {cpu['model']}, {cpu['usable_threads']} usable threads",
        f"- threads of torch: {facts['torch_threads']}",
        f"- its matrix flags: {' '.join(cpu['flags'])} (torch picked {facts['cpu_capability']})",
        f"- load average at the start: {' '.join(map(str, load)) if load else 'unknown'}",
        "- versions: " + ", ".join(f"{name} {version}" for name, version in facts["versions"].items()),
    ]
    gpu = facts.get("gpu")
    if gpu:
        memory = gpu["memory_bytes"] / 2**30
        lines.append(f"- GPU: {gpu['name']}, {memory:.0f} GiB, CUDA {gpu['cuda']}, cuDNN {gpu['cudnn']}")
    return "\n".join(lines)


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".part")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)

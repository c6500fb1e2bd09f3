"""The page about what serving takes: latency against throughput, where time and memory go, what was measured nearby.

>>> write_served(answer, Path("served.html"))
PosixPath('served.html')
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalewright.report.page import Page, block_section, render, write
from scalewright.report.present.blocks import Bars, Table
from scalewright.report.present.inference import show_inference
from scalewright.report.sections import serving_curves
from scalewright.spec.common.formatting import count

SCRIPTS = ("words.js", "theme.js", "canvas.js", "scatter.js")
STYLES = ("report.css", "plan.css", "diagnosis.css")


def is_served(data: object) -> bool:
    """Whether it is an answer of `inference`."""
    return isinstance(data, Mapping) and "kv_bytes_per_token" in data


def write_served(answer: Mapping[str, Any], path: Path, force: bool = False) -> Path:
    """Writes the page about an answer."""
    return write(path, render(page(answer)), force)


def page(answer: Mapping[str, Any]) -> Page:
    """The page; a section with nothing in it is left out."""
    shown = show_inference(answer)
    tables = [block for block in shown.blocks if isinstance(block, Table)]
    bars = [block for block in shown.blocks if isinstance(block, Bars)]
    sections = [
        block_section("overview", "What it gives", list(shown.head)),
        *serving_curves.sections(answer),
        block_section("layouts", "Layouts", [block for block in tables if block.title.startswith("The cheapest")]),
        block_section("parts", "Where time and memory go", bars),
        block_section(
            "tables", "In numbers", [block for block in tables if not block.title.startswith("The cheapest")]
        ),
    ]
    status, kind = _status(answer)
    lengths = f"{count(answer['input_len'])} tokens in, {count(answer['output_len'])} out"
    return Page(
        title=shown.title, status=status, status_kind=kind,
        facts=[answer["cluster"], lengths, f"cache in {answer['kv_precision']}"],
        sections=[section for section in sections if section is not None], scripts=SCRIPTS, styles=STYLES,
    )  # fmt: skip


def _status(answer: Mapping[str, Any]) -> tuple[str, str]:
    if not answer["fits"]:
        return "doesn't fit", "bad"
    if answer["overloaded"]:
        return "overloaded", "bad"
    kept = answer["meets_targets"]
    return (
        ("fits", "good") if kept is None else ("keeps its targets", "good") if kept else ("misses its targets", "bad")
    )

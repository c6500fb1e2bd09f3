"""The page of a budget, a goodput, a chaos, a term or a lab: its lines, then its bars and tables, as one file.

answer (its --json) ──► blocks (present/) ──► sections of a page

>>> write_answer(sw.budget(flops=1e21), "budget.html")
PosixPath('budget.html')
"""

from __future__ import annotations

from pathlib import Path

from scalewright.report.document import JSON
from scalewright.report.page import Page, block_section, render, write
from scalewright.report.present import show_answer
from scalewright.report.present.blocks import Line, Note, Text
from scalewright.report.sections.chaos import in_time
from scalewright.report.sections.lab import pictures

STYLES = ("report.css", "plan.css", "diagnosis.css")
KINDS = {
    "tokens_per_param": "Budget",
    "young_daly_interval_s": "Goodput",
    "faults": "Chaos",
    "see": "Term",
    "lab": "Lab",
}


def kind_of(answer: JSON) -> str | None:
    """Which of these answers it is; None for something else."""
    return next((kind for key, kind in KINDS.items() if key in answer), None)


def write_answer(answer: JSON, path: str | Path, force: bool = False) -> Path:
    """Writes the page of an answer of `kind_of`; UserError where another file would go."""
    shown, kind = show_answer(answer), kind_of(answer) or "Answer"
    said = [block for block in shown.blocks if isinstance(block, (Line, Note))]
    drawn = [block for block in shown.blocks if isinstance(block, Text) and kind == "Lab"]
    sections = [
        block_section("answer", "The answer", [*shown.head, *(said if kind != "Lab" else ())]),
        in_time(answer) if kind == "Chaos" else None,
        *(pictures(answer) if kind == "Lab" else ()),
        block_section("numbers", "In numbers", [block for block in shown.blocks if block not in (*said, *drawn)]),
        block_section("next", "What next", said) if kind == "Lab" else None,
    ]
    page = Page(
        title=shown.title, status=kind, status_kind="plain", facts=[],
        sections=[section for section in sections if section is not None], scripts=("words.js", "theme.js"),
        styles=STYLES,
    )  # fmt: skip
    return write(Path(path), render(page), force)

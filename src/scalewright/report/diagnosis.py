"""The page of a diagnosis: what binds the run and what would help, then what each rank did when.

answer of `diagnose` (its --json) ──┬──► causes, time, ranks, communication, kernels, memory, steps
Timeline of a trace's ranks ────────┴──► lanes to zoom
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scalewright.diagnose.timeline import Timeline
from scalewright.report.page import Page, Section, render, write
from scalewright.report.sections import (
    diagnosis_causes,
    diagnosis_change,
    diagnosis_curves,
    diagnosis_lanes,
    diagnosis_memory,
    diagnosis_ranks,
    diagnosis_tables,
    diagnosis_time,
)

Answer = Mapping[str, Any]
SECTIONS: tuple[Callable[[Answer], Section | None], ...] = (
    diagnosis_ranks.section,
    diagnosis_memory.section,
    diagnosis_curves.section,
    diagnosis_tables.section,
)
SCRIPTS = ("words.js", "theme.js", "canvas.js", "pipeline.js")
STYLES = ("report.css", "plan.css", "diagnosis.css")


def write_diagnosis(
    answer: Answer, path: str | Path, lanes: Timeline | None = None, text: str = "", force: bool = False
) -> Path:
    """Writes the page; `text`: what the terminal shows, folded. UserError where another file would go."""
    return write(Path(path), render(page(answer, lanes, text)), force)


def page(answer: Answer, lanes: Timeline | None = None, text: str = "") -> Page:
    """The page of an answer; a section with nothing to show is left out."""
    sections = [
        diagnosis_causes.section(answer),
        diagnosis_change.section(answer),
        diagnosis_time.section(answer),
        diagnosis_lanes.section(lanes) if lanes is not None else None,
        *(make(answer) for make in SECTIONS),
        Section(
            "text",
            "As on the terminal",
            "diagnosis_text.html",
            {"text": text, "open": answer["kind"] != "trace"},
        )
        if text
        else None,
    ]
    return Page(
        title=diagnosis_causes.title(answer),
        status=diagnosis_causes.status(answer),
        status_kind="warn" if answer["verdicts"] else "good",
        facts=diagnosis_causes.facts(answer),
        sections=[section for section in sections if section is not None],
        notes=answer["warnings"],
        scripts=SCRIPTS,
        styles=STYLES,
    )

"""The report of a plan: which layout and what it costs, how its step goes, and how sure that is.

>>> write_plan(json.loads(Path("plan.json").read_text()), Path("plan.html"))
PosixPath('plan.html')
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scalewright.report.document import PlanDocument, read_document, read_plan
from scalewright.report.page import Page, Section, render, write
from scalewright.report.sections import (
    plan_changes,
    plan_evidence,
    plan_layouts,
    plan_memory,
    plan_overview,
    plan_pareto,
    plan_pipeline,
    plan_ranks,
    plan_scaling,
    plan_time,
)

SECTIONS: tuple[Callable[[PlanDocument], Section | None], ...] = (
    plan_overview.section,
    plan_layouts.section,
    plan_evidence.section,
    plan_pipeline.section,
    plan_time.section,
    plan_changes.section,
    plan_memory.section,
    plan_pareto.section,
    plan_scaling.section,
    plan_ranks.section,
)
SCRIPTS = ("words.js", "theme.js", "canvas.js", "pipeline.js", "scatter.js", "ranks.js", "copy.js")
STYLES = ("report.css", "plan.css")


def write_plan(document: Mapping[str, Any], path: str | Path) -> Path:
    """Writes the page about what `plan --json` or `predict --json` answered; UserError when it is no plan."""
    return write(Path(path), render(page(read_document(document))))


def write_plan_file(source: str | Path, out: str | Path | None = None, force: bool = False) -> Path:
    """The same from a JSON file; by default the page is put beside it, as .html."""
    source = Path(source)
    path = Path(out) if out is not None else source.with_suffix(".html")
    return write(path, render(page(read_plan(source))), force)


def page(document: PlanDocument) -> Page:
    """The page about a plan; an empty section is left out."""
    sections = [make(document) for make in SECTIONS]
    status, kind = plan_overview.status(document)
    return Page(
        title=plan_overview.title(document),
        status=status,
        status_kind=kind,
        facts=plan_overview.facts(document),
        sections=[section for section in sections if section is not None],
        notes=plan_overview.notes(document),
        scripts=SCRIPTS,
        styles=STYLES,
    )

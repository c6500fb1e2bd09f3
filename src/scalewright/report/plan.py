"""The report of a plan: which layout and what it costs, how its step goes, and how sure that is.

>>> write_plan_file("plan.json")
PosixPath('plan.html')
"""

from __future__ import annotations

from pathlib import Path

from scalewright.report.document import PlanDocument, read_plan
from scalewright.report.page import Page, block_section, render, write
from scalewright.report.present.blocks import Block, Note, Text
from scalewright.report.present.plan import emitted_blocks, reasons, scaling, show_plan, yours_blocks, yours_of
from scalewright.report.present.prediction import assumed_notes, evidence, show_prediction, title, what_if
from scalewright.report.sections import plan_layouts, plan_memory, plan_overview, plan_pipeline, plan_ranks

SCRIPTS = ("words.js", "theme.js", "canvas.js", "pipeline.js", "scatter.js", "ranks.js", "copy.js")
STYLES = ("report.css", "plan.css", "diagnosis.css")


def write_plan_file(source: str | Path, out: str | Path | None = None, force: bool = False) -> Path:
    """Writes the page about what `plan --json` or `predict --json` wrote, by default beside it, as .html; UserError."""
    source = Path(source)
    path = Path(out) if out is not None else source.with_suffix(".html")
    return write(path, render(page(read_plan(source))), force)


def page(document: PlanDocument) -> Page:
    """The page about a plan; an empty section is left out."""
    best = document.first
    sections = [
        plan_layouts.layouts_section(document),
        block_section("reasons", "Why not the others", others(document)),
    ]
    if best is not None:
        shown = show_plan(document) if document.searched else show_prediction(document)
        sections = [
            plan_overview.section(document, shown), *sections,
            block_section("evidence", "How sure", [*evidence(best), *assumed_notes(document, best)]),
            plan_pipeline.section(document), plan_memory.time_section(document),
            block_section("what-if", "What would change it", [*what_if(best)]), plan_memory.memory_section(document),
            plan_layouts.pareto_section(document), block_section("scaling", "On more devices", [*scaling(document)]),
            plan_ranks.section(document),
        ]  # fmt: skip
    status, kind = plan_overview.status(document)
    return Page(
        title=title(document), status=status, status_kind=kind, facts=plan_overview.facts(document),
        sections=[section for section in sections if section is not None], notes=plan_overview.notes(document),
        scripts=SCRIPTS, styles=STYLES,
    )  # fmt: skip


def others(document: PlanDocument) -> list[Block]:
    """Changes to the layout to beat, and what costs those that were not chosen; the lines stand above."""
    yours = yours_of(document)
    blocks = [*(yours_blocks(document, yours) if yours else ()), *emitted_blocks(document), *reasons(document)]
    return [block for block in blocks if isinstance(block, (Note, Text))]

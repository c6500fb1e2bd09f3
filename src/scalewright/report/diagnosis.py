"""The page of a diagnosis: the answer in lines, the causes, then what each rank did when, and all tables.

answer of `diagnose` (its --json) ──► blocks (present/diagnosis.py), curves, a map of the ranks
Timeline of a trace's ranks ────────► lanes to zoom
"""

from __future__ import annotations

from pathlib import Path

from scalewright.diagnose.timeline import Timeline
from scalewright.report.document import JSON
from scalewright.report.page import Page, block_section, render, write
from scalewright.report.present.comparison import show_against, show_what_if
from scalewright.report.present.diagnosis import cause_notes, head, measured
from scalewright.report.present.tables import tables
from scalewright.report.sections import diagnosis_ranks
from scalewright.spec.common.formatting import counted, short_time

TITLES = {
    "trace": "Where the time went", "flight_recorder": "Where it hung", "memory": "Where the memory went",
    "nccl": "What NCCL chose", "log": "A log of training", "run": "A run", "kernels": "How good kernels are",
}  # fmt: skip
SCRIPTS = ("words.js", "theme.js", "canvas.js", "pipeline.js")
STYLES = ("report.css", "plan.css", "diagnosis.css")


def write_diagnosis(answer: JSON, path: str | Path, lanes: Timeline | None = None, force: bool = False) -> Path:
    """Writes the page; UserError where another file would go."""
    return write(Path(path), render(page(answer, lanes)), force)


def page(answer: JSON, lanes: Timeline | None = None) -> Page:
    """The page of an answer; a section with nothing to show is left out."""
    change = [*show_what_if(answer.get("what_if") or ()), *show_against(answer.get("against"))]
    drawn = [
        diagnosis_ranks.lanes_section(lanes) if lanes is not None else None,
        diagnosis_ranks.section(answer),
        diagnosis_ranks.memory_section(answer),
        diagnosis_ranks.steps_section(answer),
    ]
    sections = [
        block_section("answer", "The answer", [*head(answer), *measured(answer)]),
        block_section("causes", "What binds it", cause_notes(answer["verdicts"])),
        block_section("change", "What changed, what would", change),
        *drawn,
        block_section("tables", "In numbers", [*tables(answer)]),
    ]
    return Page(
        title=TITLES.get(answer["kind"], "Diagnosis"),
        status=str(answer["verdicts"][0]["cause"]) if answer["verdicts"] else "no cause found",
        status_kind="warn" if answer["verdicts"] else "good", facts=_facts(answer),
        sections=[section for section in sections if section is not None], notes=answer["warnings"], scripts=SCRIPTS,
        styles=STYLES,
    )  # fmt: skip


def _facts(answer: JSON) -> list[str]:
    if answer["kind"] != "trace":
        return []
    ranks = answer["per_rank"]
    words = [short_time(answer["window_s"]), counted(len(ranks), "ranks")]
    words += [answer["device"]] if answer["device"] else []
    return [*words, counted(len(answer["steps"]), "steps")] if answer["steps"] else words

"""The report of a run: is it sound, what it reached and how, where the time went, with which settings.

>>> write_report("runs/demo")
PosixPath('runs/demo/report.html')
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scalewright.report.folder import RunFolder, read_folder
from scalewright.report.page import Page, Section, render, write
from scalewright.report.sections import (
    comparison,
    configuration,
    curves,
    experts,
    health,
    overview,
    pipeline,
    timeline,
    wall_time,
)  # fmt: skip

SECTIONS: tuple[Callable[[RunFolder], Section | None], ...] = (
    health.section, overview.section, curves.section, experts.section, wall_time.section, comparison.spent_section,
    comparison.section, pipeline.section, overview.sample_section, timeline.section, configuration.section,
    configuration.environment_section,
)  # fmt: skip


def write_report(run_dir: str | Path, out: str | Path | None = None, force: bool = False) -> Path:
    """Writes the page about a run's folder, by default `report.html` in it; UserError when it is none."""
    run = read_folder(run_dir)
    return write(Path(out) if out is not None else run.path / "report.html", render(page(run)), force)


def page(run: RunFolder) -> Page:
    """The page about a run; an empty section is left out."""
    sections = [make(run) for make in SECTIONS]
    status, kind = health.status(run)
    return Page(
        title=run.name, status=status, status_kind=kind, facts=overview.facts(run),
        sections=[section for section in sections if section is not None], notes=list(run.problems),
        footer=f"Scalewright {run.environment.get('versions', {}).get('scalewright', '')}".strip(),
    )  # fmt: skip

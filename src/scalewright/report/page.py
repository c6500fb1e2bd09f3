"""A page is a head and sections; a section is a template with its data; everything is inside the one file.

A new kind of page (a plan, a pipeline's timeline) is a new list of sections; a new section is one small
Python file that gathers its data, and one small template that shows it.
"""

from __future__ import annotations

import importlib.resources
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2

from scalewright.spec.errors import RunError


@dataclass(frozen=True)
class Section:
    """One part of a page: `template` is a file in `templates/sections/`, the rest is data for scripts.

    `charts` are curves over a run's steps, which share a cursor; a drawing says itself what it is.
    """

    id: str
    title: str
    template: str
    data: Mapping[str, Any] = field(default_factory=dict)
    charts: Sequence[Mapping[str, Any]] = ()
    drawings: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Page:
    """A whole page. `facts` are short words under the title, `notes` what a reader should know first."""

    title: str
    status: str
    status_kind: str  # good | warn | bad | plain: its colour
    facts: Sequence[str]
    sections: Sequence[Section]
    notes: Sequence[str] = ()
    footer: str = ""
    scripts: Sequence[str] = ("words.js", "theme.js", "report.js")
    styles: Sequence[str] = ("report.css",)


def render(page: Page) -> str:
    """The page as one HTML text; every value in it is escaped."""
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("scalewright.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return templates.get_template("page.html").render(
        page=page,
        charts=[chart for section in page.sections for chart in section.charts],
        drawings=[drawing for section in page.sections for drawing in section.drawings],
        css="".join(map(_asset, page.styles)),
        js="".join(map(_asset, page.scripts)),
    )


def write(path: Path, text: str) -> Path:
    """Writes a page whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def _asset(name: str) -> str:
    return (importlib.resources.files("scalewright.report") / "assets" / name).read_text(encoding="utf-8")

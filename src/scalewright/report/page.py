"""A page is a head and sections; a section is a template with its data; everything is inside the one file.

A new kind of page (a plan, a pipeline's timeline) is a new list of sections; a new section is one small
Python file that gathers its data, and one small template that shows it.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from scalewright.report.present.blocks import Block, Line, left_out
from scalewright.spec.common.files import write_whole
from scalewright.spec.common.formatting import printable
from scalewright.spec.errors import RunError, UserError


@dataclass(frozen=True)
class Section:
    """One part of a page: `template` is a file in `templates/sections/`, the rest is data for scripts.

    `charts` are curves over a run's steps, which share a cursor; a drawing names its own type.
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
    footer: str = "Scalewright"
    scripts: Sequence[str] = ("words.js", "theme.js", "report.js")
    styles: Sequence[str] = ("report.css",)


def block_section(id: str, title: str, blocks: Sequence[Block]) -> Section | None:
    """A section of an answer's blocks; neighbouring lines make one list. None where there is nothing."""
    return Section(id, title, "blocks.html", {"blocks": grouped(blocks)}) if blocks else None


def grouped(blocks: Sequence[Block]) -> list[dict[str, object]]:
    """Blocks with their kinds, as the template takes them; lines of one label are its items."""
    groups: list[dict[str, object]] = []
    lines: list[Line] = []
    for block in blocks:
        if not isinstance(block, Line):
            groups.append({"kind": type(block).__name__, "block": block, "left_out": left_out(block)})
            lines = []
        elif lines and lines[-1].label == block.label:  # of the same: a list
            lines[-1] = replace(lines[-1], items=[*(lines[-1].items or [lines[-1].text]), block.text])
        elif lines:
            lines.append(block)
        else:
            groups.append({"kind": "lines", "lines": (lines := [block])})
    return groups


def render(page: Page) -> str:
    """The page as one HTML text; every value in it is escaped."""
    return (
        _templates()
        .get_template("page.html")
        .render(
            page=page,
            charts=[chart for section in page.sections for chart in section.charts],
            drawings=[drawing for section in page.sections for drawing in section.drawings],
            css="".join(map(asset, page.styles)),
            js="".join(map(asset, page.scripts)),
        )
    )


def render_section(section: Section | None) -> str:
    """The inside of one section, for a page that puts it in its place; empty where there is none."""
    if section is None:
        return ""
    return _templates().get_template(f"sections/{section.template}").render(data=section.data)


@cache
def _templates() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("scalewright.report"), autoescape=True, undefined=jinja2.StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip


def write(path: Path, text: str, force: bool = False) -> Path:
    """Writes a page whole or not at all; UserError where something else than a page of ours is replaced."""
    try:
        check_page(path, force)
        write_whole(path, text)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def check_page(path: Path, force: bool) -> None:
    """Raises UserError where a page would replace something else; called before long work."""
    if not force and not _is_ours(path):
        how = "give another name, or --force to replace it"
        raise UserError("the file is there already, and is no report", str(path), how)


def _is_ours(path: Path) -> bool:
    """Whether this may be replaced: nothing, or a page that names this program, as all of ours do."""
    if path.is_symlink() or not path.is_file():
        return not path.is_symlink() and not path.exists()
    text = path.read_text(encoding="utf-8", errors="replace")
    return text[:100].lstrip().lower().startswith("<!doctype html") and "Scalewright" in text


def asset(name: str) -> str:
    """A style or a script of the pages."""
    return (importlib.resources.files("scalewright.report") / "assets" / name).read_text(encoding="utf-8")

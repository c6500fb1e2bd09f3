"""Emitted scripts from their templates: the same settings give the same text."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from scalewright.emit.emitted import yaml_text

FOLDER = Path(__file__).parent
SAMPLES = (FOLDER / "samples.txt").read_text(encoding="utf-8")


@cache
def _templates() -> jinja2.Environment:
    """Of Python text: nothing is escaped, and an unknown name is an error."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=False,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["py"] = python
    return templates


def python(value: Any) -> str:
    """A value as Python writes it, texts in double quotes."""
    if isinstance(value, tuple):
        return f"({', '.join(map(python, value))})"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def render(name: str, **facts: Any) -> str:
    """A template of this folder with these facts; `| py` writes a value as Python does."""
    text = _templates().get_template(f"{name}.txt").render(**facts)
    return re.sub(r"\n{4,}", "\n\n\n", text).strip() + "\n"  # where parts were left out


def as_yaml(data: Any, *notes: str) -> str:
    """YAML as it is written into files, below comments."""
    return yaml_text(notes, data)


def as_json(data: Any) -> str:
    """JSON as it is written into files."""
    return json.dumps(data, indent=2) + "\n"

"""The page as one HTML text: the report's styles and scripts, uPlot, and this room's own; nothing from elsewhere.

>>> page_text(start, models, clusters)             # live: it asks the server that sent it
>>> page_text(start, (), (), frozen(start))        # by itself: all that it shows is inside
"""

from __future__ import annotations

import base64
import gzip
import importlib.resources
import json
from collections.abc import Collection
from functools import cache
from typing import Any

import jinja2

from scalewright.explore.state import State
from scalewright.report.page import asset

STYLES, SCRIPTS = (
    ("report.css", "plan.css", "diagnosis.css"),
    ("words.js", "theme.js", "canvas.js", "pipeline.js", "copy.js"),
)
UPLOT = "uPlot-1.6.32"


def page_text(
    start: State, models: Collection[str], clusters: Collection[str], frozen: dict[str, Any] | None = None
) -> str:
    """The whole page, which begins with `start`; `frozen`: its answers, where it has no server."""
    template = jinja2.Template(_own("explore.html"), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    packed = "" if frozen is None else base64.b64encode(gzip.compress(json.dumps(frozen).encode(), mtime=0)).decode()
    text: str = template.render(
        start=start, query=start.query(), models=sorted(models), clusters=sorted(clusters), packed=packed,
        css="".join([*map(asset, STYLES), _own(f"{UPLOT}.min.css"), _own("explore.css")]),
        js="\n".join([*map(asset, SCRIPTS), _own(f"{UPLOT}.iife.min.js"), _own("plots.js"), _own("explore.js")]),
    )  # fmt: skip
    return text


@cache
def _own(name: str) -> str:
    return (importlib.resources.files("scalewright.explore") / "assets" / name).read_text(encoding="utf-8")

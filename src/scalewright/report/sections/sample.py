"""A text that the model wrote."""

from __future__ import annotations

from scalewright.report.folder import RunFolder
from scalewright.report.page import Section

LONGEST = 4000  # characters: a page's worth


def section(run: RunFolder) -> Section | None:
    text = run.sample.strip("\n")
    if not text:
        return None
    return Section(
        "sample", "What it writes", "sample.html", {"text": text[:LONGEST], "cut": len(text) > LONGEST}
    )

"""Which trainers run a layout."""

from __future__ import annotations

from scalewright.report.document import Estimate


def runs_in(one: Estimate) -> list[str]:
    """Names of the trainers that have all of a layout."""
    return [] if one.read.text("untrainable") else ["Scalewright"]

"""Which trainers run a layout: the plan's own, then those of capabilities.yaml that have all of it."""

from __future__ import annotations

from scalewright.plan.capabilities import find_capabilities, titled_trainers
from scalewright.plan.frameworks import OURS
from scalewright.report.document import Estimate


def runs_in(one: Estimate) -> list[str]:
    """Titles of the trainers; one of unknown capabilities is listed only where the plan is for it."""
    own = one.read.text("framework") or OURS
    names = [own, *(name for name in titled_trainers() if name != own)]
    return [find_capabilities(name).title for name in names if _runs(name, one, own)]


def is_ours(one: Estimate) -> bool:
    """Whether a layout was priced for this project's own trainer; plans that name none were."""
    return one.read.text("framework") in ("", OURS)


def untrainable(one: Estimate) -> str:
    """Why `scalewright train` can't run a layout; empty where it can, or where another trainer is to."""
    return one.read.text("untrainable") if is_ours(one) else ""


def _runs(name: str, one: Estimate, own: str) -> bool:
    capabilities = find_capabilities(name)
    if name == OURS and one.read.text("untrainable"):
        return False
    return (capabilities.known or name == own) and not capabilities.missing(one.layout)

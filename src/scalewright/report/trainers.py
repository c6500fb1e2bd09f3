"""Which trainers run a layout: the plan's own, then those of capabilities.yaml that have all of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalewright.plan.frameworks import OURS
from scalewright.report.document import Estimate
from scalewright.spec.capabilities import find_capabilities, titled_trainers

SIZES = ("devices", "tp", "pp", "cp", "ep", "etp", "dp", "dp_replicate", "virtual_stages", "zero_stage")
KINDS = ("schedule", "cp_kind", "offload")


def runs_in(estimate: Estimate) -> list[str]:
    """Titles of the trainers; one of unknown capabilities is listed only where the plan is for it."""
    if not _well_formed(estimate.layout):
        return []
    planned_for = estimate.read.text("framework") or OURS
    names = [planned_for, *(name for name in titled_trainers() if name != planned_for)]
    return [find_capabilities(name).title for name in names if _runs(name, estimate, planned_for)]


def is_ours(estimate: Estimate) -> bool:
    """Whether a layout was priced for this project's own trainer; plans that name none were."""
    return estimate.read.text("framework") in ("", OURS)


def untrainable(estimate: Estimate) -> str:
    """Why `scalewright train` can't run a layout; empty where it can, or where another trainer is to."""
    return estimate.read.text("untrainable") if is_ours(estimate) else ""


def _well_formed(layout: Mapping[str, Any]) -> bool:
    """Whether sizes are numbers and kinds are words: for any other layout no trainer is listed."""
    recompute = layout.get("recompute")
    kinds = [layout.get(key) for key in KINDS]
    if isinstance(recompute, Mapping) and len(recompute) == 1:  # {every: 2}
        kinds += recompute
    else:
        kinds.append(recompute)
    sizes = [layout.get(key) for key in SIZES]
    return all(size is None or isinstance(size, (int, float)) for size in sizes) and all(
        kind is None or isinstance(kind, str) for kind in kinds
    )


def _runs(name: str, estimate: Estimate, planned_for: str) -> bool:
    capabilities = find_capabilities(name)
    if name == OURS and estimate.read.text("untrainable"):
        return False
    device = estimate.read.data.get("device")
    kind = device.get("kind") if isinstance(device, Mapping) else None
    if isinstance(kind, str) and not capabilities.runs_on(kind):
        return False
    return (capabilities.known or name == planned_for) and not capabilities.missing(estimate.layout)

"""Which trainers run a layout, by what the planner knows of each (plan/data/capabilities.yaml)."""

from __future__ import annotations

from scalewright.plan.capabilities import find_capabilities
from scalewright.report.document import Estimate

TRAINERS = {
    "scalewright": "Scalewright", "megatron": "Megatron", "torchtitan": "torchtitan",
    "deepspeed": "DeepSpeed", "nanotron": "nanotron",
}  # fmt: skip


def runs_in(one: Estimate) -> list[str]:
    """Names of the trainers that have all of a layout; one without known capabilities is left out."""
    found = []
    for key, name in TRAINERS.items():
        has = find_capabilities(key)
        if has.known and not has.missing(one.layout) and not (key == "scalewright" and _refused(one)):
            found.append(name)
    return found


def _refused(one: Estimate) -> bool:
    """Whether `train` refuses it for another reason than the layout's own keys."""
    return bool(one.read.text("untrainable"))

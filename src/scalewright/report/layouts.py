"""A layout in words, in the order of the mesh, and which trainers run it.

tp 8 · pp 4 x 5 interleaved · cp 2 ring · dp 16 (4 replicas) · zero 3 · micro-batch 1 x 16 · recompute full
"""

from __future__ import annotations

from collections.abc import Mapping

from scalewright.plan.frameworks import OURS
from scalewright.report.document import JSON, Estimate, integer
from scalewright.spec.capabilities import find_capabilities, titled_trainers

SIZES = ("devices", "tp", "pp", "cp", "ep", "etp", "dp", "dp_replicate", "virtual_stages", "zero_stage")
KINDS = ("schedule", "cp_kind", "offload")


def layout_words(layout: JSON) -> list[str]:
    """The axes and techniques of a layout, without those that are off; of one from a file, what it has."""
    size = {axis: integer(layout.get(axis)) for axis in SIZES}
    words = []
    if size["tp"] > 1:
        words.append(f"tp {size['tp']}" + (" without sp" if layout.get("sp") is False else ""))
    if size["pp"] > 1:
        chunks = f" x {size['virtual_stages']}" if size["virtual_stages"] > 1 else ""
        words.append(f"pp {size['pp']}{chunks} {layout.get('schedule', '')}".rstrip())
    if size["cp"] > 1:
        words.append(f"cp {size['cp']} {layout.get('cp_kind', '')}".rstrip())
    if size["ep"] > 1 or size["etp"] > 1:
        words.append(f"ep {size['ep']}" + (f" etp {size['etp']}" if size["etp"] > 1 else ""))
    copies = f" ({size['dp_replicate']} replicas)" if size["dp_replicate"] > 1 else ""
    words.append(f"dp {size['dp']}{copies}")
    if layout.get("zero_stage") is not None:
        words.append(f"zero {layout['zero_stage']}")
    if layout.get("micro_batch") is not None:
        words.append(f"micro-batch {integer(layout['micro_batch'])}{_times(layout, size['dp'])}")
    recompute = recompute_words(layout.get("recompute"))
    words += [f"recompute {recompute}"] if recompute else []
    return [*words, f"offload {layout['offload']}"] if layout.get("offload") not in (None, "none") else words


def one_line(layout: JSON) -> str:
    return " · ".join(layout_words(layout))


def with_precision(layout: JSON) -> list[str]:
    """The words of a layout, and its precision where one is set."""
    precision = layout.get("precision")
    return [*layout_words(layout), *([str(precision)] if precision not in (None, "auto") else [])]


def _times(layout: JSON, dp: int) -> str:
    """` x 16`: the micro-batches of a step, where the batch is known."""
    batch = layout.get("global_batch")
    if isinstance(batch, bool) or not isinstance(batch, (int, float)):
        return ""
    return f" x {batch / (integer(layout.get('micro_batch')) * dp):g}"


def recompute_words(kind: object) -> str:
    """The recomputed part; empty when nothing is recomputed."""
    if isinstance(kind, Mapping):
        return " ".join(f"{key} {value}" for key, value in kind.items())
    return "" if kind in (None, "none") else str(kind)


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


def _well_formed(layout: JSON) -> bool:
    """Whether sizes are numbers and kinds are words: for any other layout no trainer is listed."""
    recompute = layout.get("recompute")
    kinds = [layout.get(key) for key in KINDS]
    kinds += recompute if isinstance(recompute, Mapping) and len(recompute) == 1 else [recompute]  # {every: 2}
    sizes = [layout.get(key) for key in SIZES]
    plain = all(size is None or isinstance(size, (int, float)) for size in sizes)
    return plain and all(kind is None or isinstance(kind, str) for kind in kinds)


def _runs(name: str, estimate: Estimate, planned_for: str) -> bool:
    capabilities = find_capabilities(name)
    if name == OURS and estimate.read.text("untrainable"):
        return False
    device = estimate.read.data.get("device")
    kind = device.get("kind") if isinstance(device, Mapping) else None
    if isinstance(kind, str) and not capabilities.runs_on(kind):
        return False
    return (capabilities.known or name == planned_for) and not capabilities.missing(estimate.layout)

"""A layout in one line, in the order of the mesh: `tp 8 · pp 4 × 5 interleaved · dp 16 ZeRO 3 · ...`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalewright.report.document import integer


def layout_text(layout: Mapping[str, Any]) -> list[str]:
    """The axes and techniques of a layout, without axes of size 1 and techniques that are off."""
    size = {axis: integer(layout.get(axis)) for axis in ("tp", "cp", "ep", "etp", "pp", "dp")}
    words = [f"{axis} {size[axis]}" for axis in ("tp", "cp", "ep", "etp") if size[axis] > 1]
    if size["pp"] > 1:
        chunks = integer(layout.get("virtual_stages"))
        words.append(
            f"pp {size['pp']}" + (f" × {chunks}" if chunks > 1 else "") + f" {layout.get('schedule', '')}"
        )
    words.append(data_words(layout, size["dp"]))
    words.append(f"micro-batch {integer(layout.get('micro_batch'))}")
    words += [recompute_words(layout.get("recompute"))]
    if layout.get("offload") not in (None, "none"):
        words.append(f"offload {layout['offload']}")
    if layout.get("precision") not in (None, "auto"):
        words.append(str(layout["precision"]))
    return [word for word in words if word]


def data_words(layout: Mapping[str, Any], dp: int) -> str:
    """Data parallelism: its size, replicas, and what ZeRO shards."""
    copies = integer(layout.get("dp_replicate"))
    words = f"dp {dp}" + (f" in {copies} replicas" if copies > 1 else "")
    stage = layout.get("zero_stage")
    return words + (f" ZeRO {stage}" if stage and dp > 1 else "")


def recompute_words(kind: object) -> str:
    """The recomputed part; empty when nothing is recomputed."""
    if kind in (None, "none"):
        return ""
    if isinstance(kind, Mapping):
        return "recompute " + ", ".join(f"{key} {value}" for key, value in kind.items())
    return f"recompute {kind}"

"""What a launch line needs beside the layout: the checkpoint, its format, the engine's limits as priced."""

from __future__ import annotations

from typing import Any

import numpy as np

from scalewright.inference import cost
from scalewright.inference.rows import names
from scalewright.inference.setup import Columns, Question
from scalewright.spec.presets import preset, preset_id

MOST_TOKENS = 2**31


def server(q: Question, t: Columns) -> dict[str, Any]:
    """The keys of `server`; `t` has this question's columns. `checkpoint`: a hub's name, null for one's own model."""
    known = None if (known_id := preset_id(q.model.name)) is None else preset(known_id)
    published = known is not None and known.spec == q.model
    return {
        "checkpoint": known.hf_id if known is not None and published else None,
        "stored": names()["native"].get(q.model.name, "bf16"), "context": q.model.context,
        "longest_that_fits": _longest(t), "max_seqs": int(t.slots[0]), "max_batched_tokens": int(t.chunk[0]),
        "memory_share": q.memory or q.engine.memory, "prefix_hit": q.prefix_hit, "mtp": q.model.mtp_layers > 0,
        "experts": q.model.moe is not None, "devices_per_node": q.cluster.devices_per_node,
        "vendor": q.cluster.device.vendor.lower(),
    }  # fmt: skip


def _longest(t: Columns) -> int:
    """Tokens of one sequence that the cache holds; layers with a window stop at it."""
    room = float(cost.pool_bytes(t)[0] - t.state_bytes[0])
    full, window = float(t.full_bytes[0]), float(t.window_bytes[0])
    inside = min(room / (full + window), float(t.window[0])) if full + window else np.inf
    beyond = (room - window * float(t.window[0])) / full if full else MOST_TOKENS
    return int(max(0, min(max(inside, beyond) if inside >= t.window[0] or not window else inside, MOST_TOKENS)))

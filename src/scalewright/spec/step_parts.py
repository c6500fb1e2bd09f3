"""The parts of a step's time, in one set of words for what was measured and what was predicted.

metrics.jsonl  breakdown_s         comm_dp_shard, comm_tp, data …   ╲
                                                                      ──► dp, tp, data …
predict        time_breakdown_s    dp_exposed, tp_exposed …         ╱
"""

from __future__ import annotations

from collections.abc import Mapping

PARTS = {  # key -> its name; the order is that of the bars
    "compute": "computation",
    "tp": "tensor-parallel communication",
    "cp": "context-parallel communication",
    "ep": "expert-parallel communication",
    "dp": "data-parallel communication",
    "pp": "pipeline: bubble and messages",
    "data": "data loading",
    "optimizer": "optimizer",
    "other": "everything else",
}
SAME = {  # what is called otherwise in metrics or in a prediction
    "recompute": "compute", "kv": "tp", "etp": "ep", "dp_shard": "dp", "dp_replicate": "dp", "fsdp": "dp",
    "loss": "dp", "batch": "dp", "tie": "pp", "pp_bubble": "pp", "bubble": "pp", "idle": "other",
    "control": "other", "world": "other",
}  # fmt: skip


def together(parts: object) -> dict[str, float]:
    """Seconds by the keys of PARTS, from either side's names; what takes no time is left out."""
    found: dict[str, float] = {}
    for key, seconds in parts.items() if isinstance(parts, Mapping) else ():
        name = str(key).removeprefix("comm_").removesuffix("_exposed")
        name = SAME.get(name, name)
        if isinstance(seconds, (int, float)) and seconds > 0:
            found[name] = found.get(name, 0.0) + float(seconds)
    return found

"""The parts of a step's time and their terms, as all tables, texts and pages name them.

metrics.jsonl  breakdown_s         comm_dp_shard, comm_tp, data …   ╲
                                                                      ──► dp, tp, data …
predict        time_breakdown_s    dp_exposed, tp_exposed …         ╱

"exposed" is communication that no computation hides: time in which a device waits.
"""

from __future__ import annotations

from collections.abc import Mapping

PARTS = {  # key -> its term; the order is that of the bars
    "compute": "compute",
    "tp": "tensor parallel, exposed",
    "cp": "context parallel, exposed",
    "ep": "expert parallel, exposed",
    "dp": "data parallel, exposed",
    "pp": "pipeline bubble and messages",
    "data": "data loading",
    "optimizer": "optimizer",
    "other": "host and other",
}
FINER = {  # parts that a prediction separates, and a measurement includes in another
    "recompute": "recomputation",
    "pp_bubble": "pipeline bubble",
    "pp_exposed": "pipeline messages, exposed",
}
SAME = {  # other names of the parts in metrics and predictions
    "recompute": "compute", "kv": "tp", "etp": "ep", "dp_shard": "dp", "dp_replicate": "dp", "fsdp": "dp", "loss": "dp",
    "batch": "dp", "tie": "pp", "pp_bubble": "pp", "bubble": "pp", "idle": "other", "control": "other",
    "world": "other",
}  # fmt: skip


def together(parts: object) -> dict[str, float]:
    """Seconds by the keys of PARTS, from either side's names; parts without time are left out."""
    sums: dict[str, float] = {}
    for key, seconds in parts.items() if isinstance(parts, Mapping) else ():
        name = str(key).removeprefix("comm_").removesuffix("_exposed")
        name = SAME.get(name, name)
        if isinstance(seconds, (int, float)) and seconds > 0:
            sums[name] = sums.get(name, 0.0) + float(seconds)
    return sums


KEYS = (  # of `time_breakdown_s`
    "compute", "recompute", "tp_exposed", "dp_exposed", "cp_exposed", "ep_exposed", "pp_bubble", "pp_exposed",
    "optimizer", "other",
)  # fmt: skip
PART_TERMS = {key: FINER.get(key) or PARTS[key.removesuffix("_exposed")] for key in KEYS}
# Values of `risk`, of a prediction and of a dry run.
RISK_TERMS = {"fits": "fits", "likely": "likely to fit", "unlikely": "unlikely to fit", "no": "does not fit"}
TOO_LARGE = (RISK_TERMS["unlikely"], RISK_TERMS["no"])

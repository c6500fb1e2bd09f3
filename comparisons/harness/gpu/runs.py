"""Run files of our own for the parts that train: random tokens, a small model, nothing saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from harness.gpu.budget import Check

# Large enough that activations and states stand out beside a context's own memory.
REAL: dict[str, Any] = {
    "name": "small", "vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 2816,
    "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4, "context": 2048,
}  # fmt: skip
TINY: dict[str, Any] = {
    "name": "tiny", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "context": 64,
}  # fmt: skip
EOD = 0


def run_of(check: Check, folder: Path, steps: int, **changes: Any) -> dict[str, Any]:
    """A run as plain data; `changes` replace whole sections, those of `layout` and `train` key by key."""
    model = TINY if check.quick else REAL
    length, rows = model["context"], 2 if check.quick else 4
    tokens = folder / "tokens.npy"
    if not tokens.exists():
        numbers = np.random.default_rng(0).integers(1, model["vocab_size"], (length + 1) * rows * 64)
        numbers[:: length // 3] = EOD  # three documents a row
        np.save(tokens, numbers.astype(np.uint16))
    layout = {"micro_batch": rows, "precision": "bf16", **changes.pop("layout", {})}
    train = {"steps": steps, **changes.pop("train", {})}
    data = {"train": [{"path": str(tokens), "eod": EOD}], "valid": [], "seq_len": length}
    return {
        "name": "check", "out_dir": str(folder / "run"), "device": check.device.type, "model": model,
        "layout": layout, "train": train, "data": {**data, **changes.pop("data", {})},
        "checkpoint": {"every": 0, "at_end": False}, **changes,
    }  # fmt: skip

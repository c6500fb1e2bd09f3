"""What the planner says of our own trainer, and what its dry run counts: the same bytes, held and sent."""

from __future__ import annotations

from typing import Any

import pytest

from scalewright.plan.cost.memory import GIB
from scalewright.plan.predict import predict
from scalewright.spec.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.train.dry_run.dry_run import dry_run

SEQ_LEN = 64
AXES = {"dp": ("dp_shard", "dp_replicate"), "tp": ("tp", "etp", "kv"), "pp": ("pp", "tie")}
SMALL: dict[str, Any] = {
    "vocab_size": 67,  # a prime: every cut of it is uneven
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "context": 64,
    "tie_word_embeddings": True,
}


@pytest.mark.parametrize(
    "keys",
    [
        {"devices": 16, "dp_replicate": 4, "zero_stage": 3, "global_batch": 32},
        {"devices": 16, "tp": 4, "global_batch": 8, "recompute": "full"},
        {"devices": 16, "pp": 2, "tp": 2, "dp_replicate": 2, "zero_stage": 3, "global_batch": 32},
        {"devices": 8, "pp": 2, "schedule": "dualpipev", "zero_stage": 3, "global_batch": 16},
    ],
    ids=str,
)
def test_bytes_predicted_are_those_of_the_dry_run(keys: dict[str, Any]) -> None:
    model, layout = ModelSpec.parse(SMALL), Layout.parse({"precision": "bf16", **keys})
    data = {"train": "nowhere", "seq_len": SEQ_LEN, "document_mask": False}
    groups = dry_run({"model": model.dump(), "layout": layout.dump(), "data": data}).groups
    found = predict(model, load_cluster("dgx-h100"), layout, SEQ_LEN)
    for axis, parts in AXES.items():
        most = max(
            sum(sent for (on, _, _), (_, sent) in group.found.traffic.items() if on in parts)
            for group in groups
        )
        assert found.comm_bytes[axis] == pytest.approx(most, rel=1e-12), axis
    states = ("parameters", "gradients", "optimizer")
    held = [[group.found.most[kind] for kind in states] for group in groups]
    assert [found.memory_gib[kind] * GIB for kind in states] in [pytest.approx(one) for one in held]

"""Axolotl: its YAML written and read again, real forms of it read, and what can't be said."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from emit.narrowed import narrowed, read_back
from emit.random_runs import COUNTS, differences
from scalewright.emit.axolotl import read
from scalewright.emit.emitted import Emitted
from scalewright.emit.settings import settings_of
from scalewright.emit.transformers.schedule import LATER
from scalewright.emit.write import emit
from scalewright.spec.errors import UserError
from scalewright.spec.run import RunSpec

FILE = "axolotl.yaml"
KEYS = (
    "layout.tp", "layout.sp", "layout.pp", "layout.cp", "layout.cp_kind", "layout.zero_stage",
    "layout.micro_batch", "layout.dp_replicate", "layout.precision", "layout.offload", "layout.recompute",
    "optimizer", "seed", "train.steps", "lr_schedule", "data.seq_len", "data.packing",
)  # fmt: skip
AXES: dict[str, tuple[Any, ...]] = {
    "pp": (1,), "schedule": ("1f1b",), "virtual_stages": (1,), "cp_kind": ("ring", "allgather"),
    "precision": ("bf16", "fp16", "tf32", "fp32"),
}  # fmt: skip


def run(**keys: Any) -> Emitted:
    layout = {"devices": 8, "global_batch": 64, "precision": "bf16", **keys.pop("layout", {})}
    data = {"model": "llama-3.2-1b", "data": "corpus", "layout": layout, **keys}
    return emit("axolotl", settings_of(RunSpec.parse(data)))


@COUNTS
def test_random_runs_come_back(count: int) -> None:
    for settings, emitted, _ in narrowed("axolotl", count, 4, AXES):
        back = read_back("axolotl", emitted, FILE)
        assert not differences(settings, emitted, back, KEYS), settings.layout
        assert [item.key for item in back.unread] == ["base_model", "datasets"]  # names of files beside it
        layout = RunSpec.parse({**back.run, "model": "x", "data": {"train": "x", **back.run["data"]}}).layout
        assert layout.accumulation == settings.layout.accumulation


def test_what_it_writes() -> None:
    emitted = run(layout={"zero_stage": 3, "dp_replicate": 2, "tp": 2, "recompute": "full"})
    found = yaml.safe_load(emitted.files[FILE])
    sizes = [found[f"{key}_size"] for key in ("dp_replicate", "dp_shard", "tensor_parallel", "context_parallel")]
    assert sizes == [2, 2, 2, 1]
    assert (found["fsdp_version"], found["gradient_checkpointing"]) == (2, True)
    assert found["curriculum_sampling"]
    assert LATER in emitted.assumed
    assert {"make_inputs.py", "samples.py", "model/config.json"} < emitted.files.keys()


def test_what_it_says_only_nearly() -> None:
    parts = run(layout={"recompute": {"every": 2}}, lr_schedule={"decay_steps": 100, "warmup_steps": 1})
    assert {item.key: item.written for item in parts.changed} == {
        "layout.recompute": "full", "lr_schedule.decay_steps": "999", "lr_schedule.warmup_steps": "2",
    }  # fmt: skip
    lost = run(train={"z_loss": 1e-4}, data={"train": "corpus", "document_mask": True}, deterministic=True)
    assert {item.key for item in lost.dropped} == {"train.z_loss", "deterministic"}
    assert [item.key for item in lost.changed] == ["data.document_mask"]


def test_other_ways_of_context_parallelism_are_refused() -> None:
    with pytest.raises(UserError, match="no cp_kind ulysses"):
        run(layout={"cp": 2, "cp_kind": "ulysses", "zero_stage": 3})


def reading(text: str) -> Any:
    return read(yaml.safe_load(text), text, FILE)


LORA = """
base_model: meta-llama/Llama-3.1-8B
adapter: lora
datasets:
  - path: data.jsonl
    type: completion
sequence_len: 8192
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
num_epochs: 3
learning_rate: 0.0002
lr_scheduler: cosine
cosine_min_lr_ratio: 0.2
warmup_ratio: 0.1
optimizer: adamw_bnb_8bit
bf16: auto
gradient_checkpointing: true
deepspeed: deepspeed_configs/zero2.json
"""


def test_a_fine_tuning() -> None:
    back = reading(LORA)
    assert back.run["model"] == "meta-llama/Llama-3.1-8B"
    layout, optimizer = back.run["layout"], back.run["optimizer"]
    assert [layout[key] for key in ("precision", "recompute", "micro_batch", "global_batch")] == ["bf16", "full", 2, 8]
    assert (optimizer["name"], back.run["lr_schedule"]["min_ratio"]) == ("adamw_8bit", 0.2)
    assert {item.key for item in back.unread} == {"adapter", "datasets", "num_epochs", "deepspeed"}


def test_its_own_defaults() -> None:
    back = reading("base_model: x/y\nmicro_batch_size: 1\nlearning_rate: 1e-4\nmax_steps: 1000\ndatasets: []\n")
    assert back.run["lr_schedule"] == {"kind": "cosine", "warmup_steps": 30, "min_ratio": 0.0}
    assert (back.run["model"], back.run["data"]["seq_len"], back.run["layout"]["precision"]) == ("hf:x/y", 512, "bf16")

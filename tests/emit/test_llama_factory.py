"""LLaMA-Factory: its YAML written and read again, real forms of it read, and what can't be said."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from emit.narrowed import narrowed, read_back
from emit.random_runs import COUNTS, differences
from scalewright.emit.emitted import Emitted
from scalewright.emit.llama_factory import read
from scalewright.emit.settings import settings_of
from scalewright.emit.write import emit
from scalewright.spec.errors import UserError
from scalewright.spec.run import RunSpec

FILE = "llama_factory.yaml"
KEYS = (
    "layout.tp", "layout.pp", "layout.cp", "layout.zero_stage", "layout.micro_batch",
    "layout.dp_replicate", "layout.precision", "layout.offload", "layout.recompute", "optimizer", "seed",
    "train.steps", "lr_schedule", "data.seq_len",
)  # fmt: skip
AXES: dict[str, tuple[Any, ...]] = {
    "tp": (1,), "pp": (1,), "cp": (1,), "dp_replicate": (1,), "schedule": ("1f1b",), "virtual_stages": (1,),
    "precision": ("bf16", "fp16", "tf32", "fp32"), "zero_stage": (0, 1, 2, 3),
}  # fmt: skip


def run(**keys: Any) -> Emitted:
    layout = {"devices": 8, "global_batch": 64, "precision": "bf16", **keys.pop("layout", {})}
    data = {"model": "llama-3.2-1b", "data": "corpus", "layout": layout, **keys}
    return emit("llama-factory", settings_of(RunSpec.parse(data)))


@COUNTS
def test_random_runs_come_back(count: int) -> None:
    for settings, emitted, _ in narrowed("llama-factory", count, 5, AXES):
        back = read_back("llama-factory", emitted, FILE)
        assert not differences(settings, emitted, back, KEYS), settings.layout
        assert [item.key for item in back.unread] == ["model_name_or_path", "dataset"]  # beside it
        layout = RunSpec.parse({**back.run, "model": "x", "data": "x"}).layout
        assert layout.accumulation == settings.layout.accumulation


def test_what_it_writes() -> None:
    emitted = run(layout={"zero_stage": 3, "offload": "parameters"})
    found = yaml.safe_load(emitted.files[FILE])
    assert found["deepspeed"]["zero_optimization"]["offload_param"]["device"] == "cpu"
    assert (found["stage"], found["train_from_scratch"], found["disable_gradient_checkpointing"]) == ("pt", True, True)
    assert "NPROC_PER_NODE=8" in emitted.command
    assert "deepspeed" not in yaml.safe_load(run(layout={"zero_stage": 0}).files[FILE])


@pytest.mark.parametrize(("axis", "layout"), [("tp", {"tp": 2}), ("pp", {"pp": 2}), ("cp", {"cp": 2})])
def test_it_has_data_parallelism_alone(axis: str, layout: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"can't run {axis} 2"):
        run(layout=layout)


def test_a_fine_tuning() -> None:
    text = """
model_name_or_path: Qwen/Qwen2.5-0.5B-Instruct
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
dataset: identity,alpaca_en_demo
template: qwen
cutoff_len: 4096
neat_packing: true
packing: true
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
output_dir: saves
"""
    back = read(yaml.safe_load(text), text, FILE)
    layout = back.run["layout"]
    assert [layout[key] for key in ("recompute", "precision", "global_batch")] == ["full", "bf16", 8]
    assert back.run["data"] == {"seq_len": 4096, "document_mask": True}
    unread = {item.key for item in back.unread}
    assert unread == {"finetuning_type", "lora_rank", "dataset", "num_train_epochs"}

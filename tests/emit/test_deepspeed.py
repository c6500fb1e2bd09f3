"""DeepSpeed: its JSON written and read again, real and old forms of it read, and what can't be said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from emit.narrowed import narrowed, read_back
from emit.random_runs import COUNTS, differences
from scalewright.emit.deepspeed.read import read, recognises
from scalewright.emit.emitted import Emitted
from scalewright.emit.read import read_own
from scalewright.emit.settings import settings_of
from scalewright.emit.write import emit
from scalewright.spec.errors import UserError
from scalewright.spec.run import RunSpec

FILE = "ds_config.json"
# What the file has of a run; the schedule, data and seed are the script's.
KEYS = (
    "layout.devices", "layout.tp", "layout.sp", "layout.pp", "layout.schedule", "layout.cp",
    "layout.cp_kind", "layout.ep", "layout.zero_stage", "layout.dp_replicate", "layout.micro_batch",
    "layout.global_batch", "layout.precision", "layout.offload", "optimizer",
)  # fmt: skip
AXES: dict[str, tuple[Any, ...]] = {
    "cp": (1, 1, 1, 2), "cp_kind": ("ulysses",), "dp_replicate": (1,), "zero_stage": (0, 0, 1, 1, 2, 3),
    "precision": ("bf16", "fp16", "fp32"),
}  # fmt: skip


def run(**keys: Any) -> Emitted:
    layout = {"devices": 8, "global_batch": 64, "precision": "bf16", **keys.pop("layout", {})}
    data = {"model": "llama-3.1-8b", "data": "corpus", "layout": layout, **keys}
    return emit("deepspeed", settings_of(RunSpec.parse(data)))


def config(**keys: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(**keys).files[FILE])
    return found


@COUNTS
def test_random_runs_come_back(count: int) -> None:
    pipelines = 0
    for settings, emitted, _ in narrowed("deepspeed", count, 3, AXES):
        back = read_back("deepspeed", emitted, FILE)
        assert not differences(settings, emitted, back, KEYS), settings.layout
        assert not back.unread
        if settings.layout.recompute in ("none", "full"):
            assert back.run["layout"].get("recompute", "none") == settings.layout.recompute
        pipelines += settings.layout.pp > 1
    assert pipelines > 10


def test_zero_and_offload() -> None:
    zero = {stage: config(layout={"zero_stage": stage})["zero_optimization"] for stage in range(4)}
    assert [zero[stage]["stage"] for stage in range(4)] == [0, 1, 2, 3]
    assert "offload_optimizer" in config(layout={"zero_stage": 2, "offload": "optimizer"})["zero_optimization"]
    both = config(layout={"zero_stage": 3, "offload": "parameters"})["zero_optimization"]
    assert both["offload_param"]["device"] == both["offload_optimizer"]["device"] == "cpu"
    assert [item.key for item in run(layout={"zero_stage": 3, "offload": "all"}).changed] == ["layout.offload"]


@pytest.mark.parametrize(
    ("zero", "kind"),
    [
        ({"offload_param": {"device": "cpu"}}, "parameters"),
        ({"offload_param": {"device": "nvme"}, "offload_optimizer": {"device": "cpu"}}, "parameters"),
        ({"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "none"}}, "optimizer"),
        ({"cpu_offload": True, "cpu_offload_params": True}, "parameters"),
        ({"cpu_offload": True}, "optimizer"),
        ({"offload_optimizer": {"device": "none"}}, "none"),
    ],
)
def test_every_reader_of_zero_takes_the_same_offload(zero: dict[str, object], kind: str) -> None:
    neox: dict[str, object] = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 64}
    neox |= {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, **zero}}
    for document, trainer in (({"zero_optimization": {"stage": 3, **zero}}, "deepspeed"), (neox, "gpt-neox")):
        back = read_own(trainer, json.dumps(document), ".json", "file.json")
        assert back.run["layout"].get("offload", "none") == kind
        assert not [item.key for item in back.unread if "offload" in item.key]


def test_the_batch_is_the_product() -> None:
    found = config(layout={"devices": 8, "tp": 2, "micro_batch": 2, "global_batch": 64, "zero_stage": 1})
    assert (found["train_batch_size"], found["gradient_accumulation_steps"]) == (128, 8)  # counts AutoTP's ranks
    assert found["tensor_parallel"] == {"autotp_size": 2}


def test_stages_of_a_pipeline_are_cut_as_the_run_has_them() -> None:
    layers = {"pp": 4, "zero_stage": 1, "stage_layers": [7, 9, 9, 7], "schedule": "gpipe"}
    emitted = run(layout=layers)
    assert "BOUNDS = [0, 8, 17, 26, 35]" in emitted.files["train.py"]
    assert [(item.key, item.written) for item in emitted.changed] == [("layout.schedule", "1f1b")]
    tied = run(model="llama-3.2-1b", layout={"pp": 2, "zero_stage": 0}).files["train.py"]
    assert "TiedLayerSpec" in tied
    chunks = run(layout={"pp": 2, "zero_stage": 1, "schedule": "interleaved", "virtual_stages": 2})
    assert "layout.virtual_stages" in [item.key for item in chunks.changed]
    assert "BOUNDS = [0, 18, 35]" in chunks.files["train.py"]


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ({"tp": 2, "zero_stage": 3}, "zero_stage 0 to 2"),
        ({"tp": 2, "pp": 2, "zero_stage": 1}, "tp and pp together"),
        ({"cp": 2, "cp_kind": "ring"}, "no cp_kind ring"),
        ({"pp": 2, "zero_stage": 2}, "zero_stage 0 and 1"),
        ({"dp_replicate": 2, "zero_stage": 3}, "can't run dp_replicate 2"),
    ],
)
def test_what_it_lacks_is_refused(layout: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        run(layout=layout)


def test_a_network_that_transformers_lacks_is_refused() -> None:
    with pytest.raises(UserError, match="cannot write a config"):
        run(model="falcon-7b")
    with pytest.raises(UserError, match="needs code for this"):
        run(model="gpt2", layout={"pp": 2, "zero_stage": 0})


def test_optimizers() -> None:
    sgd = config(optimizer={"name": "sgd", "momentum": 0.9})
    assert sgd["optimizer"] == {"type": "SGD", "params": {"lr": 3e-4, "weight_decay": 0.1, "momentum": 0.9}}
    eight = run(optimizer={"name": "adamw_8bit"})
    assert "optimizer" not in json.loads(eight.files[FILE])
    assert "AdamW8bit(decay_groups(model)" in eight.files["train.py"]
    assert [item.key for item in eight.changed] == ["optimizer.name"]


def test_old_forms() -> None:
    old = {"train_batch_size": 32, "gradient_accumulation_steps": 4, "zero_optimization": 2, "fp16": True}
    layout = read(old, "", FILE).run["layout"]
    assert [layout[key] for key in ("zero_stage", "precision", "micro_batch", "global_batch")] == [2, "fp16", 8, 32]
    offload = {"zero_optimization": {"stage": 2, "cpu_offload": True}, "train_micro_batch_size_per_gpu": 4}
    assert read(offload, "", FILE).run["layout"]["offload"] == "optimizer"


def test_what_the_trainer_fills_in_is_reported() -> None:
    back = read(
        {
            "train_micro_batch_size_per_gpu": "auto",
            "bf16": {"enabled": "auto"},
            "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "weight_decay": 0.1}},
            "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "overlap_com": True},
        },
        "",
        FILE,
    )
    assert {item.key for item in back.unread} == {
        "train_micro_batch_size_per_gpu", "bf16.enabled", "optimizer.params.lr", "optimizer.params.betas",
        "zero_optimization.overlap_com",
    }  # fmt: skip
    assert back.run["optimizer"] == {"clip_norm": 0.0, "name": "adamw", "eps": 1e-8, "weight_decay": 0.1}
    assert "precision" not in back.run["layout"]


@pytest.mark.parametrize(
    ("scheduler", "expected"),
    [
        ({"type": "WarmupLR", "params": {"warmup_num_steps": 10, "warmup_max_lr": 2e-4}}, ("constant", 10, None)),
        ({"type": "WarmupDecayLR", "params": {"warmup_num_steps": 5, "total_num_steps": 50}}, ("linear", 5, 50)),
        (
            {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 5, "total_num_steps": 50, "cos_min_ratio": 0.1}},
            ("cosine", 5, 50),
        ),
    ],
)
def test_schedulers(scheduler: dict[str, Any], expected: tuple[Any, ...]) -> None:
    back = read({"train_batch_size": 8, "scheduler": scheduler}, "", FILE)
    schedule = back.run["lr_schedule"]
    steps = back.run.get("train", {}).get("steps")
    assert (schedule["kind"], schedule["warmup_steps"], steps) == expected
    assert not back.unread


def test_other_trainers_files_are_not_its_own() -> None:
    assert recognises({"train_batch_size": 8}, "")
    assert recognises({"zero_optimization": {"stage": 1}, "fp16": {"enabled": True}}, "")
    assert not recognises({"train_micro_batch_size_per_gpu": 4, "num-layers": 12}, "")  # GPT-NeoX
    assert not recognises({"fp16": {"enabled": True}}, "")


@pytest.mark.parametrize(
    ("params", "unread"),
    [
        ({"bias_correction": False}, ["bias_correction"]), ({"bias_correction": True}, []),
        ({"adam_w_mode": False}, ["adam_w_mode"]), ({"adam_w_mode": True, "torch_adam": True}, []),
        ({"bias_correction": "false", "adam_w_mode": False}, ["bias_correction", "adam_w_mode"]),
        ({"bias_correction": "auto"}, ["bias_correction"]),
    ],
)  # fmt: skip
def test_an_adam_of_another_formula_is_reported(params: dict[str, object], unread: list[str]) -> None:
    optimizer = {"type": "Adam", "params": {"lr": 1e-4, **params}}
    document = {"train_micro_batch_size_per_gpu": 1, "optimizer": optimizer}
    back = read_own("deepspeed", json.dumps(document), ".json", "file.json")
    assert [item.key.rpartition(".")[2] for item in back.unread] == unread

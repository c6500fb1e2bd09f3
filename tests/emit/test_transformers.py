"""TrainingArguments: written and read again, real forms of them read, and what can't be said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from emit.narrowed import narrowed, read_back
from emit.random_runs import COUNTS, differences
from scalewright.emit.emitted import Emitted
from scalewright.emit.settings import settings_of
from scalewright.emit.transformers.arguments import read
from scalewright.emit.transformers.schedule import LATER
from scalewright.emit.write import emit
from scalewright.spec.errors import UserError
from scalewright.spec.run import RunSpec

FILE = "training_args.json"
# What the file has of a run; data, rows and layers that are recomputed in part are the script's.
KEYS = (
    "layout.tp", "layout.sp", "layout.pp", "layout.cp", "layout.cp_kind", "layout.zero_stage",
    "layout.micro_batch", "layout.dp_replicate", "layout.precision", "layout.offload", "optimizer",
    "seed", "train.steps", "lr_schedule",
)  # fmt: skip
AXES: dict[str, tuple[Any, ...]] = {
    "pp": (1,), "schedule": ("1f1b",), "virtual_stages": (1,), "cp_kind": ("ring", "allgather"),
    "precision": ("bf16", "fp16", "tf32", "fp32"),
}  # fmt: skip


def run(**keys: Any) -> Emitted:
    layout = {"devices": 8, "global_batch": 64, "precision": "bf16", **keys.pop("layout", {})}
    data = {"model": "llama-3.2-1b", "data": "corpus", "layout": layout, **keys}
    return emit("transformers", settings_of(RunSpec.parse(data)))


def arguments(**keys: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(**keys).files[FILE])
    return found


@COUNTS
def test_random_runs_come_back(count: int) -> None:
    for settings, emitted, _ in narrowed("transformers", count, 2, AXES):
        back = read_back("transformers", emitted, FILE)
        keys = [key for key in KEYS if key != "layout.offload" or settings.layout.tp == 1]  # else the script's
        assert not differences(settings, emitted, back, tuple(keys)), settings.layout
        assert not back.unread
        layout, ours = RunSpec.parse({**back.run, "model": "x", "data": "x"}).layout, settings.layout
        assert layout.accumulation == ours.accumulation
        if ours.zero_stage >= 2 and "parallelism_config" in emitted.files[FILE]:
            assert layout.devices == ours.devices
        if ours.recompute in ("none", "full"):
            assert layout.recompute == ours.recompute


@pytest.mark.parametrize(
    ("schedule", "kind", "keywords"),
    [
        ({"kind": "constant"}, "constant", None),
        ({"kind": "constant", "warmup_steps": 5}, "constant_with_warmup", None),
        ({"kind": "linear", "min_ratio": 0}, "linear", None),
        ({"kind": "linear", "min_ratio": 0.1}, "polynomial", {"lr_end": 3e-5, "power": 1.0}),
        ({"kind": "cosine", "min_ratio": 0}, "cosine", None),
        ({"kind": "cosine", "min_ratio": 0.1}, "cosine_with_min_lr", {"min_lr_rate": 0.1}),
        (
            {"kind": "wsd", "min_ratio": 0.1},
            "warmup_stable_decay",
            {"num_decay_steps": 200, "min_lr_ratio": 0.1, "decay_type": "linear"},
        ),
    ],
)
def test_schedules(schedule: dict[str, Any], kind: str, keywords: Any) -> None:
    found = arguments(lr_schedule=schedule)
    assert (found["lr_scheduler_type"], found.get("lr_scheduler_kwargs")) == (kind, keywords)
    assert LATER not in run(lr_schedule=schedule).assumed  # the script's own schedule is exact


def test_stages() -> None:
    assert "fsdp" not in arguments(layout={"zero_stage": 0})
    one = arguments(layout={"zero_stage": 1, "offload": "optimizer"})
    assert one["deepspeed"]["zero_optimization"]["stage"] == 1
    assert one["deepspeed"]["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    three = arguments(layout={"zero_stage": 3, "offload": "parameters", "recompute": "full"})
    assert three["fsdp_config"] == {
        "version": 2, "reshard_after_forward": True, "cpu_offload": True, "activation_checkpointing": True,
        "state_dict_type": "SHARDED_STATE_DICT",
    }  # fmt: skip


def test_momentum_and_muon_are_reported() -> None:
    sgd = run(optimizer={"name": "sgd", "momentum": 0.9})
    assert [item.key for item in sgd.dropped] == ["optimizer.momentum"]
    assert [item.key for item in run(optimizer={"name": "muon"}).dropped] == ["optimizer.name"]
    assert [item.key for item in run(optimizer={"name": "adamw_8bit"}).changed] == ["optimizer.name"]


def test_validation_saves_and_z_loss_are_the_scripts() -> None:
    emitted = run(
        data={"train": "corpus", "valid": "unseen"},
        train={"valid_every": 50, "z_loss": 1e-4},
        checkpoint={"every": 100},
    )
    found = json.loads(emitted.files[FILE])
    assert (found["eval_steps"], found["save_steps"]) == (50, 100)
    assert "compute_loss_func=loss_of" in emitted.files["train.py"]
    assert emitted.exact


def test_pipelines_are_refused() -> None:
    with pytest.raises(UserError, match="can't run pp 2"):
        run(layout={"pp": 2})


def reading(**keys: Any) -> Any:
    return read({"output_dir": "out", "learning_rate": 1e-4, **keys}, "", FILE)


def test_old_words_of_fsdp() -> None:
    back = reading(fsdp="shard_grad_op auto_wrap offload", fsdp_config={"fsdp_min_num_params": 2000, "xla": False})
    assert (back.run["layout"]["zero_stage"], back.run["layout"]["offload"]) == (2, "parameters")
    assert reading(fsdp=["full_shard"], fsdp_config={"reshard_after_forward": True}).run["layout"]["zero_stage"] == 3
    assert reading(fsdp="").run["layout"]["zero_stage"] == 0


def test_defaults_are_theirs_and_what_is_unknown_is_reported() -> None:
    back = reading(num_train_epochs=3, warmup_ratio=0.1, lr_scheduler_type="inverse_sqrt", neftune_noise_alpha=5)
    assert back.run["optimizer"]["betas"] == [0.9, 0.999]
    assert (back.run["layout"]["micro_batch"], back.run["seed"]) == (8, 42)
    assert {item.key for item in back.unread} == {"num_train_epochs", "lr_scheduler_type", "neftune_noise_alpha"}
    assert any("warm-up" in note for note in back.assumed)


def test_warmups_that_are_shares() -> None:
    assert reading(max_steps=200, warmup_ratio=0.05).run["lr_schedule"]["warmup_steps"] == 10
    assert reading(max_steps=200, warmup_steps=0.05).run["lr_schedule"]["warmup_steps"] == 10
    assert reading(max_steps=200, warmup_steps=7, warmup_ratio=0.0).run["lr_schedule"]["warmup_steps"] == 7


@pytest.mark.parametrize("key", ["max_seq_length", "max_length", "block_size", "model_max_length"])
def test_the_length_of_a_sequence_in_scripts_around_the_trainer(key: str) -> None:
    document = {"per_device_train_batch_size": 1, "learning_rate": 1e-4, key: 2048}
    assert read(document, "", "sft.yaml").run["data"]["seq_len"] == 2048

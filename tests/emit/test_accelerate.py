"""Accelerate: its YAML written and read again, real forms of it read, and what can't be said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from emit.narrowed import narrowed, read_back
from emit.random_runs import COUNTS, differences
from scalewright.emit.accelerate import read
from scalewright.emit.emitted import Emitted, Reading
from scalewright.emit.settings import settings_of
from scalewright.emit.write import emit
from scalewright.spec.errors import UserError
from scalewright.spec.run import RunSpec

FILE = "accelerate_config.yaml"
# What the file has of a run; the batch, the optimizer and data are the script's.
KEYS = (
    "layout.devices", "layout.tp", "layout.sp", "layout.pp", "layout.cp", "layout.cp_kind",
    "layout.zero_stage", "layout.dp_replicate", "layout.precision", "layout.offload",
)  # fmt: skip
AXES: dict[str, tuple[Any, ...]] = {
    "pp": (1,), "schedule": ("1f1b",), "virtual_stages": (1,), "cp_kind": ("ring", "allgather"),
    "precision": ("bf16", "fp16", "fp32"),
}  # fmt: skip


def run(**layout: Any) -> Emitted:
    keys = {"devices": 8, "global_batch": 64, "precision": "bf16", **layout}
    return emit("accelerate", settings_of(RunSpec.parse({"model": "llama-3.2-1b", "data": "corpus", "layout": keys})))


def reading(text: str, where: str = FILE) -> Reading:
    return read(yaml.safe_load(text), text, where)


@COUNTS
def test_random_runs_come_back(count: int) -> None:
    for settings, emitted, _ in narrowed("accelerate", count, 1, AXES):
        back = read_back("accelerate", emitted, FILE)
        keys = [key for key in KEYS if key != "layout.offload" or settings.layout.tp == 1]  # else the script's
        assert not differences(settings, emitted, back, tuple(keys)), settings.layout
        assert not back.unread
        if settings.layout.recompute in ("none", "full") and "fsdp_config" in emitted.files[FILE]:
            assert back.run["layout"].get("recompute", "none") == settings.layout.recompute


def test_what_each_stage_is() -> None:
    stage = {number: yaml.safe_load(run(zero_stage=number).files[FILE]) for number in range(4)}
    assert stage[0]["distributed_type"] == "MULTI_GPU"
    assert stage[1]["distributed_type"] == "DEEPSPEED"
    assert stage[1]["deepspeed_config"]["zero_stage"] == 1
    assert stage[1]["deepspeed_config"]["gradient_accumulation_steps"] == 8
    assert stage[2]["fsdp_config"]["fsdp_reshard_after_forward"] is False
    assert stage[3]["fsdp_config"]["fsdp_reshard_after_forward"] is True
    assert [item.key for item in run(zero_stage=2).changed] == ["layout.zero_stage"]
    assert run(zero_stage=3).exact


def test_sizes_make_all_processes() -> None:
    sizes = yaml.safe_load(run(zero_stage=3, tp=2, dp_replicate=2).files[FILE])["parallelism_config"]
    assert list(sizes.values()) == [2, 2, 2, 1]
    script = run(zero_stage=3, tp=2, dp_replicate=2).files["train.py"]
    assert "tp_size=TP" in script
    assert "fsdp_size=2" in script
    assert "fsdp_mixed_precision=True" in script  # bf16 with sums in fp32


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ({"pp": 2}, "can't run pp 2"),
        ({"tp": 2, "zero_stage": 0}, "beside shards alone"),
        ({"cp": 2, "cp_kind": "ulysses", "zero_stage": 3}, "no cp_kind ulysses"),
        ({"zero_stage": 1, "dp_replicate": 2}, "no dp_replicate"),
    ],
)
def test_what_it_lacks_is_refused(layout: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        run(**layout)


def test_the_script_has_what_the_run_needs_and_no_more() -> None:
    plain = run(zero_stage=3).files["train.py"]
    assert "recompute" not in plain
    assert "validate" not in plain
    assert "Z_LOSS" not in plain
    kept = run(zero_stage=3, recompute="selective").files["train.py"]
    assert "keep_products" in kept
    assert "layers[::3]" in run(zero_stage=3, recompute={"every": 3}).files["train.py"]


FSDP_1 = """
distributed_type: FSDP
mixed_precision: 'bf16'
num_processes: 8
num_machines: 2
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_sharding_strategy: {strategy}
  fsdp_offload_params: {offload}
"""


@pytest.mark.parametrize(
    ("strategy", "stage", "replicas"),
    [("FULL_SHARD", 3, 1), ("SHARD_GRAD_OP", 2, 1), ("NO_SHARD", 0, 1), ("HYBRID_SHARD", 3, 2), (2, 2, 1)],
)
def test_strategies_of_the_first_fsdp(strategy: Any, stage: int, replicas: int) -> None:
    back = reading(FSDP_1.format(strategy=strategy, offload="false"))
    layout = back.run["layout"]
    assert (layout["zero_stage"], layout.get("dp_replicate", 1)) == (stage, replicas)
    assert (layout["devices"], layout["precision"], layout["recompute"]) == (8, "bf16", "full")
    assert not back.unread


def test_offload_and_megatron_and_what_is_unknown() -> None:
    assert reading(FSDP_1.format(strategy="FULL_SHARD", offload="true")).run["layout"]["offload"] == "parameters"
    back = reading(
        "distributed_type: MEGATRON_LM\nnum_processes: 16\nmegatron_lm_config:\n  megatron_lm_tp_degree: 2\n"
        "  megatron_lm_pp_degree: 4\n  megatron_lm_sequence_parallelism: true\n"
        "  megatron_lm_num_micro_batches: 8\n  megatron_lm_colour: red\n"
    )
    layout = back.run["layout"]
    assert [layout[key] for key in ("devices", "tp", "pp", "sp", "global_batch")] == [16, 2, 4, True, 16]
    assert [item.key for item in back.unread] == ["megatron_lm_config.megatron_lm_colour"]


def test_a_deepspeed_file_beside_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(
        '{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},'
        ' "bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": "auto"}'
    )
    text = "distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config:\n  deepspeed_config_file: {}\n"
    back = reading(text.format("ds.json"), str(tmp_path / "a.yaml"))
    layout = back.run["layout"]
    assert [layout[key] for key in ("zero_stage", "offload", "precision", "devices")] == [2, "optimizer", "bf16", 4]
    assert [item.key.rpartition(" ")[2] for item in back.unread] == ["train_micro_batch_size_per_gpu"]
    outside = reading(text.format("../ds.json"), str(tmp_path / "in" / "a.yaml"))
    assert [item.key for item in outside.unread] == ["deepspeed_config.deepspeed_config_file"]


def test_a_config_json_beside_it_is_the_model(tmp_path: Path) -> None:
    emitted = run(zero_stage=3)
    for name in (FILE, "config.json"):
        (tmp_path / name).write_text(emitted.files[name])
    back = reading(emitted.files[FILE], str(tmp_path / FILE))
    assert RunSpec.parse({**back.run, "data": "x"}).model == str(tmp_path / "config.json")

"""Rows of measured runs: the columns' conventions, defaults of blanks, rows that are refused."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from scalewright.plan.fitting.runs import MEASURED, measured_seconds, read_table
from scalewright.plan.frameworks import find_framework
from scalewright.plan.predict import predict_rows, resolve_rows
from scalewright.plan.request import Request
from scalewright.plan.rows.cells import read_options
from scalewright.plan.rows.row_model import known_name
from scalewright.plan.rows.rows import request_of
from scalewright.spec.base import write_yaml
from scalewright.spec.errors import UserError
from scalewright.spec.presets import load_model_spec
from scalewright.spec.tensors import count

ROW: dict[str, Any] = {
    "framework": "Megatron-LM", "model": "mine", "layers": 24, "hidden": 2048, "heads": 16, "kv_heads": 16,
    "ffn": 8192, "mlp_mats": 2, "vocab": 51200, "seq": 2048, "device": "A100-80GB-SXM", "n_devices": 64,
    "tp": 2, "pp": 4, "cp": 1, "ep": 1, "vpp": 1, "sp": 0, "sharding": "zero1", "mbs": 2, "gbs": 256,
    "recompute": "full", "precision": "bf16", "flash": 1,
}  # fmt: skip


def test_a_full_row_assumes_nothing() -> None:
    request = request_of(ROW)
    assert (request.dp, request.accumulation, request.zero_stage, request.recompute) == (8, 16, 1, "full")
    assert request.assumed == ()


def test_every_blank_is_named() -> None:
    request = request_of({**ROW, "vocab": "", "heads": "", "kv_heads": "", "vpp": "", "precision": "", "gbs": ""})
    assumed = " | ".join(request.assumed)
    for word in ("vocab 51200", "heads 16", "vpp 1", "precision bf16", "gbs"):
        assert word in assumed


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"n_devices": 63}, "does not divide"),
        ({"dp": 9}, "dp 9"),
        ({"device": "Z9000"}, "Z9000"),
        ({"device": ""}, "no device"),
        ({"gbs": "nan"}, None),  # a blank by another name
        ({"gbs": "1e300"}, "finite"),
        ({"mbs": "two"}, "give a number"),
        ({"hidden": "", "params_b": "", "model": "nobody's"}, "no dims"),
        ({"layers": "", "params_b": ""}, "params_b"),
        ({"sharding": "shredded"}, "shredded"),
        ({"options": "node_gbps=fast"}, "node_gbps"),
        ({"options": "slices=0"}, "slices"),
        ({"pp": 0.5}, "whole number"),
        ({"cp": 4096, "n_devices": 32768}, "cp 4096"),
    ],
)
def test_a_refused_row_gives_the_reason(cells: dict[str, Any], message: str | None) -> None:
    if message is None:
        assert request_of({**ROW, **cells}).accumulation >= 1
        return
    with pytest.raises(UserError, match=message):
        request_of({**ROW, **cells})


def test_a_known_name_fills_blank_columns() -> None:
    blanks = dict.fromkeys(("hidden", "layers", "heads", "kv_heads", "ffn", "vocab"), "")
    row = {**ROW, **blanks, "model": "DeepSeek-V3"}
    model = request_of(row).model
    assert model.mla is not None
    assert model.moe is not None
    assert known_name("Llama-3-70B (truncated to 12 layers)") == "llama-3-70b"


def test_the_bundled_runs_are_all_expressed() -> None:
    rows = read_table(MEASURED)
    requests = resolve_rows(rows)
    assert sum(isinstance(request, Request) for request in requests) >= 0.95 * len(rows)
    # dims agree with the stated parameters, which a wrong MLP or head would not
    errors = [
        abs(count(request.model).total / (float(row["params_b"]) * 1e9) - 1)
        for row, request in zip(rows, requests, strict=True)
        if isinstance(request, Request) and row["params_b"] and row["vocab"] and row["source"] != "bloom-chronicles"
    ]
    assert sum(error < 0.03 for error in errors) >= 0.97 * len(errors)


def test_source_and_id_are_no_inputs() -> None:
    rows = read_table(MEASURED)[::211]
    blank = [{key: value for key, value in row.items() if key not in ("source", "id", "source_ref")} for row in rows]
    assert resolve_rows(rows) == resolve_rows(blank)


def test_tflops_are_converted_by_the_convention_in_the_notes() -> None:
    row = {**ROW, "tflops_per_device": 150, "notes": "HARDWARE FLOPs (x4/3, full recompute)"}
    plain = {**row, "notes": "model FLOPs, not halved"}
    seconds, converted = measured_seconds(row, request_of(row))
    assert converted
    assert seconds == pytest.approx(4 / 3 * measured_seconds(plain, request_of(plain))[0])


def test_options_and_versions() -> None:
    assert read_options("node_gbps=400; compile=1") == {"node_gbps": "400", "compile": "1"}
    assert request_of({**ROW, "options": "node_gbps=400"}).chip.fabric_rate == pytest.approx(400e9 / 8 / 8)
    assert find_framework("Megatron-Bridge 25.11").year == pytest.approx(2025 + 10 / 12)
    assert find_framework("Megatron-LM (2021)").name == "megatron-2021"
    assert not find_framework("something of 2031").known


@pytest.mark.parametrize(
    ("date", "device", "kernels", "attention"),
    [
        ("202104", "gpu", "fused", "softmax"),
        ("202306", "gpu", "fused", "flash1"),
        ("202502", "gpu", "modern", "best"),
        ("202104", "tpu", "xla", "best"),
    ],
)
def test_an_unknown_trainer_is_the_usual_one_of_date_and_device(
    date: str, device: str, kernels: str, attention: str
) -> None:
    trainer = find_framework(f"unknown {date}", None, device)
    assert (trainer.name, trainer.kernels, trainer.attention) == ("unknown", kernels, attention)
    assert find_framework("megatron-lm", None, device).kernels == "modern"  # a known one is itself


def test_no_row_breaks_the_others() -> None:
    # cells of any kind in any column: every row gets a finite answer or a reason
    rows = read_table(MEASURED)[::9]
    cells: tuple[Any, ...] = ("", "0", "-1", "nan", "inf", "1e18", "abc", "3", "1000000", None, 2.5, True)
    columns = [name for name in rows[0] if name != "id"]
    chance = random.Random(0)
    broken = [{**row, chance.choice(columns): chance.choice(cells)} for row in rows]
    answers = predict_rows(broken)
    assert len(answers) == len(broken)
    for answer in answers:
        assert "error" in answer or 0 < answer["step_time_s"]["p50"] < float("inf")


def test_what_dp_leaves_goes_to_blank_axes() -> None:
    """Inside a node to tp, the rest to pp; n_devices follows from the axes where it is blank."""
    bare = {**ROW, "tp": "", "pp": ""}
    assert (request_of({**bare, "dp": 8}).tp, request_of({**bare, "dp": 8}).pp) == (8, 1)
    assert (request_of({**bare, "dp": 4}).tp, request_of({**bare, "dp": 4}).pp) == (8, 2)
    assert request_of({**ROW, "tp": "", "dp": 4}).tp == 4
    request = request_of({**ROW, "n_devices": "", "dp": 4})
    assert request.devices == 32
    assert "n_devices 32" in request.assumed


def test_a_stated_batch_is_never_changed() -> None:
    """8 ranks for 3 micro-batches: 5 idle, and rates per device still divide by all 64 devices."""
    row = {**ROW, "gbs": 6, "tokens_per_s_per_device": 10.0}
    request = request_of(row)
    assert (request.global_batch, request.devices, request.held_devices) == (6, 24, 64)
    assert any("5 of 8 data-parallel ranks idle" in line for line in request.assumed)
    assert measured_seconds(row, request)[0] == pytest.approx(6 * 2048 / 64 / 10)
    answer = predict_rows([row])[0]
    assert answer["tokens_per_s_per_device"] == pytest.approx(answer["tokens_per_s"] / 64)


def test_hsdp_without_sizes_shards_inside_a_node() -> None:
    row = {**ROW, "tp": 1, "pp": 1, "sharding": "hsdp"}
    assert request_of(row).dp_replicate == 8
    assert request_of({**row, "options": "ici_fsdp=32"}).dp_replicate == 2


def test_dims_that_contradict_the_stated_size_are_named() -> None:
    assert not any("params_b" in line for line in request_of({**ROW, "params_b": 1.31}).assumed)
    assert any("though params_b is 2" in line for line in request_of({**ROW, "params_b": 2}).assumed)


def test_options_that_no_published_row_has() -> None:
    """Each changes the request or the step as its meaning implies."""

    def seconds(**changes: Any) -> float:
        return float(predict_rows([{**ROW, **changes}])[0]["step_time_s"]["p50"])

    assert request_of({**ROW, "options": "parallel_block=1"}).model.residual == "parallel"
    assert seconds(options="parallel_block=1") < seconds()  # one sum over tp for attention and MLP
    row = {**ROW, "recompute": "selective", "options": "recompute_modules=mlp+layernorm"}
    assert request_of(row).recompute == "modules"
    share = request_of({**ROW, "recompute": "full", "options": "recompute_share=0.83"})
    assert (share.recompute, share.share) == ("share", 0.83)
    assert seconds(recompute="selective", options="recompute_modules=mlp") < seconds(recompute="full")
    sharded = {"sharding": "fsdp", "pp": 1, "tp": 1, "mbs": 1, "gbs": 64, "options": "node_gbps=100"}
    assert seconds(**{**sharded, "options": "node_gbps=100;fp8_gather=1"}) < seconds(**sharded)
    assert any("hybrid" in line for line in request_of({**ROW, "options": "hybrid=mamba"}).assumed)


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("Llama-4-Scout", "llama-4-scout"),
        ("Llama4 Scout 17B-16E", "llama-4-scout"),
        ("Llama-4-Maverick-17B-128E", "llama-4-maverick"),
        ("Llama-4-Maverick-17B-128E-Instruct", "llama-4-maverick"),
        ("Nemotron-4-340B", "nemotron-4-340b"),
        ("Nemotron4-340B", "nemotron-4-340b"),
        ("Nemotron4 15B", "nemotron-4-15b"),
        ("Nemotron-H-56B", "nemotron-h-56b"),
        ("Nemotron-H-8B-Base-8K", "nemotron-h-8b"),
        ("NVIDIA-Nemotron-Nano-9B-v2", "nemotron-nano-9b-v2"),
        ("Nemotron_3_Nano_30B_A3B", "nemotron-3-nano-30b-a3b"),
        ("Qwen3-Next-80B-A3B", "qwen3-next-80b-a3b"),
        ("Qwen3-Next-80B-A3B-Instruct", "qwen3-next-80b-a3b"),
        ("Grok-1", "grok-1"),
        ("Grok1-314B", "grok-1"),
        ("Gemma-4-31B", "gemma-4-31b"),
    ],
)
def test_published_names_find_their_preset(name: str, preset: str) -> None:
    request = request_of({"model": name, "device": "H100-80GB-SXM", "n_devices": 512, "options": "hybrid=1"})
    assert request.model.name == preset
    hybrid = preset.startswith(("nemotron-h", "nemotron-n", "nemotron-3", "qwen3-next"))
    assert any("hybrid" in line for line in request.assumed) != hybrid


def test_a_hybrid_s_step_is_the_measured_one() -> None:
    """NVIDIA/dgxc-benchmarking, nemotronh/README.md: 56B in FP8 on H100s, seconds a step; none was fitted."""
    row = {
        "framework": "NeMo 25.02", "model": "Nemotron-H-56B", "seq": 8192, "device": "H100-80GB-SXM", "tp": 8,
        "pp": 1, "sp": 1, "sharding": "zero1", "mbs": 1, "recompute": "none", "precision": "fp8", "flash": 1,
    }  # fmt: skip
    runs = {32: 15.119, 64: 15.058, 256: 15.892, 1024: 15.678}
    rows = [{**row, "n_devices": n, "gbs": 3 * n} for n in runs]
    for answer, seconds in zip(predict_rows(rows), runs.values(), strict=True):
        assert answer["step_time_s"]["p50"] == pytest.approx(seconds, rel=0.1)  # as wide as the band from p10 to p90


def test_a_model_may_be_a_path(tmp_path: Path) -> None:
    spec = load_model_spec("llama-3.2-1b")
    write_yaml(tmp_path / "mine.yaml", spec.dump())
    row = {"model": str(tmp_path / "mine.yaml"), "device": "H100-80GB-SXM", "n_devices": "8", "seq": "4096"}
    assert request_of(row).model.hidden_size == spec.hidden_size
    with pytest.raises(UserError, match="no such file"):
        request_of({**row, "model": "./not/there.json"})

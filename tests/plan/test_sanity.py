"""Predictions for unseen trainers, devices, blanks and extremes: sane, monotone, never NaN."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from scalewright.plan.fitting.runs import MEASURED, read_table
from scalewright.plan.predict import predict, predict_rows
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.presets import load_model_spec

DENSE: dict[str, Any] = {
    "id": "dense", "framework": "Megatron-LM", "model": "llama-3.1-70b", "seq": 8192,
    "device": "H100-80GB-SXM", "n_devices": 64, "dp": 4, "tp": 4, "pp": 4, "sp": 1, "sharding": "zero1",
    "mbs": 1, "gbs": 128, "recompute": "none", "precision": "bf16",
}  # fmt: skip
EXPERTS: dict[str, Any] = {
    **DENSE, "id": "experts", "framework": "Megatron-Bridge 26.02", "model": "deepseek-v3", "seq": 4096,
    "n_devices": 2048, "dp": 128, "tp": 1, "pp": 16, "ep": 64, "gbs": 15360, "recompute": "unknown",
    "precision": "fp8", "options": "moe=dropless",
}  # fmt: skip
LONG = {"model": "llama-3.1-8b", "seq": 131072, "dp": 2, "tp": 4, "pp": 1, "cp": 8, "gbs": 8}
SINGLE = {"model": "llama-3.2-1b", "n_devices": 1, "dp": 1, "tp": 1, "pp": 1, "gbs": 4, "sharding": "none"}
HUGE = {"model": "llama-3.1-405b", "n_devices": 16384, "dp": 128, "tp": 8, "pp": 16, "vpp": 7, "gbs": 2048}
TPU = {"framework": "MaxText", "dp": 256, "n_devices": 256, "tp": 1, "pp": 1, "mbs": 2, "gbs": 512}
TPUS = ("TPU-v4", "TPU-v5e", "TPU-v5p", "TPU-v6e", "TPU-v7x")
OTHERS = ("A100-80GB-SXM", "H200", "MI300X", "MI355X", "B300", "trn2")
# Possible MFU: below 2% nobody would run it, above 75% is beyond any matrix product.
LEAST, MOST = 0.02, 0.75


def predicted(row: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The answer to a row, which must not be an error."""
    answer = predict_rows([{**row, **changes}])[0]
    assert "error" not in answer, answer
    return answer


def check(answer: dict[str, Any]) -> None:
    """Asserts the properties that every prediction has."""
    time, memory = answer["step_time_s"], answer["memory_gib"]
    assert LEAST <= answer["mfu"] <= MOST, answer["mfu"]
    assert answer["mfu"] <= answer["hfu"] + 1e-9
    assert 0 < time["p10"] < time["p50"] < time["p90"] < math.inf
    parts = answer["time_breakdown_s"]
    assert all(value >= 0 for value in parts.values())
    assert sum(parts.values()) == pytest.approx(time["p50"], rel=1e-6)
    assert all(0 <= value < math.inf for value in memory.values())
    assert sum(memory.values()) - memory["peak"] == pytest.approx(memory["peak"], rel=1e-6)


CASES: dict[str, dict[str, Any]] = {
    "dense": DENSE,
    "no trainer": {**DENSE, "framework": ""},
    "unknown trainer": {**DENSE, "framework": "foolm 3.1"},
    "trainer of tomorrow": {**DENSE, "framework": "Megatron-Bridge 31.09"},
    "experts, H800": {**EXPERTS, "device": "H800-80GB-SXM"},
    "experts, B200": {**EXPERTS, "device": "B200-SXM"},
    "experts, GB200": {**EXPERTS, "device": "GB200"},
    "experts, GB300": {**EXPERTS, "device": "GB300"},
    "experts, unknown trainer": {**EXPERTS, "framework": "foolm"},
    "fp4": {**DENSE, "device": "GB300", "precision": "fp4"},
    "128k tokens": {**DENSE, **LONG},
    "one device": {**DENSE, **SINGLE},
    "16,384 devices": {**DENSE, **HUGE},
    **{name: {**DENSE, **TPU, "device": name} for name in TPUS},
    **{name: {**DENSE, "device": name} for name in OTHERS},
    "gaming": {**DENSE, **SINGLE, "device": "RTX-4090"},
}


@pytest.mark.parametrize("name", CASES)
def test_sane(name: str) -> None:
    check(predicted(CASES[name]))


def test_an_unseen_trainer_has_a_wider_band() -> None:
    known, other = predicted(DENSE), predicted(DENSE, framework="foolm")
    assert any("framework" in line for line in other["assumed"])
    assert width(other) > 1.2 * width(known)


MOON = """
nodes: 64
devices_per_node: 8
device:
  {id: moon-1, name: Moon 1, vendor: nobody, kind: gpu, memory_bytes: 192e9, memory_bytes_per_s: 8e12,
   multiprocessors: 160, peaks: {bf16: 3e15, fp8: 6e15}, sources: [dreamt],
   link: {kind: nvlink, bytes_per_s: 900e9, domain: 8}}
fabric: {kind: infiniband, bytes_per_s: 100e9}
"""


def test_a_device_that_nobody_measured(tmp_path: Path) -> None:
    """A user's own cluster is priced from its data sheet, with a wider band than a known device."""
    path = tmp_path / "moon.yaml"
    path.write_text(MOON, encoding="utf-8")
    cluster, model = load_cluster(path), load_model_spec("llama-3.1-70b")
    layout = Layout.parse({"devices": 64, "tp": 4, "pp": 4, "global_batch": 128, "zero_stage": 1})
    answer = predict(model, cluster, layout, 8192, framework="megatron-core").dump()
    check(answer)
    known = predict(model, load_cluster("dgx-h100"), layout, 8192, framework="megatron-core").dump()
    assert answer["step_time_s"]["p50"] < known["step_time_s"]["p50"]  # three times the peak
    assert width(answer) > 1.2 * width(known)


def width(answer: dict[str, Any]) -> float:
    """The width of the band, as a share."""
    return float(answer["step_time_s"]["p90"] / answer["step_time_s"]["p10"] - 1)


@pytest.mark.parametrize("row", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_any_cell_may_be_missing(row: dict[str, Any]) -> None:
    """Without a cell the answer is a prediction, or an error of one line."""
    for key in row:
        answer = predict_rows([{k: v for k, v in row.items() if k != key}])[0]
        if "error" in answer:
            assert "\n" not in answer["error"]
        else:
            check(answer)


@pytest.mark.parametrize("cell", ["nan", "inf", "-1", "1e99", "many", "0.5"])
@pytest.mark.parametrize("key", ["seq", "n_devices", "tp", "pp", "mbs", "gbs", "layers", "hidden", "vocab"])
def test_nonsense_is_one_clear_line_or_a_blank(key: str, cell: str) -> None:
    shape = {"model": "", "layers": 80, "hidden": 8192, "heads": 64, "ffn": 28672}
    answer = predict_rows([{**DENSE, **shape, key: cell}])[0]
    if "error" in answer:
        assert "\n" not in answer["error"]
        assert key in answer["error"] or "n_devices" in answer["error"]
    else:
        assert cell == "nan"  # reads as a blank
        assert math.isfinite(answer["step_time_s"]["p90"])


@pytest.mark.parametrize(("changes", "slower"), [
    ({"precision": "bf16"}, {"precision": "fp32"}),
    ({"device": "B200-SXM"}, {"device": "H100-80GB-SXM"}),
    ({"device": "H100-80GB-SXM"}, {"device": "A100-80GB-SXM"}),
    ({"gbs": 128}, {"gbs": 256}),
    ({"seq": 4096}, {"seq": 8192}),
    ({"recompute": "none"}, {"recompute": "full"}),
    ({"options": "node_gbps=3200"}, {"options": "node_gbps=100"}),
    ({"vpp": 5}, {"vpp": 1}),
    ({"options": "tp_overlap=1"}, {"options": "tp_overlap=0"}),
    ({"tp": 4, "dp": 4}, {"tp": 16, "dp": 1}),
])  # fmt: skip
def test_slower_settings_are_slower(changes: dict[str, Any], slower: dict[str, Any]) -> None:
    assert predicted(DENSE, **changes)["step_time_s"]["p50"] < predicted(DENSE, **slower)["step_time_s"]["p50"]


@pytest.mark.parametrize(("changes", "more"), [
    ({"recompute": "full"}, {"recompute": "none"}),
    ({"sharding": "zero1"}, {"sharding": "none"}),
    ({"sharding": "fsdp", "pp": 1, "dp": 16}, {"sharding": "zero1", "pp": 1, "dp": 16}),
    ({"mbs": 1}, {"mbs": 2}),
    ({"seq": 4096}, {"seq": 8192}),
    ({"tp": 8, "dp": 2}, {"tp": 4, "dp": 4}),
])  # fmt: skip
def test_larger_settings_take_more_memory(changes: dict[str, Any], more: dict[str, Any]) -> None:
    assert predicted(DENSE, **changes)["memory_gib"]["peak"] < predicted(DENSE, **more)["memory_gib"]["peak"]


def test_more_devices_are_faster_and_less_efficient() -> None:
    """Strong scaling: the step shrinks, the share of the peak too."""
    steps = [predicted(DENSE, n_devices=16 * dp, dp=dp, gbs=512) for dp in (2, 8, 32, 128)]
    times = [step["step_time_s"]["p50"] for step in steps]
    assert times == sorted(times, reverse=True)
    shares = [step["mfu"] for step in steps]
    assert shares == sorted(shares, reverse=True)


def test_source_and_id_are_no_inputs() -> None:
    rows = [row for row in read_table(MEASURED) if row["source"] in ("mlperf-v4.1", "internevo", "maxtext-tpu")]
    bare = [{key: value for key, value in row.items() if key not in ("source", "id", "source_ref", "notes")}
            for row in rows]  # fmt: skip
    for full, without in zip(predict_rows(rows), predict_rows(bare), strict=True):
        assert full["step_time_s"] == without["step_time_s"]


# Published elsewhere, never in the table that constants were fitted on: tokens/s a device.
ELSEWHERE = [
    ("Llama 3 405B on 16,384 H100: 400 TFLOP/s a device (Dubey et al. 2024, table 4)", 158.0,
     {"framework": "Meta internal (2024)", "model": "llama-3.1-405b", "n_devices": 16384, "dp": 128, "tp": 8,
      "pp": 16, "vpp": 7, "gbs": 2048, "sharding": "fsdp"}),
    ("DeepSeek-V3 on 2,048 H800: 180,000 device-hours for 1e12 tokens (DeepSeek-AI 2024)", 1543.0,
     {**EXPERTS, "framework": "HAI-LLM", "device": "H800-80GB-SXM",
      "options": "schedule=dualpipe;ep_overlap=1"}),
    ("GPT-3 175B on 1,024 A100, Megatron-LM: 11.9 s (Jiang et al. 2024, table 2)", 129.1,
     {"framework": "Megatron-LM (2023)", "model": "",
      "layers": 96, "hidden": 12288, "heads": 128, "ffn": 49152,
      "vocab": 64000, "seq": 2048, "device": "A100-80GB-SXM", "n_devices": 1024, "dp": 16, "tp": 8, "pp": 8,
      "vpp": 6, "gbs": 768, "recompute": "selective", "flash": 1}),
    ("Llama 3.1 8B on 8 H100, torchtitan, compiled (Liang et al. 2024, table 1)", 6674.0,
     {"framework": "torchtitan", "model": "llama-3.1-8b", "device": "h100-sxm-96-500w",  # as its paper states
      "n_devices": 8, "dp": 8, "tp": 1, "pp": 1, "mbs": 2,
      "gbs": 16, "sharding": "fsdp", "recompute": "selective", "options": "compile=1"}),
]  # fmt: skip


@pytest.mark.parametrize(("run", "measured", "changes"), ELSEWHERE, ids=[case[0][:24] for case in ELSEWHERE])
def test_published_elsewhere(run: str, measured: float, changes: dict[str, Any]) -> None:
    """Within 15%: twice the mean error on a source that was left out of the fit."""
    answer = predicted(DENSE, **changes)
    assert answer["tokens_per_s_per_device"] == pytest.approx(measured, rel=0.15), run

"""Runs that papers print and that are in no table of ours: what the planner says of them, good and bad.

Figures are tokens/s a device, recalled from the papers and not read again; layouts that a paper leaves open
are ours. No constant was fitted on them, and none was dropped for being far off.
"""

from __future__ import annotations

from typing import Any

from scalewright.plan.predict import predict_rows

H100 = {"device": "H100-80GB-SXM", "precision": "bf16", "seq": 8192}
# the paper's cards: H100 with HBM2e, limited to 500 W
TITAN = {
    **H100,
    "device": "h100-sxm-96-500w",
    "framework": "torchtitan",
    "sharding": "fsdp",
    "pp": 1,
    "recompute": "selective",
}
FULL = {"precision": "fp8", "recompute": "full", "options": "compile=1;async_tp=1"}
TITAN_405 = {**TITAN, **FULL, "model": "llama-3.1-405b", "n_devices": 512, "dp": 8, "tp": 8, "pp": 8, "mbs": 1}
TITAN_405 |= {"gbs": 256}
TITAN_70 = {**TITAN, **FULL, "model": "llama-3.1-70b", "n_devices": 256, "dp": 32, "tp": 8, "mbs": 16}
TITAN_70 |= {"gbs": 512}
META = {**H100, "framework": "Meta internal (2024)", "model": "llama-3.1-405b", "tp": 8, "pp": 16, "vpp": 7,
        "sharding": "fsdp", "recompute": "none"}  # fmt: skip
MEGATRON = {
    "framework": "Megatron-LM (2023)", "model": "GPT-3 175B, 64,000 words", "layers": 96, "hidden": 12288,
    "heads": 128, "ffn": 49152, "vocab": 64000, "seq": 2048, "device": "A100-80GB-SXM", "precision": "bf16",
    "tp": 8, "pp": 8, "vpp": 6, "sharding": "zero1", "mbs": 1, "recompute": "selective", "flash": 1,
}  # fmt: skip


def _titan(devices: int, options: str, precision: str) -> dict[str, Any]:
    sizes = {"n_devices": devices, "dp": devices, "tp": 1, "mbs": 2, "gbs": 2 * devices}
    return {**TITAN, "model": "llama-3.1-8b", **sizes, "precision": precision, "options": options}


def _megatron(devices: int, batch: int, seconds: float) -> tuple[str, float, dict[str, Any]]:
    row = {**MEGATRON, "n_devices": devices, "dp": devices // 64, "gbs": batch}
    return f"GPT-3 175B, {devices:,} A100, Megatron-LM", batch * 2048 / devices / seconds, row


TITAN_PAPER, MEGASCALE = "Liang et al. 2024 (torchtitan)", "Jiang et al. 2024 (MegaScale)"
LLAMA_PAPER = "Dubey et al. 2024 (Llama 3), from TFLOP/s"
RUNS: dict[str, list[tuple[str, float, dict[str, Any]]]] = {
    TITAN_PAPER: [
        ("Llama 3.1 8B, 8 H100", 6258, _titan(8, "", "bf16")),
        ("compiled", 6674, _titan(8, "compile=1", "bf16")),
        ("compiled, fp8", 9409, _titan(8, "compile=1", "fp8")),
        ("Llama 3.1 8B, 128 H100", 5645, _titan(128, "", "bf16")),
        ("compiled", 6482, _titan(128, "compile=1", "bf16")),
        ("compiled, fp8", 9319, _titan(128, "compile=1", "fp8")),
        ("Llama 3.1 405B, 512 H100, fp8, 1F1B", 100,
         {**TITAN_405, "vpp": 1}),
        ("interleaved", 130, {**TITAN_405, "vpp": 2}),
        ("Llama 3.1 70B, 256 H100, fp8", 897, {**TITAN_70, "options": "compile=1"}),
        ("asynchronous tp", 1010, {**TITAN_70, "options": "compile=1;async_tp=1"}),
    ],
    LLAMA_PAPER: [
        ("Llama 3 405B, 8,192 H100", 169.5, {**META, "n_devices": 8192, "dp": 64, "gbs": 2048}),
        ("16,384 H100", 157.7, {**META, "n_devices": 16384, "dp": 128, "gbs": 2048}),
        ("16,384 H100, 131,072 tokens (if masked attention is counted)", 93.6,
         {**META, "n_devices": 16384, "dp": 8, "cp": 16, "seq": 131072, "gbs": 128}),
    ],
    "DeepSeek-AI 2024, from device-hours": [
        ("DeepSeek-V3, 2,048 H800", 1543,
         {"framework": "HAI-LLM", "model": "deepseek-v3", "seq": 4096, "device": "H800-80GB-SXM",
          "precision": "fp8", "n_devices": 2048, "dp": 128, "tp": 1, "pp": 16, "ep": 64, "sharding": "zero1",
          "mbs": 1, "gbs": 15360, "options": "schedule=dualpipe;ep_overlap=1"}),
    ],
    MEGASCALE: [
        _megatron(256, 768, 40.0), _megatron(512, 768, 21.2), _megatron(768, 768, 15.2),
        _megatron(1024, 768, 11.9), _megatron(3072, 6144, 29.02), _megatron(6144, 6144, 14.78),
        _megatron(8192, 6144, 12.24), _megatron(12288, 6144, 8.57),
    ],
    "Chowdhery et al. 2022 (PaLM)": [
        ("PaLM 540B, 6,144 TPU v4", 38.8,
         {"framework": "PaxML", "model": "PaLM 540B", "layers": 118, "hidden": 18432, "heads": 48,
          "kv_heads": 1, "head_dim": 256, "ffn": 73728, "mlp_mats": 3, "vocab": 256000, "seq": 2048,
          "device": "TPU-v4", "n_devices": 6144, "dp": 512, "tp": 12, "pp": 1, "gbs": 2048,
          "mbs": 4, "precision": "bf16", "options": "slices=2;parallel_block=1"}),
    ],
}  # fmt: skip


def elsewhere() -> list[dict[str, Any]]:
    """Every run with its paper, published and predicted tokens/s a device, and the error of the step time."""
    asked = [(paper, *run) for paper, runs in RUNS.items() for run in runs]
    found = predict_rows([row for *_, row in asked])
    answers = []
    for (paper, name, published, _), one in zip(asked, found, strict=True):
        predicted, time = one["tokens_per_s_per_device"], one["step_time_s"]
        error = published / predicted - 1
        inside = time["p10"] <= time["p50"] / (1 + error) <= time["p90"]
        answers.append({"paper": paper, "run": name, "published": published, "predicted": predicted,
                        "error_pct": 100 * error, "in_band": inside})  # fmt: skip
    return answers

"""Answers of `inference` that are written for engines, each asked once."""

from __future__ import annotations

from functools import cache
from typing import Any

import scalewright as sw

QUESTIONS: dict[str, dict[str, Any]] = {
    "plain": {"model": "llama-3.1-70b", "cluster": "dgx-h100", "layout": {"tp": 4}},
    "copies": {"model": "llama-3.1-8b", "cluster": "dgx-h100", "layout": {"tp": 2, "replicas": 4}},
    "quantised": {
        "model": "llama-3.1-70b", "cluster": "dgx-h100", "layout": {"tp": 2}, "precision": "fp8", "kv_precision": "fp8",
    },
    "int4": {"model": "llama-3.1-70b", "cluster": "dgx-h100", "layout": {"tp": 1}, "precision": "int4"},
    "experts": {
        "model": "deepseek-v3", "cluster": "hgx-h200", "layout": {"tp": 16, "ep": 16, "attention_dp": 16},
        "speculate": {"tokens": 2, "accept": 0.8}, "concurrency": 256,
    },
    "apart": {
        "model": "llama-3.1-70b", "cluster": "dgx-h100", "layout": {"tp": 2, "replicas": 4, "prefill": 1},
        "prefix_hit": 0.5, "concurrency": 64,
    },
    "stages": {"model": "llama-3.1-405b", "cluster": "dgx-h100", "layout": {"tp": 8, "pp": 2}},
}  # fmt: skip


@cache
def answer(name: str, engine: str = "vllm") -> dict[str, Any]:
    """The answer of a question of the table."""
    keys = {"input_len": 1024, "output_len": 256, "concurrency": 16, "engine": engine, **QUESTIONS[name]}
    return dict(sw.inference(keys.pop("model"), keys.pop("cluster"), explain=False, **keys))

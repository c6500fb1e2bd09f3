"""Answers of the planner, as `plan --json` writes them; the numbers are made up, no two of them alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scalewright.report.document import read_document
from scalewright.report.page import render, write
from scalewright.report.plan import page

LAYOUT = {
    "devices": 64, "tp": 4, "sp": True, "pp": 4, "virtual_stages": 2, "schedule": "interleaved",
    "stage_layers": None, "cp": 1, "cp_kind": "ring", "ep": 1, "etp": 1, "dp": 4, "dp_replicate": 1,
    "zero_stage": 1, "micro_batch": 2, "global_batch": 64, "recompute": "selective", "precision": "bf16",
    "offload": "none",
}  # fmt: skip
PARTS = {
    "compute": 5.31, "tp_exposed": 0.47, "dp_exposed": 0.29, "cp_exposed": 0.0, "ep_exposed": 0.0,
    "pp_bubble": 0.83, "pp_exposed": 0.0, "optimizer": 0.0137, "recompute": 0.0, "other": 0.1963,
}  # fmt: skip
DEVICE = {
    "name": "h100-sxm", "per_node": 8, "memory_gib": 80.0, "usable_gib": 72.3,
    "links": [
        {"kind": "nvlink", "devices": 8, "bytes_per_s": 450e9},
        {"kind": "infiniband", "devices": None, "bytes_per_s": 50e9},
    ],
}  # fmt: skip
RUN_YAML = """# Planned for 64 devices of dgx-h100.
version: 1
model: llama-test
layout: {devices: 64, tp: 4, pp: 4}
data: {train: [{path: DATA_FOLDER}], seq_len: 8192}
"""


def make_stages(layout: dict[str, Any]) -> list[dict[str, Any]]:
    """A stage takes 30 ms forward and 60 ms backward; the first rank holds the most."""
    ranks, number = layout["pp"], layout["pp"] * layout["virtual_stages"]
    return [
        {
            "stage": stage,
            "rank": stage % ranks,
            "layers": 5,
            "seconds": {
                "forward": 0.03, "backward": 0.06, "backward_input": 0.03, "backward_weight": 0.03,
                "send": 0.0,
            },
            "memory_gib": {
                "parameters": 4.1, "gradients": 3.2, "optimizer": 2.3, "activations": 30.4 - stage % ranks,
                "buffers": 1.5, "other": 0.6,
            },
        }
        for stage in range(number)
    ]  # fmt: skip


def make_estimate(**changes: Any) -> dict[str, Any]:
    """One layout's prediction; `changes` are of its layout, or of a key of its own."""
    layout = {**LAYOUT, **{key: value for key, value in changes.items() if key in LAYOUT}}
    found = {
        "model": {"name": "llama-test", "params": 8.04e9, "active_params": 8.04e9, "flops_per_token": 5.2e10},
        "layout": layout,
        "fits": True,
        "step_time_s": {"p10": 6.42, "p50": sum(PARTS.values()), "p90": 7.96},
        "tokens_per_s": 73900.0, "tokens_per_s_per_device": 1155.0, "tflops_per_device": 432.0,
        "flops_convention": "model FLOPs, as counted here", "mfu": 0.437, "hfu": 0.461,
        "memory_gib": {
            "peak": 42.1, "parameters": 4.1, "gradients": 3.2, "optimizer": 2.3, "activations": 30.4,
            "buffers": 1.5, "other": 0.6,
        },
        "time_breakdown_s": PARTS,
        "comm_bytes": {"tp": 344e9, "dp": 28.8e9, "cp": 0.0, "ep": 0.0, "pp": 8.59e9},
        "bottleneck": "pp_bubble: 12% of the step is the pipeline's fill and drain",
        "assumed": ["precision bf16"],
        "what_if": [
            {"change": "peak x2", "kind": "hardware", "step_time_s": 4.05, "gain_pct": 76.2},
            {"change": "pp x2, does not fit", "kind": "setting", "step_time_s": 7.83, "gain_pct": -9.4},
        ],
        "evidence": {
            "nearest": [
                {"source": "somebody-2024", "model": "llama-3-8b", "device": "h100-sxm", "n_devices": 128,
                 "measured": 10.5, "predicted": 11.3},
            ],
            "extrapolates": ["no run of scalewright"], "framework": "scalewright",
        },
        "stages": make_stages(layout),
        "seq_len": 8192, "device": DEVICE, "framework": "scalewright",
        "trainable": True, "untrainable": None,
    }  # fmt: skip
    return {**found, **{key: value for key, value in changes.items() if key not in LAYOUT}}


def make_plan(**changes: Any) -> dict[str, Any]:
    """A search with three best layouts, of which the last can't be trained yet."""
    best = [
        make_estimate(),
        make_estimate(
            tp=8, dp=2, step_time_s={"p10": 6.9, "p50": 7.77, "p90": 8.8}, memory_gib={"peak": 33.4},
            stages=[], bottleneck="tp_exposed: 14% of the step",
        ),
        make_estimate(
            tp=2, cp=2, step_time_s={"p10": 7.1, "p50": 8.24, "p90": 9.9}, memory_gib={"peak": 25.9},
            stages=[], trainable=False, untrainable="cp 2 is not run yet",
        ),
    ]  # fmt: skip
    plan = {
        "model": "llama-test", "cluster": "dgx-h100", "devices": 64, "seq_len": 8192, "global_batch": 64,
        "objective": "time", "evaluated": 8765, "feasible": 4321, "seconds": 0.345, "complete": True,
        "best": best, "run_yaml": RUN_YAML,
        "pareto": [
            {key: entry[key] for key in ("layout", "step_time_s", "memory_gib", "fits")} for entry in best
        ],
        "why_not": [{"layout": {**LAYOUT, "pp": 1, "dp": 16}, "why": "81.7 GiB, more than the card has"}],
    }  # fmt: skip
    return {**plan, **changes}


def write_plan(document: dict[str, Any], path: Path) -> Path:
    """The page about a document."""
    return write(path, render(page(read_document(document))))

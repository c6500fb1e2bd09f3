"""The roofs as a cluster profile: `cluster.yaml` beside the results, and a plan that was made with it.

Products in every precision and passes over memory are what `bench all` measures; attention and the host's
rates have no field that the planner reads, and stand in the profile's notes.
"""

from __future__ import annotations

import time
from typing import Any

import scalewright as sw
from harness.facts import load_average
from harness.gpu.budget import Check
from harness.gpu.store import read_json
from scalewright.bench.device import memory, squares
from scalewright.bench.profile import make_profile, provenance
from scalewright.machine.local import find_cluster
from scalewright.spec.base import write_yaml
from scalewright.track.environment import environment


def profile(check: Check) -> None:
    """Measures, writes the file, and plans Llama-3.2-1B on it."""
    device = check.device.type
    if check.want("products"):
        precisions = ("fp32",) if check.quick else ("fp32", "tf32", "bf16", "fp16")
        with check.trying("products"):
            check.note("products", list(squares(device, precisions, 0.02 if check.quick else 0.5)))
    if check.want("memory"):
        sizes = (1 << 16,) if check.quick else tuple(1 << power for power in range(24, 33, 2))
        with check.trying("memory"):
            check.note("memory", list(memory(device, sizes, 0.02 if check.quick else 0.2)))
    path = check.folder / "cluster.yaml"
    if check.want("plan", 3.0):
        with check.trying("plan"):
            cluster = find_cluster("local" if device == "cuda" else "dgx-h100")
            load = load_average()
            made = make_profile(
                cluster.replace(notes=[*cluster.notes, *_notes(check)]),
                messages=None, products=_rows(check, "products"), memory=_rows(check, "memory"),
                when=time.strftime("%Y-%m-%d", time.gmtime()),
                software=provenance(environment(), load[0] if load else None),
            )  # fmt: skip
            write_yaml(path, made.dump())
            best = sw.plan("llama-3.2-1b", str(path), devices=1, seq_len=8192, global_batch=8)["best"][0]
            check.note("plan", {"file": path.name, "layout": best["layout"], "step_time_s": best["step_time_s"]})


def _rows(check: Check, key: str) -> list[dict[str, Any]]:
    rows = check.part.get(key)
    return rows if isinstance(rows, list) else []


def _notes(check: Check) -> list[str]:
    """Attention and host, where their parts have been measured."""
    parts = read_json(check.folder / "gpu-check.json").get("parts", {})
    notes = []
    for key, value in parts.get("attention", {}).get("values", {}).items():
        if isinstance(value, dict) and "forward_backward_tflops" in value:
            notes.append(f"attention, {key}: {value['forward_backward_tflops']:.0f} TFLOP/s with its backward")
    for key, value in parts.get("memory", {}).get("values", {}).items():
        if isinstance(value, dict) and "per_s" in value and key in ("launches_per_s", "to_device_gb", "to_host_gb"):
            notes.append(f"{key}: {value['per_s']:.4g}")
    return notes

"""The page's controls: each axis with its name and the values that its slider stops at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd
from typing import Any, get_args

from scalewright.explore.state import State
from scalewright.plan.frameworks import OURS, framework_names
from scalewright.spec.layout import Layout, Precision, ScheduleName
from scalewright.spec.model import ModelSpec

TITLES = {
    "devices": "Devices", "seq_len": "Sequence length", "global_batch": "Global batch", "tp": "Tensor parallel",
    "pp": "Pipeline parallel", "virtual_stages": "Stages a rank", "cp": "Context parallel", "ep": "Expert parallel",
    "dp_replicate": "Replicas (HSDP)", "zero_stage": "ZeRO level", "micro_batch": "Micro-batch",
    "tokens": "Tokens of the run", "price": "USD a device and hour", "framework": "Trainer",
    "recompute": "Recompute", "schedule": "Schedule", "precision": "Precision", "offload": "Offload",
}  # fmt: skip
BESIDE = ("tokens", "price", "framework")  # the layout: money and electricity, and whose step
RUN = ("devices", "seq_len", "global_batch", *BESIDE)  # what a search holds fixed
LISTED = "of the list"
FORGETS = {  # keys that follow from others again, once one of these was moved
    "tp": ("sp",), "pp": ("stage_layers",), "pp=1": ("virtual_stages", "schedule"), "cluster": ("precision",),
    "virtual_stages": ("stage_layers", "schedule"), "schedule": ("stage_layers", "virtual_stages"),
}  # fmt: skip
LONGEST = 20  # powers of two
PRICES = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0)


def controls(state: State, model: ModelSpec) -> list[dict[str, Any]]:
    """Each axis: key, title, values in order, and the present one, which is always among them."""
    rows = []
    for key, values in choices(state, model).items():
        value = _value(state, key)
        if value is not None and not isinstance(value, (dict, list, tuple)):
            numeric = all(isinstance(each, (int, float)) for each in values)
            stops = sorted({*values, value}) if numeric else [*dict.fromkeys([*values, value])]
            rows.append({"key": key, "title": TITLES[key], "values": stops, "value": value, "run": key in RUN})
    return rows


def _value(state: State, key: str) -> Any:
    """What the state has of an axis; what it leaves to the list or to this package in words."""
    if key == "price" and state.price is None:
        return LISTED
    if key == "framework" and state.framework is None:
        return OURS
    return getattr(state, key) if key in (*BESIDE, "seq_len") else state.layout.get(key)


def moved(state: State, key: str, value: Any) -> State:
    """The state after a move of one slider, as the page's script writes it."""
    lost = {*FORGETS.get(key, ()), *FORGETS.get(f"{key}={value}", ())}
    layout = {name: each for name, each in {**state.layout, key: value}.items() if name not in lost}
    return replace(state, layout=layout)


def choices(state: State, model: ModelSpec) -> dict[str, Sequence[Any]]:
    """The values of each axis: sizes divide the devices, heads, experts and layers bound them."""
    devices = int(state.layout.get("devices") or 1)
    heads, layers = model.num_attention_heads, model.num_hidden_layers
    experts = model.moe.num_experts if model.moe is not None else 1
    parts = [n for n in range(1, min(devices, 4096) + 1) if devices % n == 0]
    return {
        "devices": _powers(0, 14), "seq_len": _powers(9, LONGEST), "global_batch": _powers(0, 15),
        "tp": [n for n in parts if heads % n == 0 and n <= 64], "pp": [n for n in parts if n <= min(layers, 64)],
        "cp": [n for n in parts if n <= 64], "ep": [n for n in parts if gcd(experts, n) == n],
        "dp_replicate": [n for n in parts if n <= 64], "zero_stage": [0, 1, 2, 3], "micro_batch": _powers(0, 6),
        "virtual_stages": [1, 2, 3, 4, 5, 6, 8], "recompute": ["none", "selective", "full"],
        "schedule": get_args(ScheduleName), "precision": [p for p in get_args(Precision) if p != "auto"],
        "offload": get_args(Layout.model_fields["offload"].annotation),
        "tokens": [step * 10**power for power in range(9, 14) for step in (1, 2, 5)],
        "price": [LISTED, *PRICES], "framework": framework_names(),
    }  # fmt: skip


def _powers(first: int, last: int) -> list[int]:
    return [2**n for n in range(first, last + 1)]

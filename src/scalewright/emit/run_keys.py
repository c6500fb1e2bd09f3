"""A run as its file's keys, while a reader fills it in: the sections whose keys and values are checked.

A model is a name or the keys of a network, of which each family of trainers states others.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

LayoutKey = Literal[  # whose value is a whole number
    "dp_replicate", "tp", "pp", "cp", "micro_batch", "global_batch", "accumulation", "zero_stage"
]


class LayoutKeys(TypedDict, total=False):
    """Keys of `layout`; `accumulation` until the global batch is known."""

    devices: int
    dp_replicate: int
    tp: int
    sp: bool
    pp: int
    cp: int
    cp_kind: str
    ep: int
    etp: int
    schedule: str
    virtual_stages: int
    stage_layers: list[int]
    micro_batch: int
    global_batch: int
    accumulation: int
    zero_stage: int
    precision: str
    recompute: str | dict[str, Any]
    offload: str


class RunKeys(TypedDict, total=False):
    """Keys of a run file."""

    model: Any
    layout: LayoutKeys
    data: dict[str, Any]
    optimizer: dict[str, Any]
    lr_schedule: dict[str, Any]
    train: dict[str, Any]
    checkpoint: dict[str, Any]
    seed: int
    deterministic: bool
    device: str

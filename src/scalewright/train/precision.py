"""Which precision a run computes in, and what its MFU is measured against.

bf16 means fp32 master weights, bf16 copies for compute, and fp32 sums of gradients; fp16 the same, with a dynamic loss
scale (train/guard/decide.py). `auto` takes bf16 where the device has it fast, and fp16 on GPUs that have that alone: on
a CPU it is measured, since some have AMX and others are three times slower in bf16.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from scalewright.machine.local import find_cluster
from scalewright.machine.probe import compare_bf16, matmul_rate
from scalewright.spec.common.jsonl import read_jsonl
from scalewright.spec.errors import UserError


@dataclass(frozen=True)
class Peak:
    """A device's peak in the run's precision, in FLOP/s, and the source of that figure."""

    flops: float | None
    source: str  # "published" or "measured"
    device: str
    how: str = ""  # how it was measured


def choose_precision(asked: str, device: torch.device, remarks: list[str] | None = None, scaled: bool = True) -> str:
    """The precision to compute in; raises UserError for one that the device lacks. `remarks` gets what was measured.
    `scaled`: whether the run bears a loss scale that changes, as fp16 has one."""
    if asked == "auto":
        if device.type == "cuda":
            return _on_gpu(device, remarks, scaled)
        if device.type == "mps":
            return "fp32"
        speed = compare_bf16("cpu")
        if speed is not None and remarks is not None:
            remarks.append(speed.describe())
        return "bf16" if speed else "fp32"
    if asked == "bf16" and device.type == "cuda" and not _has_bf16():
        raise UserError(f"{torch.cuda.get_device_name(device)} has no bf16", "layout.precision", "use fp16 or fp32")
    if asked == "tf32" and device.type != "cuda":
        raise UserError(f"tf32 exists on NVIDIA GPUs, not on {device.type}", "layout.precision", "use fp32")
    return asked


def _on_gpu(device: torch.device, remarks: list[str] | None, scaled: bool) -> str:
    """bf16; fp16 where a card of before 2020 (Volta, Turing, P100) has that alone, some eight times as fast as fp32."""
    if _has_bf16():
        return "bf16"
    capability = torch.cuda.get_device_capability(device)
    if not scaled or (capability < (7, 0) and capability != (6, 0)):
        return "fp32"
    if remarks is not None:
        name = torch.cuda.get_device_name(device)
        remarks.append(f"fp16: {name} has no bf16; layout.precision=fp32 is slower, and never overflows")
    return "fp16"


def _has_bf16() -> bool:
    return bool(torch.cuda.is_bf16_supported(including_emulation=False))


def find_peak(cluster: str | dict[str, object], precision: str, device: torch.device) -> Peak:
    """The peak of one rank's device in the run's precision. A CPU has no published one: its matmul rate is measured
    here and now, with this rank's threads. A GPU that `cluster: local` finds has its data sheet's or a measured one."""
    if device.type == "cpu":
        rate = matmul_rate(precision)
        threads = torch.get_num_threads()
        name = f"CPU process of {threads} thread{'s' if threads > 1 else ''}"
        return Peak(rate.per_s if rate else None, "measured", name, rate.how if rate else "")
    hardware = find_cluster(cluster)
    return Peak(hardware.device.peak(precision), hardware.peak_source, hardware.device.name)


def earlier_peak(folder: Path, precision: str, world: int) -> Peak | None:
    """The peak that this run was measured against before, so that MFU means the same after a resume. None also where
    steps turned out to do more than that peak: it is to be measured again."""
    for event in reversed(read_jsonl(folder / "events.jsonl")):
        if event.get("peak_too_low"):
            return None
        flops, alike = event.get("peak_flops"), (event.get("precision"), event.get("world")) == (precision, world)
        if alike and isinstance(flops, (int, float)) and 0 < flops < math.inf:  # and nothing that damage left there
            usual = {"source": "measured", "device": "", "how": ""}
            texts = {key: str(event.get(f"peak_{key}", text)) for key, text in usual.items()}
            return Peak(float(flops), **texts)
    return None

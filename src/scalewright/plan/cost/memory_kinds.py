"""Three numbers that are all called memory: what tensors take, the allocator holds, and the driver shows.

    allocated   the peak of memory.py                    torch.cuda.max_memory_allocated
    reserved    + what comes and goes, in pieces that    torch.cuda.max_memory_reserved
                can't be reused (memory.pieces)
    smi         + the device's context and kernels, and  nvidia-smi, rocm-smi
                NCCL's buffers of every group of ranks

A measured number is compared with the one of its kind; a table that names none is taken for allocated. Only
GPUs have the latter two: elsewhere they are the first.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from scalewright.plan.constants import Constants
from scalewright.plan.cost.table import Facts, Table

MemoryKind = Literal["allocated", "reserved", "smi"]
COMES_AND_GOES = ("activations", "buffers", "other")
GIB = float(2**30)


def memory_kinds(
    table: Table, facts: Facts, parts: dict[str, np.ndarray], peak: np.ndarray, c: Constants
) -> dict[MemoryKind, np.ndarray]:
    """Bytes of the worst rank, by kind of number."""
    t, gpu = table, table.gather(facts.chips["gpu"]) > 0
    reserved = peak + c["memory.pieces"] * sum(parts[kind] for kind in COMES_AND_GOES)
    axes = (t.tp, t.cp, t.pp, t.dp * t.cp, t.ep, t.devices)
    groups = sum(1.0 * (ranks > 1) for ranks in axes)
    smi = reserved + GIB * (c["memory.context"] + c["memory.group"] * groups)
    return {"allocated": peak, "reserved": np.where(gpu, reserved, peak), "smi": np.where(gpu, smi, peak)}


def kind_of(notes: str) -> MemoryKind:
    """The kind of a row's memory, by its notes."""
    text = notes.lower()
    if "nvidia-smi" in text:
        return "smi"
    return "reserved" if "max reserved" in text else "allocated"

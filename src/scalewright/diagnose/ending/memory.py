"""An out-of-memory line taken apart: what was asked for, what was there, who had it.

CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.11 GiB of which 1.20 GiB is free.
... this process has 77.90 GiB memory in use. Of the allocated memory 70.01 GiB is allocated by PyTorch, and
5.20 GiB is reserved by PyTorch but unallocated.

    fragmented      reserved and unused holds what was asked for: expandable segments would have found it
    shared          other processes hold a part of the device
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SIZE = r"(\d+(?:\.\d+)?) ?([KMGT]i?B|bytes)"
UNITS = {
    "bytes": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
FORMS = {
    "tried": rf"[Tt]ried to allocate {SIZE}",
    "capacity": rf"total capacity of {SIZE}|{SIZE} total capacity",
    "free": rf"of which {SIZE} is free|{SIZE} free",
    "in_use": rf"this process has {SIZE} memory in use",
    "allocated": rf"{SIZE} is allocated by PyTorch|{SIZE} already allocated",
    "unused": rf"{SIZE} is reserved by PyTorch but unallocated",
    "reserved": rf"{SIZE} reserved in total by PyTorch",
    "others": rf"Process \d+ has {SIZE} memory in use",
}
GPU = re.compile(r"\(?GPU (\d+)")


@dataclass(frozen=True)
class OutOfMemory:
    """Bytes, as the line has them; None where it doesn't."""

    device: int | None
    tried: float | None
    capacity: float | None
    free: float | None
    in_use: float | None
    allocated: float | None
    unused: float | None  # reserved by PyTorch and not in use
    others: float | None  # of other processes

    @property
    def fragmented(self) -> bool:
        """Whether what PyTorch holds unused is as large as what was asked for."""
        return self.tried is not None and self.unused is not None and self.unused >= self.tried

    def evidence(self) -> list[str]:
        """Sentences."""
        gib = {name: f"{value / 2**30:.2f} GiB" for name, value in vars(self).items() if isinstance(value, float)}
        lines = []
        if "tried" in gib:
            free = f" with {gib['free']} free" if "free" in gib else ""
            of = f" of {gib['capacity']}" if "capacity" in gib else ""
            device = f" on GPU {self.device}" if self.device is not None else ""
            lines.append(f"{gib['tried']} were asked for{free}{of}{device}")
        if "allocated" in gib:
            unused = f", {gib['unused']} reserved and unused" if "unused" in gib else ""
            lines.append(f"tensors hold {gib['allocated']}{unused}")
        if "others" in gib and self.others:
            lines.append(f"other processes hold {gib['others']} of the same device")
        return lines

    def fix(self) -> str:
        """What would help first."""
        if self.others and self.capacity and self.others > 0.05 * self.capacity:
            return "end the other processes on this device (nvidia-smi), or give each rank its own"
        if self.fragmented:
            return "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: the memory is there, in pieces that are too small"
        return ""


def out_of_memory(text: str) -> OutOfMemory:
    """The line's numbers."""
    values = {name: _size(pattern, text) for name, pattern in FORMS.items()}
    reserved, allocated = values.pop("reserved"), values["allocated"]
    if values["unused"] is None and reserved is not None and allocated is not None:
        values["unused"] = reserved - allocated
    device = GPU.search(text)
    others = [float(match[1]) * UNITS[match[2]] for match in re.finditer(FORMS["others"], text)]
    values["others"] = sum(others) if others else None
    return OutOfMemory(int(device[1]) if device else None, **values)


def _size(pattern: str, text: str) -> float | None:
    match = re.search(pattern, text)
    groups = [group for group in match.groups() if group] if match else []
    return float(groups[0]) * UNITS[groups[1]] if groups else None

"""An out-of-memory line taken apart: what was asked for, what was there, who had it.

CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.11 GiB of which 1.20 GiB is free.
... this process has 77.90 GiB memory in use. Of the allocated memory 70.01 GiB is allocated by PyTorch, and
5.20 GiB is reserved by PyTorch but unallocated.

    fragmented      reserved and unused holds what was asked for: expandable segments would have found it
    shared          other processes hold a part of the device
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from scalewright.spec.common.numbers import number_of

SIZE = r"(\d+(?:\.\d+)? ?(?:[KMGT]i?B|bytes))"
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
GPU = re.compile(r"GPU (\d+)")


def sizes_of(text: str) -> dict[str, float]:
    """Bytes by the names of FORMS, of those that the line has; `unused` is reserved by PyTorch and not in use."""
    stated = {name: _sizes(pattern, text) for name, pattern in FORMS.items()}
    sizes = {name: sum(some) if name == "others" else some[0] for name, some in stated.items() if some}
    reserved = sizes.pop("reserved", None)
    if reserved is not None and "allocated" in sizes:
        sizes.setdefault("unused", reserved - sizes["allocated"])
    held = sizes.get("allocated", 0.0) + sizes.get("unused", 0.0)
    # In a container this process is listed as another one: its number is the host's.
    same = [size for size in stated["others"] if size >= held > 0]
    if same and "in_use" not in sizes and held + sizes["others"] > sizes.get("capacity", math.inf):
        sizes["others"] -= min(same)
    return sizes


def evidence(text: str, sizes: Mapping[str, float]) -> list[str]:
    """Sentences."""
    gib = {name: f"{size / 2**30:.2f} GiB" for name, size in sizes.items()}
    lines = []
    if "tried" in gib:
        free = f" with {gib['free']} free" if "free" in gib else ""
        of = f" of {gib['capacity']}" if "capacity" in gib else ""
        device = f" on GPU {match[1]}" if (match := GPU.search(text)) else ""
        lines.append(f"{gib['tried']} were asked for{free}{of}{device}")
    if "allocated" in gib:
        unused = f", {gib['unused']} reserved and unused" if "unused" in gib else ""
        lines.append(f"tensors hold {gib['allocated']}{unused}")
    if sizes.get("others"):
        lines.append(f"other processes hold {gib['others']} of the same device")
    return lines


def fix(sizes: Mapping[str, float]) -> str:
    """What would help first; empty where the line doesn't tell."""
    if sizes.get("others", 0.0) > 0.05 * (sizes.get("capacity") or math.inf):
        return "end the other processes on this device (nvidia-smi), or give each rank its own"
    if sizes.get("unused", -1.0) >= sizes.get("tried", math.inf):
        return "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: the memory is there, in pieces that are too small"
    return ""


def _sizes(pattern: str, text: str) -> list[float]:
    """In bytes, wherever the text has the pattern."""
    sizes = (next(filter(None, match.groups())) for match in re.finditer(pattern, text))
    return [number_of(size, "bytes") or 0.0 for size in sizes]

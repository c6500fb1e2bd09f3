"""A training job's allocations as a snapshot, with the bytes of every category and its truth by another run.

held before    parameters, and from the second step on gradients and Adam's states
a step         forward: layers' activations, logits ─► loss ─► backward ─► optimizer
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MIB = 1 << 20
LAYER = 16 * MIB  # bytes of a layer's parameters
MODEL, TORCH = "/home/me/model.py", "/x/site-packages/torch"


def stack(*frames: tuple[str, str, int]) -> list[dict[str, Any]]:
    return [{"name": name, "filename": file, "line": line} for name, file, line in frames]


FORWARD = stack(
    ("linear", f"{TORCH}/nn/functional.py", 9), ("forward", MODEL, 31), ("<module>", "/home/me/train.py", 5)
)
HEAD = stack(("linear", f"{TORCH}/nn/functional.py", 9), ("forward", MODEL, 80), ("<module>", "/home/me/train.py", 5))
LOSS = stack(("cross_entropy", f"{TORCH}/nn/functional.py", 7), ("<module>", "/home/me/train.py", 6))
BACKWARD: list[dict[str, Any]] = []  # autograd's thread has no Python
OPTIMIZER = stack(("_init_group", f"{TORCH}/optim/adamw.py", 4), ("step", f"{TORCH}/optim/adamw.py", 8))
GATHER = stack(("all_gather_into_tensor", f"{TORCH}/distributed/distributed_c10d.py", 4), ("forward", MODEL, 31))


@dataclass
class Job:
    """`logits`: bytes of the logits, `activations`: of a layer, `gathers`: of a layer's buffer, kept."""

    layers: int = 4
    steps: int = 2
    logits: int = 256 * MIB
    activations: int = 64 * MIB
    gathers: int = 0
    out_of_memory: int = 0
    recorded_late: bool = False
    events: list[dict[str, Any]] = field(default_factory=list)
    live: dict[int, tuple[int, Any]] = field(default_factory=dict)
    level: int = 0
    peak: int = 0
    address: int = 1000

    def alloc(self, size: int, frames: Any) -> int:
        self.address += 1
        self._event("alloc", self.address, size, frames)
        self.live[self.address] = size, frames
        self.level += size
        self.peak = max(self.peak, self.level)
        return self.address

    def free(self, address: int) -> None:
        size, _ = self.live.pop(address)
        self._event("free_requested", address, size, [])
        self._event("free_completed", address, size, [])
        self.level -= size

    def _event(self, action: str, address: int, size: int, frames: Any) -> None:
        self.events.append({"action": action, "addr": address, "size": size, "stream": 0, "frames": frames,
                            "time_us": 100 * len(self.events)})  # fmt: skip

    def run(self) -> Job:
        """The whole job; the parameters are there before."""
        sizes = [LAYER + MIB * layer for layer in range(self.layers)]
        for size in sizes:
            self.address += 1
            self.live[self.address] = size, []
            self.level += size
        states: list[int] = []
        for _ in range(self.steps):
            kept = [self.alloc(self.activations, FORWARD) for _ in sizes]
            buffers = [self.alloc(self.gathers, GATHER) for _ in sizes] if self.gathers else []
            logits = self.alloc(self.logits, HEAD)
            loss = self.alloc(self.logits, LOSS)
            if self.out_of_memory:
                self._event("oom", 0, self.out_of_memory, LOSS)
                return self
            back = self.alloc(self.logits, BACKWARD)
            for address in (logits, loss, back):
                self.free(address)
            gradients = []
            for size, address in zip(sizes, kept, strict=True):
                work = self.alloc(self.activations, BACKWARD)
                gradients.append(self.alloc(size, BACKWARD))
                self.free(work)
                self.free(address)
            states = states or [self.alloc(size, OPTIMIZER) for size in sizes for _ in range(2)]
            work = self.alloc(8 * MIB, OPTIMIZER)
            self.free(work)
            for address in gradients + buffers:
                self.free(address)
        return self

    def write(self, path: Path, **settings: Any) -> Path:
        """The snapshot of what was run, in one segment a block, and free pieces in a last one."""
        segments = [
            {"device": 0, "address": address, "total_size": size, "allocated_size": size, "active_size": size,
             "blocks": [{"address": address, "size": size, "state": "active_allocated", "frames": frames}]}
            for address, (size, frames) in self.live.items()
        ]  # fmt: skip
        pieces = settings.pop("pieces", 0)
        if pieces:
            blocks = [{"address": 1, "size": 1 << 20, "state": "active_allocated", "frames": []}]
            blocks += [{"address": 2 + n, "size": 16 << 20, "state": "inactive"} for n in range(pieces)]
            used = 1 << 20
            segments.append({"device": 0, "address": 1, "total_size": used + (pieces << 24),
                             "allocated_size": used, "active_size": used, "blocks": blocks})  # fmt: skip
        data = {"segments": segments, "device_traces": [self.events], "allocator_settings": settings}
        path.write_bytes(pickle.dumps(data, 4))
        return path

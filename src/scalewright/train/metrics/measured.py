"""What the ranks of a run held and sent: the `measured` event, beside the `predicted` one.

    step COUNTED of a call ─┬─ weights, gradients, optimizer's tensors ─► bytes of each kind      ┐ largest
                            ├─ torch's flight recorder ─► its collectives, by axis of their group ├ of all
                            └─ sends of the pipeline                                              ┘ ranks

Counted once a run, when every state exists; an all-reduce counts its tensor, an all-gather its output, a reduce-scatter
its input, as the planner's do (plan/cost/volumes.py). A plan has the busiest device of each axis and the worst rank's
memory, so of each kind the largest rank stands here. What activations, buffers and other tensors take is the rest of a
GPU's peak; on a CPU it can't be told from Python's own memory.

Asynchronous readback: numbers leave a GPU one step late, so that the host never waits for the newest step.

    host     launch 1 | launch 2 | read 1 | launch 3 | read 2 | ...
    device          step 1    |   step 2      |   step 3

On a CPU there is nothing to wait for, and each step's numbers are read at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, TypedDict

import torch
from torch import Tensor

from scalewright.model.torch_private import tree_leaves
from scalewright.parallel.collectives import gather_json
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.parallelize import Parallel
from scalewright.parallel.pipeline import Pipeline
from scalewright.parallel.weights import local_tensor
from scalewright.train.diloco import AXIS, Islands
from scalewright.train.hangs.position import Groups, flights, kind_of
from scalewright.train.memory.usage import memory_gib

COUNTED = 3  # the step of a call, from 1
GIB = 2**30
OUTPUT = ("all_gather",)  # kinds of which the output is counted, else the input
NARROW = {"Double": 8, "Long": 8, "ComplexFloat": 8, "BFloat16": 2, "Half": 2, "Short": 2, "Byte": 1,
          "Char": 1, "Bool": 1, "Float8_e4m3fn": 1, "Float8_e5m2": 1}  # fmt: skip
WIDTH = 4  # bytes of a number of any other type
# Axes of the timers -> as a plan has them
_AXES = {"dp_shard": "dp", "dp_replicate": "dp", "kv": "tp", "etp": "tp", "tie": "pp"}
SCALARS = ("control", "own")  # groups that carry a step's report, or that the user's code made


class _Counts(TypedDict):
    """Bytes of one rank."""

    memory_bytes: dict[str, int]  # by kind
    comm_bytes: dict[str, int] | None  # by axis; None: the recorder lost some
    peak: float  # GiB


@dataclass
class Counter:
    """Counts one step of this rank's; `counts` false: weights and collectives are another engine's, and nothing is."""

    mesh: Mesh
    parallel: Parallel
    optimizer: torch.optim.Optimizer
    islands: Islands | None = None
    counts: bool = True
    _steps: int = 0
    _counts: _Counts | None = None

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around every step; all but one of them go by unseen."""
        self._steps += 1
        if self._steps != COUNTED or not self.counts:
            yield
            return
        executor = self.parallel.executor
        messages = executor.messages if isinstance(executor, Pipeline) else None
        before, begun = messages.sent_bytes if messages else 0, time.time_ns()
        yield
        by_axis = self._sent(begun) if self.mesh.groups else {}
        if messages and by_axis is not None:
            by_axis["pp"] = by_axis.get("pp", 0) + messages.sent_bytes - before
        memory = held(self.parallel, self.optimizer, self.islands)
        self._counts = {"memory_bytes": memory, "comm_bytes": by_axis, "peak": 0.0}

    def _sent(self, begun: int) -> dict[str, int] | None:
        """Bytes by axis since `begun`; of outer steps, which may be in this step or not, a step's share."""
        by_axis = sent(Groups(self.mesh), flights(), begun, apart=(AXIS,) if self.islands else ())
        if by_axis is not None and self.islands is not None:
            by_axis["dp"] = by_axis.get("dp", 0) + round(self.islands.step_bytes)
        return by_axis

    def together(self) -> dict[str, object] | None:
        """The event's keys, the largest of all ranks; None in a call without that step. All ranks call it."""
        mine = {**self._counts, "peak": memory_gib(self.mesh.device)} if self._counts else None
        ranks: list[_Counts | None] = gather_json(mine, self.mesh)
        every = [rank for rank in ranks if rank is not None]
        if len(every) < len(ranks):
            return None
        memory = largest([rank["memory_bytes"] for rank in every])
        gib = {kind: size / GIB for kind, size in memory.items()}
        if self.mesh.device.type == "cuda":
            gib["peak"] = max(rank["peak"] for rank in every)
            gib["rest"] = gib["peak"] - sum(memory.values()) / GIB
        sums = [rank["comm_bytes"] for rank in every if rank["comm_bytes"] is not None]
        return {"memory_gib": gib, "comm_bytes": largest(sums) if len(sums) == len(every) else None}


def held(parallel: Parallel, optimizer: torch.optim.Optimizer, islands: Islands | None = None) -> dict[str, int]:
    """Bytes on the device of weights, their gradients and the optimizers' states; a storage counts once."""
    weights = parallel.weights
    tensors: dict[str, Iterable[Any]] = {
        "parameters": (tensor for weight in weights for tensor in (weight.resident, weight.master)),
        "gradients": (weight.gradient for weight in weights),
        "optimizer": [*tree_leaves(list(optimizer.state.values())), *(islands.tensors() if islands else [])],
    }
    device, counted = next(iter(weights)).resident.device, set[int]()
    return {kind: sum(_new_bytes(some, device, counted)) for kind, some in tensors.items()}


def _new_bytes(values: Iterable[Any], device: torch.device, counted: set[int]) -> Iterator[int]:
    for value in values:
        tensor = local_tensor(value) if isinstance(value, Tensor) else value
        if not isinstance(tensor, Tensor) or tensor.device != device:
            continue
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in counted:
            counted.add(storage.data_ptr())
            yield storage.nbytes()


def sent(
    groups: Groups, entries: Sequence[Mapping[str, Any]], begun: int, apart: tuple[str, ...] = ()
) -> dict[str, int] | None:
    """Bytes by axis of the recorder's collectives since `begun` (ns); None where it lost some. Without axes `apart`."""
    if not entries or min(int(entry["time_created_ns"]) for entry in entries) > begun:
        return None
    by_axis: dict[str, int] = {}
    for entry in entries:
        group = groups.find(str(entry["process_group"][0]))
        passed_over = entry.get("is_p2p") or entry["time_created_ns"] < begun
        if group is not None and group[0] not in (*SCALARS, *apart) and not passed_over:
            axis = _AXES.get(group[0], group[0])
            by_axis[axis] = by_axis.get(axis, 0) + _bytes(entry)
    return by_axis


def _bytes(entry: Mapping[str, Any]) -> int:
    side = "output" if kind_of(entry) in OUTPUT else "input"
    tensors = zip(entry.get(f"{side}_sizes") or [], entry.get(f"{side}_dtypes") or [], strict=False)
    return sum(prod(map(int, shape)) * NARROW.get(str(name), WIDTH) for shape, name in tensors)


def largest(ranks: list[dict[str, int]]) -> dict[str, int]:
    """Of each key the largest of all ranks."""
    keys = dict.fromkeys(key for rank in ranks for key in rank)
    return {key: max(rank.get(key, 0) for rank in ranks) for key in keys}


Report = tuple[int, list[float]]  # of a step: its columns (train/columns.py)


class Readback:
    """Hands step reports over in order, late by one step on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._late = device.type == "cuda"
        self._pending: tuple[int, Tensor, torch.cuda.Event] | None = None

    def push(self, step: int, report: Tensor) -> list[Report]:
        """Takes a step's report; gives those that can be read without waiting for it."""
        if not self._late:
            return [(step, report.tolist())]
        before = self.flush()
        values = torch.empty(report.shape, dtype=report.dtype, pin_memory=True)
        values.copy_(report, non_blocking=True)
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record()
        self._pending = step, values, ready
        return before

    def flush(self) -> list[Report]:
        """Waits for the report that is still on its way, if any."""
        pending, self._pending = self._pending, None
        if pending is None:
            return []
        step, values, ready = pending
        ready.synchronize()
        return [(step, values.tolist())]

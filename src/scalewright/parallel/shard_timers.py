"""FSDP's own collectives, timed: its defaults are replaced by the same ones with marks around them.

    before a block         all-gather        dp_shard
    after its backward     reduce-scatter    dp_shard
                           all-reduce        dp_replicate: from the reduce-scatter's end to FSDP's next hook

On a CPU, where each of them holds the host up. On a GPU FSDP runs them on streams of their own, and is left
as it is (parallel/timers.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

# torch promises `set_custom_all_gather` and `set_custom_reduce_scatter`, but not the path of its own ones.
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter

from scalewright.parallel.mesh import Mesh
from scalewright.parallel.timers import Timers


def time_shards(module: FSDPModule, mesh: Mesh) -> None:
    """Makes the timers of the mesh mark FSDP's collectives for this module."""
    if mesh.device.type != "cpu":
        return
    reduce_scatter = _ReduceScatter(mesh.timers)
    module.set_custom_all_gather(_AllGather(mesh.timers))
    module.set_custom_reduce_scatter(reduce_scatter)
    if mesh.replicas is not None:
        module.set_all_reduce_hook(reduce_scatter.reduced)


class _AllGather(DefaultAllGather):
    def __init__(self, timers: Timers) -> None:
        self.timers = timers

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        with self.timers.comm("dp_shard"):
            return super().__call__(*arguments, **keywords)


class _ReduceScatter(DefaultReduceScatter):
    def __init__(self, timers: Timers) -> None:
        self.timers = timers
        self.ended: Any = None

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        with self.timers.comm("dp_shard"):
            output = super().__call__(*arguments, **keywords)
        self.ended = self.timers.mark() if self.timers.on else None
        return output

    def reduced(self, gradient: torch.Tensor) -> None:
        """The hook that FSDP calls after its all-reduce over the replicas."""
        if self.ended is not None:
            self.timers.add("comm_dp_replicate", self.ended, self.timers.mark())
            self.ended = None

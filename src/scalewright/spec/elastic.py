"""`elastic` of `run.yaml`: the same run on another number of ranks than `layout.devices`.

    layout {devices: 8, tp: 2, micro_batch: 4, global_batch: 32}, of which 6 ranks are there

    tp, pp, cp, ep stay                       dp = 6 / (2 x 1 x 1) = 3
    the batch of a step stays                 micro_batch x 3 x accumulation = 32: none, so 6 ranks don't fit
    with 4 ranks                              dp 2, micro_batch 4, accumulation 4

Samples are numbered over the whole run, and a step takes the next `global_batch` of them whatever the layout
(train/batches.py): a run that goes on with other ranks sees each sample that is left, once, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from pydantic import Field

from scalewright.spec.base import Spec
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout


class ElasticSpec(Spec):
    """Which other worlds a run takes, and when it goes back to all devices."""

    min: int | None = Field(None, ge=1)  # ranks; null: as few as tp, pp, cp and ep allow
    retry_s: float = Field(600.0, ge=0, le=1e7)  # with fewer ranks for so long, then all again at a save; 0: never
    replan: bool = False  # the planner lays the run out anew for another world
    leave_out_slow: bool = False  # a rank that is slow for long isn't started again


def layouts_on(layout: Layout, world: int) -> Iterator[Layout]:
    """The run's layout on `world` ranks: whole shards before whole replicas, large micro-batches before small ones.

    All of them take `global_batch` samples a step and keep tp, pp, cp, ep and etp; none where dp doesn't fit.
    """
    if world == layout.devices:
        yield layout
        return
    product = layout.tp * layout.pp * layout.cp
    dp, rest = divmod(world, product)
    if rest or not dp:
        return
    wanted = dp / layout.dp_shard
    replicas = [r for r in range(1, dp + 1) if dp % r == 0] if layout.dp_replicate > 1 else [1]
    replicas.sort(key=lambda r: (r != wanted, r != layout.dp_replicate, abs(r - layout.dp_replicate)))
    sizes = [m for m in range(layout.micro_batch, 0, -1) if layout.global_batch % (m * dp) == 0]
    for replicate in replicas:
        for micro_batch in sizes:
            batch = {"micro_batch": micro_batch, "global_batch": layout.global_batch}
            with suppress(UserError):  # experts that don't fit into fewer shards
                yield Layout.parse({**layout.stated(), "devices": world, "dp_replicate": replicate, **batch})

"""`elastic` of `run.yaml`: the same run on another number of ranks than `layout.devices`.

    layout {devices: 8, tp: 2, micro_batch: 4, global_batch: 32}, of which 6 ranks are there

    tp, pp, cp, ep stay                       dp = 6 / (2 x 1 x 1) = 3
    the batch of a step stays                 micro_batch x 3 x accumulation = 32: none, so 6 ranks don't fit
    with 4 ranks                              dp 2, micro_batch 4, accumulation 4

Samples are numbered over the whole run, and a step takes the next `global_batch` of them whatever the layout
(train/batches.py): a run that goes on with other ranks sees each sample that is left, once, in the same order.

A replica is a set of ranks that hold all of the model between them. `in_process` leaves out whole ones:

    dp_replicate 2 x dp_shard 2      replicas (0, 1) and (2, 3); rank 3 dies: 0 and 1 go on, 2 waits until 3 is back
    zero_stage 0, dp 4               replicas (0), (1), (2), (3)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from pydantic import Field

from scalewright.spec.base import Spec
from scalewright.spec.errors import UserError
from scalewright.spec.grid import make_grid
from scalewright.spec.layout import Layout
from scalewright.spec.memory import is_sharded


class ElasticSpec(Spec):
    """Which other worlds a run takes, and when it goes back to all devices."""

    min: int | None = Field(None, ge=1)  # ranks; null: as few as tp, pp, cp and ep allow
    retry_s: float = Field(600.0, ge=0, le=1e7)  # with fewer ranks for so long, then all again at a save; 0: never
    replan: bool = False  # the planner lays the run out anew for another world
    leave_out_slow: bool = False  # a rank that is slow for long isn't started again
    in_process: bool = False  # whole replicas that are left go on in their processes, and take the dead one in again


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


def replicas(layout: Layout, *, islands: bool = False) -> tuple[tuple[int, ...], ...]:
    """The ranks of each replica, in order: the n-th of all of them hold the same parts. `islands`: each is one."""
    apart = islands or is_sharded(layout) or layout.ep > 1
    axis, grid = "dp_replicate" if apart else "batch", make_grid(layout)
    together: dict[int, list[int]] = {}
    for rank in range(layout.devices):
        together.setdefault(grid.coords(rank)[axis], []).append(rank)
    return tuple(tuple(ranks) for _, ranks in sorted(together.items()))


def on_replicas(layout: Layout, count: int, *, islands: bool = False) -> Layout | None:
    """The layout with so many replicas, each split as before, and the same batch; None where they can't share it."""
    size = len(replicas(layout, islands=islands)[0])
    kept = {"zero_stage": layout.zero_stage, "precision": layout.precision}
    for other in layouts_on(layout, count * size):
        whole = Layout.parse({**other.dump(), **kept})
        if len(replicas(whole, islands=islands)) == count:
            return whole
    return None


def seated(layout: Layout, whole: Sequence[int], *, islands: bool = False) -> tuple[Layout, tuple[int, ...]] | None:
    """The layout of as many of the `whole` replicas as can share the batch, the first ones, and which rank of `layout`
    each of its ranks is. None where none can."""
    sets = replicas(layout, islands=islands)
    for count in range(len(whole), 0, -1):
        if (other := on_replicas(layout, count, islands=islands)) is not None:
            places = zip(replicas(other, islands=islands), sorted(whole[:count]), strict=True)
            seats = {new: old for ranks, n in places for new, old in zip(ranks, sets[n], strict=True)}
            return other, tuple(seats[rank] for rank in range(other.devices))
    return None


def check_in_process(
    elastic: ElasticSpec | None, layout: Layout, *, islands: bool, overlap: int, engine: str, store: bool
) -> None:
    """Raises UserError for a run whose replicas can't go on in their processes."""
    if elastic is None or not elastic.in_process:
        return
    instead = "or leave in_process out: all ranks then start again from the newest save"
    if engine != "scalewright":
        raise UserError(
            f"{engine} can't change its ranks while it runs", "elastic.in_process", f"set engine, {instead}"
        )
    if store:
        problem = "checkpoint.store: a save on its way there needs the ranks that made it"
        raise UserError(problem, "elastic.in_process", f"use checkpoint.store: null, {instead}")
    if overlap:
        problem = f"diloco.overlap {overlap}: an outer gradient that is under way is lost with an island"
        raise UserError(problem, "elastic.in_process", f"use overlap 0, {instead}")
    if len(replicas(layout, islands=islands)) < 2:
        problem = f"no replica is left when a rank dies: the {layout.devices} ranks hold the model once between them"
        raise UserError(problem, "elastic.in_process", f"set layout.dp_replicate to 2 or more, {instead}")

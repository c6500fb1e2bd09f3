"""The smallest layout with the same axes, and the layout of the one device that it is compared with.

    pp 16 x dp_replicate 4 x dp_shard 8 x tp 8   ->   pp 2 x dp_replicate 2 x dp_shard 2 x tp 2 = 16 ranks

A fault of composition shows with two ranks along each axis as it does with many, since what is different is
which axes there are. Virtual stages, schedule, ZeRO stage, recomputation and offload stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.schedule import check_sizes, find_kind

MOST_MICRO_BATCHES = 4  # per step, unless the schedule needs more


def smallest(layout: Layout, layers: int) -> Layout:
    """The layout with every axis cut to two ranks; `layers` are the model's."""
    axes = {axis: min(2, getattr(layout, axis)) for axis in ("tp", "pp", "cp", "ep", "etp", "dp_replicate")}
    ranks, shard = axes["cp"] * axes["tp"], min(2, layout.dp_shard)
    while (shard * ranks) % (axes["ep"] * axes["etp"]):
        shard += 1
    data = {**layout.dump(), **axes, "devices": axes["pp"] * axes["dp_replicate"] * shard * ranks}
    stages = axes["pp"] * layout.virtual_stages
    if layout.stage_layers is not None:
        data["stage_layers"] = by_hand(layers, stages, layout.stage_layers)
    return with_micro_batches(data, layout.accumulation)


def by_hand(layers: int, stages: int, given: Sequence[int]) -> list[int]:
    """Layers of each stage, of different sizes (or none at an end) where the `given` ones are, and layers suffice."""
    even, ends = len(set(given)) == 1, [[0] * (given[end] == 0) for end in (0, -1)]
    if any(ends) and stages > sum(map(len, ends)):
        between = by_hand(layers, stages - sum(map(len, ends)), (1,))
        return [*ends[0], *between, *ends[1]]
    base, rest = divmod(layers, stages)
    sizes = [base + (1 if stage < rest else 0) for stage in range(stages)]
    if not even and len(set(sizes)) == 1 and stages > 1 and sizes[-1] > 1:
        sizes[0], sizes[-1] = sizes[0] + 1, sizes[-1] - 1
    return sizes


def with_micro_batches(data: Mapping[str, Any], wanted: int) -> Layout:
    """The layout with about as many micro-batches, few, but as many as its schedule needs."""
    dp = data["devices"] // (data["tp"] * data["pp"] * data["cp"])
    count = min(wanted, MOST_MICRO_BATCHES)
    while data["pp"] > 1 and not _legal(data, count):
        count += 1
    return Layout.parse({**data, "global_batch": data["micro_batch"] * dp * count}, "layout")


def _legal(data: Mapping[str, Any], count: int) -> bool:
    if count > 64:  # the sizes are wrong otherwise; the layout's own check reports how
        return True
    try:
        check_sizes(data["schedule"], data["pp"], data["virtual_stages"] or 1, count)
    except UserError:
        return False
    return True


def one_device(layout: Layout, micro_batch: int | None = None) -> Layout:
    """The control: one device, the same global batch and precision, and nothing else of the layout."""
    micro = micro_batch or layout.micro_batch
    return Layout(devices=1, micro_batch=micro, global_batch=layout.global_batch, precision=layout.precision)


def islands_alone(layout: Layout, micro_batch: int | None = None) -> Layout:
    """The control of a run with `diloco`: as many islands, each of them one device."""
    count, micro = layout.dp_replicate, micro_batch or layout.micro_batch
    while layout.global_batch % (micro * count):
        micro -= 1
    return Layout(
        devices=count, dp_replicate=count, zero_stage=0, micro_batch=micro, global_batch=layout.global_batch,
        precision=layout.precision,
    )  # fmt: skip


def without_idle_chunks(layout: Layout) -> Layout:
    """A layout whose schedule names a pipeline's although there is none, made plain."""
    if layout.pp == 1 and find_kind(layout.schedule).chunked:
        return layout.replace(schedule="1f1b", virtual_stages=1)
    return layout

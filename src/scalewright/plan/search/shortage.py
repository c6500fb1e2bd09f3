"""A model that fits nowhere: by how much, in the leanest layout, and what would mend it.

leanest: the smallest micro-batch, sharded over everything, all recomputed; then with all of it offloaded
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scalewright.plan.cost.memory import GIB
from scalewright.plan.request import OFFLOADS
from scalewright.plan.search.axes import Fixed, make_space
from scalewright.plan.search.pricer import HOST_BYTES, Pricer, make_pricer
from scalewright.plan.search.space import Rows, Space
from scalewright.spec.errors import UserError

MOST_TIMES = 4096  # the longest that the mend looks for devices


def too_large(pricer: Pricer, fixed: Fixed) -> UserError:
    """The error for a space in which nothing fits."""
    space = pricer.space
    short, of, keys = _leanest(pricer)
    model, device = space.template.model.name, space.template.chip.name
    shape = f"tp {keys['tp']}, pp {keys['pp']}, zero_stage {keys['zero_stage']}, "
    shape += f"recompute {_text(keys['recompute'])}"
    if keys["offload"] != "none":
        shape += f", offload {keys['offload']}"
    what = f"{model} fits on no layout of {space.template.devices} {device}: "
    what += f"the leanest ({shape}) lacks {short / GIB:.1f} GiB {of}".rstrip()
    hints = [f"use {enough} devices" for enough in [_devices(pricer, fixed)] if enough]
    hints += ["leave offload open"] if fixed.get("offload", ("all",)) == ("none",) else []
    hints += ["fix fewer axes"] if fixed else []
    hints += ["a smaller headroom"] if pricer.headroom else []
    return UserError(
        what, "memory", ", or ".join(hints) or "use devices with more memory, or a smaller model"
    )


def _text(recompute: object) -> str:
    """As a layout's line has it: `full`, `every 2`."""
    if not isinstance(recompute, dict):
        return str(recompute)
    return " ".join(str(part) for pair in recompute.items() for part in pair)


def _lean_rows(space: Space) -> Rows:
    """The candidates for the leanest: each mesh's smallest micro-batch."""
    core = space.core
    meshes = np.stack([core[key] for key in ("tp", "sp", "cp", "pp", "ep", "etp")])
    order = np.lexsort((core["micro_batch"], *meshes))
    _, first = np.unique(meshes[:, order], axis=1, return_index=True)
    rows = space.spread_shards(space.spread_pipes(space.bare(order[first])))
    stages = space.shard["zero_stage"]
    rows = space.spread_reruns(rows.take(stages[rows.shard] == stages.max()))
    if len(rows) > 200_000:
        rows = rows.take(np.linspace(0, len(rows) - 1, 200_000).astype(int))
    return space.spread_offloads(rows)


def _leanest(pricer: Pricer) -> tuple[float, str, dict[str, object]]:
    """Bytes that the leanest layout lacks, of what, and its keys."""
    rows = _lean_rows(pricer.space)
    held = pricer.memories(rows)
    here = pricer.over(held)
    table = pricer.space.table(rows)
    there = pricer.on_host(table, held, np.arange(len(rows))) - HOST_BYTES
    lacks = np.maximum(here, np.where(table.offload != OFFLOADS.index("none"), there, -np.inf))
    at = int(lacks.argmin())
    return float(lacks[at]), "of host memory" if there[at] > here[at] else "", pricer.space.keys(rows, at)


def _devices(pricer: Pricer, fixed: Fixed) -> int | None:
    """The fewest devices, of doublings, on which something fits at this batch or doublings of it."""
    space = pricer.space
    start, times = space.template, 2
    while times <= MOST_TIMES:
        larger = make_space(replace(start, devices=start.devices * times), space.global_batch, fixed)
        if larger.size:
            held = make_pricer(larger, pricer.objective, pricer.headroom, pricer.c)
            if _leanest(held)[0] <= 0:
                return start.devices * times
        times *= 2
    return None

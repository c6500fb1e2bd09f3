"""The error for a model that fits in no layout: the memory that the leanest layout lacks, and fixes.

leanest: the smallest micro-batch, highest ZeRO stage, every recomputation, every offload
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scalewright.plan.cost.memory import GIB
from scalewright.plan.request import OFFLOADS
from scalewright.plan.search.axes import Fixed, make_space
from scalewright.plan.search.compare import value_words
from scalewright.plan.search.pricer import HOST_BYTES, Pricer, make_pricer
from scalewright.plan.search.space import Rows, Space
from scalewright.spec.errors import UserError

MAX_FACTOR = 4096  # times the devices, up to which a fix is searched


def too_large(pricer: Pricer, fixed: Fixed) -> UserError:
    """The error for a space in which nothing fits."""
    space = pricer.space
    short, where, keys = _leanest(pricer)
    model, device = space.template.model.name, space.template.chip.name
    shape = f"tp {keys['tp']}, pp {keys['pp']}, zero_stage {keys['zero_stage']}, "
    shape += f"recompute {value_words(keys['recompute'])}"
    if keys["offload"] != "none":
        shape += f", offload {keys['offload']}"
    what = f"{model} fits on no layout of {space.template.devices} {device}: "
    what += f"the leanest ({shape}) lacks {short / GIB:.1f} GiB {where}".rstrip()
    enough = _enough_devices(pricer, fixed)
    hints = [f"use {enough} devices"] if enough else []
    hints += ["leave offload open"] if fixed.get("offload") == ("none",) else []
    hints += ["fix fewer axes"] if fixed else []
    hints += ["a smaller headroom"] if pricer.headroom else []
    hints = hints or ["use devices with more memory", "a smaller model"]
    return UserError(what, "memory", ", or ".join(hints))


def _lean_rows(space: Space) -> Rows:
    """The candidates for the leanest layout: each mesh's smallest micro-batch."""
    core = space.core
    meshes = np.stack([core[key] for key in ("tp", "sp", "cp", "pp", "ep", "etp")])
    order = np.lexsort((core["micro_batch"], *meshes))
    _, first = np.unique(meshes[:, order], axis=1, return_index=True)
    rows = space.spread_shards(space.spread_pipes(space.bare(order[first])))
    stages = space.shard["zero_stage"]
    rows = space.spread_recomputes(rows.take(stages[rows.shard] == stages.max()))
    if len(rows) > 200_000:
        rows = rows.take(np.linspace(0, len(rows) - 1, 200_000).astype(int))
    return space.spread_offloads(rows)


def _leanest(pricer: Pricer) -> tuple[float, str, dict[str, object]]:
    """Bytes that the leanest layout lacks, "of host memory" if it lacks them there, and its keys."""
    rows = _lean_rows(pricer.space)
    usage = pricer.memory(rows)
    on_device = pricer.over(usage)
    table = pricer.space.table(rows)
    on_host = pricer.on_host(table, usage, np.arange(len(rows))) - HOST_BYTES
    lacks = np.maximum(on_device, np.where(table.offload != OFFLOADS.index("none"), on_host, -np.inf))
    i = int(lacks.argmin())
    return float(lacks[i]), "of host memory" if on_host[i] > on_device[i] else "", pricer.space.keys(rows, i)


def _enough_devices(pricer: Pricer, fixed: Fixed) -> int | None:
    """The fewest devices, in doublings of the run's, on which a layout fits at the same batch."""
    space, factor = pricer.space, 2
    while factor <= MAX_FACTOR:
        devices = space.template.devices * factor
        larger = make_space(replace(space.template, devices=devices), space.global_batch, fixed)
        if larger.size:
            larger_pricer = make_pricer(larger, pricer.objective, pricer.headroom, pricer.c)
            if _leanest(larger_pricer)[0] <= 0:
                return devices
        factor *= 2
    return None

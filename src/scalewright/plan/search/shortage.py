"""The layouts that a plan shows; those beyond its trainer; and the error where none fits.

choose          of each kind the simplest layout that is at most a margin slower than the kind's fastest:
                fewer axes, then fewer techniques, then faster; at most as many of either as the fastest
                first of all one whose unusual features are worth it (unusual.py)
    axes        tp, pp, cp, ep, data parallelism, its replicas (HSDP): each that is above 1
    techniques  interleaving 1, a split backward or both directions 2, recomputation 1 (every k-th block 2),
                offload 2, etp 1
out_of_reach    fastest layout of the trainer --ceiling--> search of all layouts --> faster ones, and what it lacks
too_large       the memory that the leanest layout lacks, and fixes; leanest: the smallest micro-batch, highest
                ZeRO stage, every recomputation, every offload

Predictions of a step are uncertain by some 10%: a gain of 1% from two more techniques may not be real.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from scalewright.plan.cost.columns import Columns
from scalewright.plan.cost.memory import GIB, host_bytes, memory
from scalewright.plan.request import CP_KINDS, OFFLOADS, SCHEDULES
from scalewright.plan.search.axes import Fixed, make_space
from scalewright.plan.search.branch_and_bound import Finder, Stop, Wanted
from scalewright.plan.search.choices import Beyond, ChoiceMaker
from scalewright.plan.search.compare import value_words
from scalewright.plan.search.pricer import Priced, Pricer, make_pricer
from scalewright.plan.search.space import MODULES, Rows, Space
from scalewright.plan.search.unusual import EACH, MOST, handicap
from scalewright.spec.capabilities import Capabilities
from scalewright.spec.common.formatting import gib
from scalewright.spec.errors import UserError
from scalewright.spec.schedules.kinds import KINDS

MAX_DOUBLINGS = 12  # of the devices, up to which a fix is searched
TOP = 3  # layouts beyond the trainer that are listed
MIN_GAIN = 0.001  # of speed: smaller gains aren't reported
# Axes of a core, and the size that each depends on
CORE_SIZES = (*((size, size) for size in ("tp", "pp", "cp", "ep", "etp")), ("sp", "tp"), ("cp_kind", "cp"))


def too_large(pricer: Pricer, fixed: Fixed) -> UserError:
    """The error for a space in which nothing fits."""
    space = pricer.space
    short, where, keys = _leanest(pricer)
    model, device = space.template.model.name, space.template.chip.name
    shown = ("tp", "pp", "zero_stage", "recompute", *(["offload"] if keys["offload"] != "none" else []))
    shape = ", ".join(f"{key} {value_words(keys[key])}" for key in shown)
    what = f"{model} fits on no layout of {space.template.devices} {device}: "
    what += f"the leanest ({shape}) lacks {gib(short / GIB)} {where}".rstrip()
    enough = _enough_devices(pricer, fixed)
    hints = {f"use {enough} devices": enough, "leave offload open": fixed.get("offload") == ("none",)}
    hints |= {"fix fewer axes": bool(fixed), "a smaller headroom": bool(pricer.headroom)}
    helps = [hint for hint, may_help in hints.items() if may_help]
    return UserError(what, "memory", ", or ".join(helps or ["use devices with more memory", "a smaller model"]))


def _lean_rows(space: Space) -> Rows:
    """The candidates for the leanest layout: each mesh's smallest micro-batch, with all offloads."""
    core = space.core
    meshes = np.stack([core[key] for key in ("tp", "sp", "cp", "pp", "ep", "etp")])
    order = np.lexsort((core["micro_batch"], *meshes))
    _, first = np.unique(meshes[:, order], axis=1, return_index=True)
    rows = space.spread_pipes(space.bare(order[first]))
    lean = replace(rows, shard=space.most_sharded[rows.core], recompute=space.leanest[rows.pipe])
    return space.spread_offloads(lean)


def _leanest(pricer: Pricer) -> tuple[float, str, dict[str, object]]:
    """Bytes that the leanest layout lacks, "of host memory" if it lacks them there, and its keys."""
    rows = _lean_rows(pricer.space)
    at = Columns(pricer.space.table(rows), pricer.facts, pricer.c)
    usage = memory(at)
    on_device = pricer.over(usage)
    needed = host_bytes(at, usage)
    on_host = np.where(needed > 0, needed - at.chip.host_bytes, -np.inf)
    lacks = np.maximum(on_device, on_host)
    i = int(lacks.argmin())
    return float(lacks[i]), "of host memory" if on_host[i] > on_device[i] else "", pricer.space.keys(rows, i)


def _enough_devices(pricer: Pricer, fixed: Fixed) -> int | None:
    """The fewest devices, in doublings of the run's, on which a layout fits at the same batch."""
    space = pricer.space
    for power in range(1, MAX_DOUBLINGS + 1):
        devices = space.template.devices << power
        asked = replace(space.template, devices=devices)
        larger = make_space(asked, space.global_batch, {"micro_batch": (1,), **fixed})
        if larger.size and _leanest(make_pricer(larger, pricer.objective, pricer.headroom))[0] <= 0:
            return devices
    return None


def out_of_reach(
    maker: ChoiceMaker, finder: Finder, fixed: Fixed, trainer: Capabilities, fastest: float, stop: Stop | None
) -> list[Beyond]:
    """The layouts faster than `fastest` (the score of the trainer's best) that the trainer can't run."""
    space = make_space(maker.template, finder.space.global_batch, fixed)
    pricer = make_pricer(space, finder.pricer.objective, finder.pricer.headroom, finder.pricer)
    wide = Finder(pricer, TOP, window=1.0, ceiling=fastest * (1 - MIN_GAIN), wanted=_lacking(space, trainer))
    wide.run(None, stop)
    if not len(fitting := wide.fitting):
        return []
    rows, _ = choose(wide, fitting, TOP, maker.goal.margin)
    choices = [(choice, trainer.missing(choice.keys)) for choice in replace(maker, space=space).choices(rows)]
    faster = [Beyond(choice, needs, 100 * (fastest / choice.score - 1)) for choice, needs in choices if needs]
    return sorted(faster, key=lambda layout: -layout.gain_pct)


def _lacking(space: Space, trainer: Capabilities) -> Wanted:
    """Masks of the rows that may have something that the trainer lacks, before and after they are sharded."""

    def runs(part: Mapping[str, np.ndarray], axis: str, words: Sequence[Any] = ()) -> np.ndarray:
        has = [trainer.allows(axis, words[value] if words else value) for value in part[axis].tolist()]
        return np.array(has, dtype=bool)

    core, pipe, shard = space.core, space.pipe, space.shard
    named = {"sp": (False, True), "cp_kind": CP_KINDS}
    cores = np.all([runs(core, axis, named.get(axis, ())) | (core[size] == 1) for axis, size in CORE_SIZES], axis=0)
    pipes = runs(pipe, "schedule", SCHEDULES) & runs(pipe, "virtual_stages")
    shards = runs(shard, "zero_stage") & runs(shard, "dp_replicate")
    offloads = np.array([trainer.allows("offload", OFFLOADS[number]) for number in space.offloads])
    recomputes = all(trainer.allows("recompute", value) for _, _, value in space.recomputes)
    whole = recomputes and not trainer.never and bool(shards.all() and offloads.all())

    def wanted(rows: Rows, sharded: bool) -> np.ndarray:
        lacks: np.ndarray = ~cores[rows.core] | (~pipes[rows.pipe] & (core["pp"][rows.core] > 1))
        if not sharded:
            return lacks | (not whole)
        lacks |= ~shards[rows.shard] | ~offloads[rows.offload] | space.forbidden(rows, trainer.never)
        return lacks | (not recomputes)

    return wanted


def complexity(space: Space, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """The number of axes and techniques of every row, counted as above."""
    t = space.table(rows)
    axes = np.sum([size > 1 for size in (t.tp, t.pp, t.cp, t.ep, t.dp, t.dp_replicate)], axis=0)
    schedule = np.array([kind.complexity for kind in KINDS.values()])
    values = [value for _, _, value in space.recomputes]
    recompute = np.array(
        [2 if isinstance(value, dict) and MODULES not in value else value != "none" for value in values]
    )
    offload = np.array([2 * (OFFLOADS[kind] != "none") for kind in space.offloads])
    techniques = np.where(t.pp > 1, schedule[t.schedule], 0)
    techniques = techniques + recompute[rows.recompute] + offload[rows.offload] + (t.etp > 1)
    return np.asarray(axes), np.asarray(techniques)


def choose(finder: Finder, fitting: Priced, top: int, margin: float) -> tuple[Priced, Priced]:
    """The layouts to show, and the fastest of all.

    First the simplest within the margin of the fastest; then that of every other kind (tp, pp, ep, sharding), by score.
    """
    fitting = fitting.take(finder.ranked(fitting))
    best = _first(finder, fitting, margin)
    kinds = finder.kinds(fitting.rows)
    _, first = np.unique(kinds, return_index=True)
    others = [np.flatnonzero(kinds == kinds[i]) for i in np.sort(first) if kinds[i] != kinds[best]]
    if margin == 0:  # each kind's simplest is its fastest, and the kinds are sorted by these already
        others = others[: top - 1]
    rest = [_simplest(finder, fitting, members, margin) for members in others]
    rest.sort(key=lambda i: (fitting.score[i], i))
    return fitting.take(np.array([best, *rest[: top - 1]])), fitting.take(np.array([0]))


def _first(finder: Finder, ranked: Priced, margin: float) -> int:
    """The simplest of the rows that are within the margin of the fastest, what is unusual counted as slower."""
    if margin == 0:
        return 0
    near = np.flatnonzero(ranked.score <= ranked.score[0] * (1 + margin) * (1 + EACH) ** MOST * (1 + 1e-9))
    counted = replace(ranked.take(near), score=ranked.score[near] * handicap(finder.space, ranked.rows.take(near)))
    order = np.argsort(counted.score, kind="stable")
    return int(near[order[_simplest(finder, counted.take(order), np.arange(len(near)), margin)]])


def _simplest(finder: Finder, ranked: Priced, members: np.ndarray, margin: float) -> int:
    """The simplest of the rows `members` (fastest first) that are within the margin of their first."""
    near = members[ranked.score[members] <= ranked.score[members[0]] * (1 + margin) * (1 + 1e-9)]
    if margin == 0:
        return int(near[0])
    axes, techniques = complexity(finder.space, ranked.take(near).rows)
    worse = (axes > axes[0]) | (techniques > techniques[0])
    return int(near[np.lexsort((np.arange(len(near)), techniques, axes, worse))[0]])

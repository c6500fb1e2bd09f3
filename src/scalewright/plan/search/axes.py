"""The legal layouts of a run as a `Space`: every legal value of every axis, combined.

    tp   divides heads and matrices        pp, stages   at most the layers        ZeRO stage, replicas of dp
    cp   divides the sequence              ep, etp      divide the experts        micro-batch of a rank's rows

All legal values are searched up to the limits below, which no real run exceeds; a fixed value (`fixed`) is
searched wherever it is legal. spec/layout_check.py decides what is legal, once for each value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from scalewright.plan.cost.table import stage_blocks
from scalewright.plan.cost.units import Unit, unit_of
from scalewright.plan.request import CP_KINDS, OFFLOADS, SCHEDULES, Request, recompute_of
from scalewright.plan.search.space import MODULES, Space
from scalewright.plan.switches import NO_SWITCHES
from scalewright.spec import layout_check
from scalewright.spec.capabilities import Capabilities
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.schedule import KINDS, check_sizes

MIN_CP_TOKENS = 1024  # of a sequence on a cp rank: below, no compute overlaps with the ring's messages
MAX_MICRO_TOKENS = 65536  # of a micro-batch on a rank: above, kernels gain nothing and activations don't fit
MAX_TP_NODES = 2  # spanned by a tensor-parallel group
MAX_CHUNKS = 6  # virtual stages, where they don't divide the layers
SELECTIVE = Layout(recompute="selective")
EVERY_NTH = (2, 3, 4)  # recompute every n-th block
SYNCHRONOUS = tuple(name for name, kind in KINDS.items() if kind.flushes)  # others train on stale weights
_AXES = "tp sp pp virtual_stages schedule cp cp_kind ep etp dp dp_replicate zero_stage"
AXES = (*_AXES.split(), "micro_batch", "recompute", "offload")
Fixed = Mapping[str, tuple[Any, ...]]


class AxisValues(dict[str, tuple[Any, ...]]):
    """Values of each axis: the fixed ones, else the default ones that the trainer supports."""

    def __init__(self, fixed: Fixed, trainer: Capabilities) -> None:
        super().__init__(fixed)
        self.trainer = trainer

    def get(self, axis: str, default: Any = ()) -> Any:
        """The values of an axis: fixed, or those of `default` that the trainer supports."""
        if axis in self:
            return self[axis]
        return tuple(value for value in default if self.trainer.allows(axis, value))

    def unfiltered(self, axis: str, default: tuple[Any, ...]) -> tuple[Any, ...]:
        """The values of an axis that has no effect: the schedule of one stage, the kind of cp 1."""
        return super().get(axis, default)


UNTIMED: Fixed = {"cp": (1,), "ep": (1,), "etp": (1,), "offload": ("none",)}  # axes that no probe times


@lru_cache(maxsize=1024)
def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def is_legal(model: ModelSpec, seq_len: int, **keys: Any) -> bool:
    """Whether the spec allows a layout with these keys."""
    try:
        return layout_check.is_legal(Layout(**keys), model, seq_len)
    except ValueError:
        return False


def make_space(template: Request, global_batch: int, fixed: Fixed, trainer: Capabilities | None = None) -> Space:
    """The legal layouts of a run, perhaps none: axes in `fixed` have those values only, `trainer` limits the others."""
    if template.chip.timings is not None:  # processes of one machine, priced from its own timings
        fixed = {**UNTIMED, **fixed}
    axes, asked = AxisValues(fixed, trainer or Capabilities("")), template
    if "recompute" not in fixed:
        template = with_modules(template, axes.trainer)
    pipe, pipes = _pipes(template, axes)
    cores, units = _cores(template, global_batch, axes, set(pipes))
    shard, shards = _shards(cores, axes)
    offloads = tuple(OFFLOADS.index(o) for o in axes.get("offload", OFFLOADS))
    recomputes = axes.get("recompute", ("none", "selective", "full", *({"every": n} for n in EVERY_NTH)))
    given = [Layout.parse({"recompute": value}) for value in recomputes]
    kinds = [recompute_of(layout, asked.framework, asked.switches) for layout in given]
    entries = tuple((*kind, value) for kind, value in zip(kinds, recomputes, strict=True))
    if template is not asked:
        entries = (*entries, ("modules", 1.0, {MODULES: sorted(template.switches.recompute_modules)}))
    never = axes.trainer.never
    return Space(template, global_batch, units, cores, pipe, pipes, shard, shards, entries, offloads, never)


def with_modules(template: Request, trainer: Capabilities) -> Request:
    """The run with the cheap modules that its trainer recomputes by themselves, those that the model has; or as it is.

    A kind of recomputation beside the trainer's selective one; a run that names its modules has these alone.
    """
    if template.switches.recompute_modules or recompute_of(SELECTIVE, template.framework, NO_SWITCHES)[0] == "modules":
        return template
    model = template.model
    has = {"layernorm": True, "moe_act": model.moe is not None, "mla_up_proj": bool(model.mla)}
    words = frozenset(word for word in trainer.modules if has[word])
    return replace(template, switches=replace(template.switches, recompute_modules=words)) if words else template


def tensor_sizes(template: Request) -> tuple[int, ...]:
    """Every legal tp of the model on divisors of the devices."""
    model, seq_len = template.model, template.seq_len
    sizes = (t for t in divisors(template.devices) if t <= model.num_attention_heads)
    return tuple(t for t in sizes if is_legal(model, seq_len, devices=t, tp=t, sp=False))


def _cores(
    template: Request, global_batch: int, axes: AxisValues, depths: set[int]
) -> tuple[dict[str, np.ndarray], tuple[Unit, ...]]:
    """The cores as columns, and the units that their `unit` column refers to."""
    unit, units = unit_of(template), list[Unit]()
    names = ("tp", "sp", "cp", "cp_kind", "pp", "ep", "etp", "dp", "micro_batch", "accumulation", "unit")
    rows: list[tuple[int, ...]] = []
    unit_numbers: dict[tuple[Any, ...], int] = {}
    for tp, sp, cp, kind in _meshes(template, axes):
        for pp in sorted(depths):
            dp = template.devices // (tp * cp * pp)
            if template.devices % (tp * cp * pp) or global_batch % dp or dp not in axes.get("dp", (dp,)):
                continue
            micro_batches = _micro_batches(template, global_batch // dp, cp, axes)
            for ep, etp in _experts(template, tp, cp, dp, axes):
                for size in micro_batches:
                    key = (size, tp, sp, cp, ep, etp)
                    if key not in unit_numbers:
                        unit_numbers[key] = len(units)
                        sizes = replace(unit.sizes, batch=size, tp=tp, sp=sp, cp=cp, ep=ep, etp=etp)
                        units.append(replace(unit, sizes=sizes))
                    count, number = global_batch // dp // size, unit_numbers[key]
                    rows.append((tp, sp, cp, CP_KINDS.index(kind), pp, ep, etp, dp, size, count, number))
    columns = np.array(rows, dtype=np.int64).reshape(len(rows), len(names))
    return {name: np.ascontiguousarray(columns[:, i]) for i, name in enumerate(names)}, tuple(units)


def _meshes(template: Request, axes: AxisValues) -> Iterator[tuple[int, bool, int, str]]:
    """Legal sizes that split operators and the sequence: (tp, sp, cp, cp_kind)."""
    model, seq_len, chip = template.model, template.seq_len, template.chip
    max_tp = MAX_TP_NODES * max(chip.node, chip.domain)
    max_cp = max(1, seq_len // MIN_CP_TOKENS)
    fixed = [value for value in axes.get("recompute", ()) if isinstance(value, dict) and "budget" in value]
    budgets: list[dict[str, object]] = [{}]  # within which blocks can keep
    budgets += [{"recompute": value} for value in fixed]
    for tp in axes.get("tp", tuple(t for t in tensor_sizes(template) if t <= max_tp)):
        default = (False,) if tp == 1 else (True,) if model.moe else (True, False)
        for sp in (s for s in axes.get("sp", default) if tp > 1 or not s):
            for cp in axes.get("cp", tuple(c for c in divisors(template.devices) if c <= max_cp)):
                kinds = axes.get("cp_kind", CP_KINDS) if cp > 1 else axes.unfiltered("cp_kind", CP_KINDS[:1])
                for kind in kinds:
                    keys = {"devices": tp * cp, "tp": tp, "sp": sp, "cp": cp, "cp_kind": kind}
                    if all(is_legal(model, seq_len, **keys, **budget) for budget in budgets):
                        yield tp, sp, cp, kind


def _micro_batches(template: Request, samples: int, cp: int, axes: AxisValues) -> list[int]:
    """Micro-batch sizes that divide a data-parallel rank's samples."""
    largest = samples if "micro_batch" in axes else max(1, MAX_MICRO_TOKENS * cp // template.seq_len)
    return [size for size in axes.get("micro_batch", divisors(samples)) if samples % size == 0 and size <= largest]


def _experts(template: Request, tp: int, cp: int, dp: int, axes: AxisValues) -> Iterator[tuple[int, int]]:
    """Sizes of the expert mesh: (ep, etp); etp is 1 or tp where it isn't fixed."""
    moe = template.model.moe
    if moe is None:
        yield 1, 1
        return
    for ep in axes.get("ep", divisors(moe.num_experts)):
        for etp in axes.get("etp", tuple(sorted({1, tp}))):
            divides = moe.num_experts % ep == 0 and moe.moe_intermediate_size % etp == 0
            if divides and (dp * cp * tp) % (ep * etp) == 0:
                yield ep, etp


def _pipes(template: Request, axes: AxisValues) -> tuple[dict[str, np.ndarray], dict[int, tuple[int, int]]]:
    """Every schedule of every pp as columns, and (first, count) of each pp's rows."""
    layers = template.model.num_hidden_layers
    rows: list[tuple[Any, ...]] = []
    places: dict[int, tuple[int, int]] = {}
    for pp in axes.get("pp", tuple(p for p in divisors(template.devices) if p <= layers)):
        first = len(rows)
        for kind, chunks in _schedules(pp, layers, axes):
            stages = stage_blocks(replace(template, pp=pp, virtual_stages=chunks, schedule=kind))
            record = KINDS[kind]
            least, even = 2 * pp if record.paired else 1, record.both_ways
            split, blocks = pp > 1 and record.splits, -(-layers // record.parts(pp, chunks))
            rows.append((SCHEDULES.index(kind), chunks, stages, least, even, split, blocks))
        if len(rows) > first:
            places[pp] = (first, len(rows) - first)
    names = ("schedule", "virtual_stages", "stages", "min_accumulation", "even", "split", "blocks")
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    return {name: np.array(column) for name, column in zip(names, columns, strict=True)}, places


def _schedules(pp: int, layers: int, axes: AxisValues) -> Iterator[tuple[str, int]]:
    if pp == 1:
        if "1f1b" in axes.unfiltered("schedule", ("1f1b",)) and 1 in axes.get("virtual_stages", (1,)):
            yield "1f1b", 1
        return
    max_chunks = layers // pp
    default = tuple(v for v in range(1, max_chunks + 1) if v <= MAX_CHUNKS or layers % (pp * v) == 0)
    for kind in axes.get("schedule", SYNCHRONOUS):
        for chunks in axes.get("virtual_stages", (2,) if KINDS[kind].both_ways else default):
            if KINDS[kind].chunked and not KINDS[kind].both_ways and chunks > max_chunks:
                continue
            try:
                check_sizes(kind, pp, chunks, 2 * pp)
            except UserError:
                continue
            yield kind, chunks


def _shards(
    cores: dict[str, np.ndarray], axes: AxisValues
) -> tuple[dict[str, np.ndarray], dict[tuple[int, int], tuple[int, int]]]:
    """Every sharding of every (dp, cp) as columns, lowest ZeRO stage first; (first, count) of each group."""
    rows: list[tuple[int, int]] = []
    places: dict[tuple[int, int], tuple[int, int]] = {}
    for dp, cp in sorted(set(zip(cores["dp"].tolist(), cores["cp"].tolist(), strict=True))):
        first = len(rows)
        rows += _shardings(dp, cp, axes)
        places[dp, cp] = (first, len(rows) - first)
    columns = np.array(rows, dtype=np.int64).reshape(len(rows), 2)
    return {"zero_stage": columns[:, 0], "dp_replicate": columns[:, 1]}, places


def _shardings(dp: int, cp: int, axes: AxisValues) -> list[tuple[int, int]]:
    """(ZeRO stage, replicas) of a data-parallel group: replicas matter only where parameters are sharded."""
    pairs = []
    for zero in axes.get("zero_stage", (0, 1, 2, 3) if dp * cp > 1 else (0, 3)):
        if "dp_replicate" in axes:
            pairs += [(zero, r) for r in axes["dp_replicate"] if dp % r == 0]
        else:
            replicas = axes.get("dp_replicate", divisors(dp)) if zero == 3 else (1,)
            pairs += [(zero, r) for r in replicas if r == 1 or dp * cp // r > 1]
    return pairs

"""Which layouts there are: every legal value of every axis, put together as a `Space`.

    tp   divides heads and matrices        pp, stages   no more than layers       ZeRO stage, replicas of dp
    cp   divides the sequence              ep, etp      divide the experts        micro-batch of a rank's rows

Every legal value is in, but for the edges below, where no run goes; a value that is asked for (`fixed`) is in
wherever it is legal. What is legal says spec/layout_check.py, once for each value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from scalewright.plan.capabilities import Capabilities
from scalewright.plan.cost.table import Unit, stage_blocks, unit_of
from scalewright.plan.request import CP_KINDS, OFFLOADS, SCHEDULES, Request
from scalewright.plan.search.space import Space
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.layout_check import check_layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.schedule import KINDS, check_sizes

LEAST_TOKENS = 1024  # of a sequence on a cp rank: below, the ring's messages have nothing to hide behind
MOST_TOKENS = 65536  # of a micro-batch on a rank: above, kernels gain nothing and activations don't fit
MOST_NODES = 2  # that a tensor-parallel group spans
MOST_CHUNKS = 6  # virtual stages, where they don't divide the layers
EVERY = (2, 3, 4)  # recompute every n-th block
SYNCHRONOUS = tuple(name for name, kind in KINDS.items() if kind.flushes)  # others train on stale weights
_AXES = "tp sp pp virtual_stages schedule cp cp_kind ep etp dp dp_replicate zero_stage"
AXES = (*_AXES.split(), "micro_batch", "recompute", "offload")
Fixed = Mapping[str, tuple[Any, ...]]


class Offered(dict[str, tuple[Any, ...]]):
    """The fixed axes; of every other one, the usual values that the trainer has."""

    def __init__(self, fixed: Fixed, trainer: Capabilities) -> None:
        super().__init__(fixed)
        self.trainer = trainer

    def get(self, axis: str, usual: Any = ()) -> Any:
        """The values of an axis, of these usual ones."""
        if axis in self:
            return self[axis]
        return tuple(value for value in usual if self.trainer.allows(axis, value))

    def fixed(self, axis: str, usual: tuple[Any, ...]) -> tuple[Any, ...]:
        """The values of an axis where its word says nothing: the schedule of one stage, the kind of cp 1."""
        return super().get(axis, usual)


TIMED: Fixed = {"cp": (1,), "ep": (1,), "etp": (1,), "offload": ("none",)}  # axes that no probe has timed


@lru_cache(maxsize=1024)
def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def legal(model: ModelSpec, seq_len: int, **keys: Any) -> bool:
    """Whether the spec allows a layout with these keys."""
    try:
        check_layout(Layout(**keys), model, seq_len)
    except ValueError:
        return False
    return True


def make_space(
    template: Request, global_batch: int, fixed: Fixed, trainer: Capabilities | None = None
) -> Space:
    """The space of a run; axes in `fixed` have only those values. Empty when no layout is legal.

    `trainer`: what is offered where nothing is fixed (null: everything).
    """
    if template.chip.timings is not None:  # processes of one machine, priced by what was timed there
        fixed = {**TIMED, **fixed}
    offered = Offered(fixed, trainer or Capabilities(""))
    pipe, pipes = _pipes(template, offered)
    cores, units = _cores(template, global_batch, offered, set(pipes))
    shard, shards = _shards(cores, offered)
    offloads = tuple(OFFLOADS.index(o) for o in offered.get("offload", OFFLOADS))
    reruns = tuple(rerun(template, value) for value in offered.get("recompute", _usual_reruns()))
    never = offered.trainer.never
    return Space(template, global_batch, units, cores, pipe, pipes, shard, shards, reruns, offloads, never)


def _usual_reruns() -> tuple[Any, ...]:
    return ("none", "selective", "full", *({"every": n} for n in EVERY))


def rerun(template: Request, value: Any) -> tuple[str, float, Any]:
    """A layout's `recompute` as the table has it: kind, share of the blocks, and itself."""
    if isinstance(value, dict):
        return (
            ("share", 1.0 / value["every"], value) if "every" in value else ("budget", value["budget"], value)
        )
    if value == "selective" and template.framework.name != "scalewright":
        return template.framework.selective, 1.0, value
    return value, 1.0, value


def tensor_sizes(template: Request) -> tuple[int, ...]:
    """Every tp that heads and matrices allow."""
    model, seq_len = template.model, template.seq_len
    sizes = divisors(template.devices)
    some = (t for t in sizes if t <= model.num_attention_heads)
    return tuple(t for t in some if legal(model, seq_len, devices=t, tp=t, sp=False))


def _cores(
    template: Request, global_batch: int, fixed: Offered, depths: set[int]
) -> tuple[dict[str, np.ndarray], tuple[Unit, ...]]:
    """The cores as columns, and the units that they belong to."""
    units: dict[Unit, int] = {}
    names = ("tp", "sp", "cp", "cp_kind", "pp", "ep", "etp", "dp", "micro_batch", "accumulation", "unit")
    rows: list[tuple[int, ...]] = []
    unit_at: dict[tuple[Any, ...], int] = {}
    for tp, sp, cp, kind in _meshes(template, fixed):
        for pp in sorted(depths):
            dp = template.devices // (tp * cp * pp)
            if template.devices % (tp * cp * pp) or global_batch % dp or dp not in fixed.get("dp", (dp,)):
                continue
            micros = list(_micro_batches(template, global_batch // dp, cp, fixed))
            for ep, etp in _experts(template, tp, cp, dp, fixed):
                for micro in micros:
                    key = (micro, tp, sp, cp, ep, etp)
                    if key not in unit_at:
                        one = replace(template, tp=tp, sp=sp, cp=cp, ep=ep, etp=etp, micro_batch=micro)
                        unit_at[key] = units.setdefault(unit_of(one), len(units))
                    of = global_batch // dp // micro
                    rows.append((tp, sp, cp, CP_KINDS.index(kind), pp, ep, etp, dp, micro, of, unit_at[key]))
    columns = np.array(rows, dtype=np.int64).reshape(len(rows), len(names))
    return {name: np.ascontiguousarray(columns[:, at]) for at, name in enumerate(names)}, tuple(units)


def _meshes(template: Request, fixed: Offered) -> Iterator[tuple[int, bool, int, str]]:
    """Sizes that cut operators and sequence: (tp, sp, cp, kind)."""
    model, seq_len, chip = template.model, template.seq_len, template.chip
    widest = MOST_NODES * max(chip.node, chip.domain)
    for tp in fixed.get("tp", tuple(t for t in tensor_sizes(template) if t <= widest)):
        usual = (True,) if model.moe else (True, False)
        for sp in (s for s in fixed.get("sp", usual if tp > 1 else (False,)) if tp > 1 or not s):
            longest = max(1, seq_len // LEAST_TOKENS)
            some = tuple(c for c in divisors(template.devices) if c <= longest)
            for cp in fixed.get("cp", some):
                kinds = fixed.get("cp_kind", CP_KINDS) if cp > 1 else fixed.fixed("cp_kind", CP_KINDS[:1])
                for kind in kinds:
                    keys = {"devices": tp * cp, "tp": tp, "sp": sp, "cp": cp, "cp_kind": kind}
                    if legal(model, seq_len, **keys) and _has_budgets(template, keys, fixed):
                        yield tp, sp, cp, kind


def _has_budgets(template: Request, keys: dict[str, Any], fixed: Offered) -> bool:
    """Whether blocks of these sizes can keep within the budgets that are asked for."""
    budgets = [value for value in fixed.get("recompute", ()) if isinstance(value, dict) and "budget" in value]
    return all(legal(template.model, template.seq_len, **keys, recompute=value) for value in budgets)


def _micro_batches(template: Request, samples: int, cp: int, fixed: Offered) -> Iterator[int]:
    """Micro-batches that divide a data-parallel rank's samples."""
    most = max(1, MOST_TOKENS * cp // template.seq_len)
    for micro in fixed.get("micro_batch", divisors(samples)):
        if samples % micro == 0 and (micro <= most or "micro_batch" in fixed):
            yield micro


def _experts(template: Request, tp: int, cp: int, dp: int, fixed: Offered) -> Iterator[tuple[int, int]]:
    """Sizes of the expert mesh: ep, and inside an expert all of tp or nothing."""
    moe = template.model.moe
    if moe is None:
        yield 1, 1
        return
    for ep in fixed.get("ep", divisors(moe.num_experts)):
        for etp in fixed.get("etp", tuple(sorted({1, tp}))):
            whole = moe.num_experts % ep == 0 and moe.moe_intermediate_size % etp == 0
            if whole and (dp * cp * tp) % (ep * etp) == 0:
                yield ep, etp


def _pipes(template: Request, fixed: Offered) -> tuple[dict[str, np.ndarray], dict[int, tuple[int, int]]]:
    """Every schedule of every depth."""
    layers = template.model.num_hidden_layers
    rows: list[tuple[Any, ...]] = []
    places: dict[int, tuple[int, int]] = {}
    for pp in fixed.get("pp", tuple(p for p in divisors(template.devices) if p <= layers)):
        first = len(rows)
        for kind, chunks in _schedules(pp, layers, fixed):
            blocks = stage_blocks(replace(template, pp=pp, virtual_stages=chunks, schedule=kind))
            record = KINDS[kind]
            least, even = 2 * pp if record.paired else 1, record.both_ways
            split = pp > 1 and record.splits
            deep = -(-layers // record.parts(pp, chunks))
            rows.append((SCHEDULES.index(kind), chunks, blocks, least, even, split, deep))
        if len(rows) > first:
            places[pp] = (first, len(rows) - first)
    names = ("schedule", "virtual_stages", "stages", "least", "even", "split", "blocks")
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    return {name: np.array(column) for name, column in zip(names, columns, strict=True)}, places


def _schedules(pp: int, layers: int, fixed: Offered) -> Iterator[tuple[str, int]]:
    """Kinds and virtual stages that a depth allows."""
    if pp == 1:
        if "1f1b" in fixed.fixed("schedule", ("1f1b",)) and 1 in fixed.get("virtual_stages", (1,)):
            yield "1f1b", 1
        return
    most = layers // pp
    usual = tuple(v for v in range(1, most + 1) if v <= MOST_CHUNKS or layers % (pp * v) == 0)
    for kind in fixed.get("schedule", SYNCHRONOUS):
        for chunks in fixed.get("virtual_stages", (2,) if KINDS[kind].both_ways else usual):
            if KINDS[kind].chunked and not KINDS[kind].both_ways and chunks > most:
                continue
            try:
                check_sizes(kind, pp, chunks, 2 * pp)
            except UserError:
                continue
            yield kind, chunks


def _shards(
    cores: dict[str, np.ndarray], fixed: Offered
) -> tuple[dict[str, np.ndarray], dict[tuple[int, int], tuple[int, int]]]:
    """Every way to shard over every data-parallel group, plainest first."""
    rows: list[tuple[int, int]] = []
    places: dict[tuple[int, int], tuple[int, int]] = {}
    for dp, cp in sorted(set(zip(cores["dp"].tolist(), cores["cp"].tolist(), strict=True))):
        first = len(rows)
        rows += _ways(dp, cp, fixed)
        places[dp, cp] = (first, len(rows) - first)
    columns = np.array(rows, dtype=np.int64).reshape(len(rows), 2)
    return {"zero_stage": columns[:, 0], "dp_replicate": columns[:, 1]}, places


def _ways(dp: int, cp: int, fixed: Offered) -> list[tuple[int, int]]:
    """(ZeRO stage, replicas): replicas tell only where parameters are sharded."""
    zeros = fixed.get("zero_stage", (0, 1, 2, 3) if dp * cp > 1 else (0, 3))
    found = []
    for zero in zeros:
        if "dp_replicate" in fixed:
            found += [(zero, r) for r in fixed["dp_replicate"] if dp % r == 0]
        elif zero == 3:
            found += [
                (zero, r) for r in fixed.get("dp_replicate", divisors(dp)) if r == 1 or dp * cp // r > 1
            ]
        else:
            found.append((zero, 1))
    return found

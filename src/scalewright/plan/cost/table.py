"""Requests as columns: a column for every number that the formulas read, to price many at once.

    requests --> units: distinct (model, sizes, device, trainer, precision), whose operators are priced once
             --> columns: one number a row, and the row's unit

A search fills the columns itself, from products of axes; one request is a table of one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np

from scalewright.plan.columnar import Columnar
from scalewright.plan.cost.units import Unit, unit_of
from scalewright.plan.request import CP_KINDS, OFFLOADS, SCHEDULES, Request
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import balanced_layers
from scalewright.spec.schedules.kinds import KINDS, find_kind, stage_ranks

RECOMPUTE = ("none", "core", "selective", "full", "share", "budget", "modules", "policy", "unknown")
STAGE_COLUMNS = 7
# Columns that are indices into these words; the other numbers a request has by the same names
WORDS = {"schedule": SCHEDULES, "recompute": RECOMPUTE, "offload": OFFLOADS, "cp_kind": CP_KINDS}


@dataclass
class Table(Columnar):
    """Columns of equal length; `unit` indexes `units`."""

    units: tuple[Unit, ...]
    unit: np.ndarray
    seq_len: np.ndarray
    devices: np.ndarray
    tp: np.ndarray
    sp: np.ndarray
    pp: np.ndarray
    virtual_stages: np.ndarray
    cp: np.ndarray
    ep: np.ndarray
    etp: np.ndarray
    dp_replicate: np.ndarray
    zero_stage: np.ndarray
    micro_batch: np.ndarray
    accumulation: np.ndarray
    share: np.ndarray
    schedule: np.ndarray  # index into SCHEDULES
    recompute: np.ndarray  # index into RECOMPUTE
    offload: np.ndarray  # index into OFFLOADS
    cp_kind: np.ndarray  # index into CP_KINDS
    stages: np.ndarray  # [rows, STAGE_COLUMNS] as `stage_blocks`
    dp: np.ndarray

    def __len__(self) -> int:
        return len(self.unit)

    def schedules(self, trait: str) -> np.ndarray:
        """A trait of the rows' kinds of schedule, such as `folded`; False without a pipeline."""
        return np.asarray(_trait(trait)[self.schedule] & (self.pp > 1))

    def offloads(self, kind: str) -> np.ndarray:
        """Rows that offload this kind: optimizer, parameters or activations."""
        return np.asarray((self.offload == OFFLOADS.index(kind)) | (self.offload == OFFLOADS.index("all")))


@lru_cache(maxsize=64)
def _trait(name: str) -> np.ndarray:
    """Which kinds of schedule have a trait."""
    return np.array([bool(getattr(kind, name)) for kind in KINDS.values()])


def table(requests: Sequence[Request]) -> Table:
    """Requests as columns."""
    units: dict[Unit, int] = {}
    unit = np.array([units.setdefault(unit_of(r), len(units)) for r in requests], dtype=np.intp)
    stages = np.array([stage_blocks(r) for r in requests], dtype=float).reshape(len(requests), STAGE_COLUMNS)
    columns = {"unit": unit, "stages": stages}
    for name in (field.name for field in fields(Table) if field.name not in ("units", *columns)):
        values, words = [getattr(r, name) for r in requests], WORDS.get(name)
        columns[name] = np.array(
            [words.index(word) for word in values] if words else values, np.intp if words else float
        )
    return Table(units=tuple(units), **columns)


def stage_blocks(request: Request) -> tuple[float, ...]:
    """Blocks of the fullest rank between the ends, the first, the last, the second; the fullest's number; blocks of the
    last but one; the number of the last that is as full as the fullest.

    All stages of a rank together. Memory is highest on one of these: earlier ranks have more micro-batches under way,
    later ones of a split backward more gradients that wait, fuller ones more weights.
    """
    return _rank_blocks(stage_counts(request), request.schedule, request.pp, request.virtual_stages)


@lru_cache(maxsize=65536)
def _rank_blocks(stages: tuple[int, ...], schedule: str, pp: int, chunks: int) -> tuple[float, ...]:
    owners = stage_ranks(schedule, pp, chunks) if pp > 1 else (0,) * len(stages)
    per = [0.0] * pp
    for stage, rank in enumerate(owners):
        per[rank] += stages[stage % len(stages)]
    if len(owners) > len(stages):  # dualpipe has every stage twice, and half of the micro-batches in each
        per = [count / 2 for count in per]
    between = per[1:-1] or [max(per)]
    fullest = max(between)
    rank = min(1 + between.index(fullest), pp - 1)
    latest = min(len(between) - between[::-1].index(fullest), pp - 1)
    return fullest, per[0], per[-1], per[min(1, pp - 1)], float(rank), per[max(pp - 2, 0)], float(latest)


def stage_counts(request: Request) -> tuple[int, ...]:
    """Blocks of every pipeline stage, in the model's order (dualpipe: of each of its pp parts)."""
    if request.stage_layers:
        return request.stage_layers
    parts = find_kind(request.schedule).parts(request.pp, request.virtual_stages)
    return cut_stages(request.model, request.framework.split, request.pp, parts // request.pp)


@lru_cache(maxsize=65536)
def cut_stages(model: ModelSpec, split: str, pp: int, chunks: int) -> tuple[int, ...]:
    """How a trainer cuts the blocks into pp x chunks stages.

    equal   as many in each; where that doesn't go, all are full but the last ones
    even    the same, but embedding, head and multi-token layers take a block's place each, as in
            Megatron Core's pipeline layout of DeepSeek-V3, `Et|(tt|)*30mL`
    balanced  this package's own: weights balanced, the head's with the last block (spec/placement.py)
    cost    nanotron's rule: a rank takes blocks until they exceed its share of the summed cost, head included
    """
    layers, stages = model.num_hidden_layers, pp * chunks
    if stages == 1:
        return (layers,)
    if split == "balanced" and stages <= layers:
        return balanced_layers(model, stages)
    if split == "cost" and chunks == 1:
        return _cut_by_cost(model, pp)
    extra = model.mtp_layers
    if layers % stages and split == "even" and (layers + 2 + extra) % stages == 0:
        inner = (layers + 2 + extra) // stages
        if inner > 1 + extra:
            return (inner - 1, *[inner] * (stages - 2), inner - 1 - extra)
    full = -(-layers // stages)
    return tuple(max(0, min(full, layers - full * stage)) for stage in range(stages))


def _cut_by_cost(model: ModelSpec, pp: int) -> tuple[int, ...]:
    """nanotron's `build_model`: block after block to a rank, until the share of the cost is exceeded."""
    d, f = model.hidden_size, model.intermediate_size
    block, head = 4.0 * d * d + 3.0 * d * f, float(model.vocab_size * d)
    total = model.num_hidden_layers * block + head
    counts, rank = [0] * pp, 0
    for layer in range(model.num_hidden_layers):
        counts[rank] += 1
        if (layer + 1) * block > total * (rank + 1) / pp:
            rank += 1
    return tuple(counts)

"""Every legal layout of a run as rows of small integers, and any of those rows as a table for the formulas.

    core    tp, sp, cp, cp_kind, pp, ep, etp, micro-batch      what decides the operators, and how many blocks
    pipe    schedule, virtual stages                           as many as pp and the layers allow
    shard   ZeRO stage, replicas (HSDP)                        as many as dp has divisors
    rerun   recomputation          offload                     the same for all

    row = (core, pipe, shard, rerun, offload)     rows --columns--> Table: products of axes, no objects

Every legal value of an axis is in, but for the edges below, where no run goes; a value that is asked for
(`fixed`) is in wherever it is legal. What is legal says spec/layout_check.py, once for each value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from scalewright.plan.request import CP_KINDS, OFFLOADS, SCHEDULES, Request
from scalewright.plan.table import RECOMPUTE, Table, Unit, stage_blocks, unit_of
from scalewright.spec.errors import UserError
from scalewright.spec.layout import CHUNKED, Layout
from scalewright.spec.layout_check import SPLIT_BACKWARD, check_layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.schedule import check_sizes

LEAST_TOKENS = (
    1024  # of a sequence on a context-parallel rank: below, the ring's messages have nothing to hide behind
)
MOST_TOKENS = 65536  # of a micro-batch on a rank: above, kernels gain nothing and activations don't fit
MOST_NODES = 2  # that a tensor-parallel group spans
MOST_CHUNKS = 6  # virtual stages, where they don't divide the layers
EVERY = (2, 3, 4)  # recompute every n-th block
SYNCHRONOUS = tuple(kind for kind in SCHEDULES if kind != "pipedream")  # that one trains on stale weights
AXES = (
    "tp", "sp", "pp", "virtual_stages", "schedule", "cp", "cp_kind", "ep", "etp", "dp", "dp_replicate",
    "zero_stage", "micro_batch", "recompute", "offload",
)  # fmt: skip
Fixed = Mapping[str, tuple[Any, ...]]
TIMED: Fixed = {"cp": (1,), "ep": (1,), "etp": (1,), "offload": ("none",)}  # axes that no probe has timed


@dataclass
class Rows:
    """Layouts by the numbers of their parts; arrays of one length."""

    core: np.ndarray
    pipe: np.ndarray
    shard: np.ndarray
    rerun: np.ndarray
    offload: np.ndarray

    def __len__(self) -> int:
        return len(self.core)

    def take(self, at: np.ndarray | slice) -> Rows:
        """Some of the rows."""
        return Rows(*(getattr(self, f.name)[at] for f in fields(self)))

    @staticmethod
    def join(many: list[Rows]) -> Rows:
        """All rows of several."""
        return Rows(*(np.concatenate([getattr(one, f.name) for one in many]) for f in fields(Rows)))


@dataclass
class Space:
    """The layouts of one run; see the picture above. Arrays are indexed by the rows' numbers."""

    template: Request
    global_batch: int
    units: tuple[Unit, ...]
    core: dict[str, np.ndarray]  # tp sp cp kind pp ep etp dp micro_batch micros unit
    pipe: dict[str, np.ndarray]  # schedule chunks stages least (micro-batches) even split blocks
    pipes: dict[int, tuple[int, int]]  # pp -> first pipe, how many
    shard: dict[str, np.ndarray]  # zero replicate
    shards: dict[tuple[int, int], tuple[int, int]]  # (dp, cp) -> first shard, how many
    reruns: tuple[tuple[str, float, Any], ...]  # kind for the table, share of the blocks, the layout's value
    offloads: tuple[int, ...]

    @property
    def cores(self) -> int:
        """How many cores there are."""
        return len(self.core["tp"])

    @cached_property
    def sizes(self) -> np.ndarray:
        """How many layouts every core has."""
        total = np.zeros(self.cores, dtype=np.int64)
        for pp in np.unique(self.core["pp"]):
            mine = np.flatnonzero(self.core["pp"] == pp)
            first, many = self.pipes[int(pp)]
            part = slice(first, first + many)
            micros = self.core["micros"][mine][:, None]
            legal = (micros >= self.pipe["least"][part]) & ((micros % 2 == 0) | ~self.pipe["even"][part])
            pipes = (legal * self.reruns_of_pipe[part]).sum(1)
            total[mine] = pipes * self._sharded(mine)
        return total

    @property
    def size(self) -> int:
        """How many layouts there are."""
        return int(self.sizes.sum())

    @cached_property
    def reruns_of_pipe(self) -> np.ndarray:
        """How many recomputations every pipe allows."""
        found = np.zeros(len(self.pipe["chunks"]), dtype=np.int64)
        for at in range(len(self.reruns)):
            found += self._allows(np.arange(len(found)), np.full(len(found), at))
        return found

    def _allows(self, pipe: np.ndarray, rerun: np.ndarray) -> np.ndarray:
        """Whether a pipe allows a recomputation: not of a backward in halves, every n-th of at least n."""
        plain = np.array([kind == "none" for kind, _, _ in self.reruns])[rerun]
        every = np.array([least_blocks(value) for _, _, value in self.reruns])[rerun]
        return np.asarray(plain | (~self.pipe["split"][pipe] & (every <= self.pipe["blocks"][pipe])))

    def _sharded(self, cores: np.ndarray) -> np.ndarray:
        """Pairs of shard and offload of every core."""
        rows = self.spread_shards(_bare(cores))
        wants3 = sum(needs_zero3(offload) for offload in self.offloads)
        pairs = np.where(self.shard["zero"][rows.shard] == 3, len(self.offloads), len(self.offloads) - wants3)
        return np.bincount(np.searchsorted(cores, rows.core), pairs, len(cores))

    # -- products -------------------------------------------------------------------------------------

    def spread_pipes(self, rows: Rows) -> Rows:
        """Every row with every schedule that is legal for it."""
        pp = self.core["pp"][rows.core]
        found = _spread(rows, "pipe", *_lookup(self.pipes, pp))
        micros = self.core["micros"][found.core]
        legal = micros >= self.pipe["least"][found.pipe]
        return found.take(legal & ((micros % 2 == 0) | ~self.pipe["even"][found.pipe]))

    def spread_shards(self, rows: Rows) -> Rows:
        """Every row with every way to shard that is legal for it."""
        at = rows.core
        both = self.core["dp"][at] * 2**20 + self.core["cp"][at]
        table = {dp * 2**20 + cp: place for (dp, cp), place in self.shards.items()}
        found = _spread(rows, "shard", *_lookup(table, both))
        core = {key: values[found.core] for key, values in self.core.items()}
        ranks = core["dp"] // self.shard["replicate"][found.shard] * core["cp"] * core["tp"]
        return found.take(ranks % (core["ep"] * core["etp"]) == 0)

    def spread_reruns(self, rows: Rows) -> Rows:
        """Every row with every recomputation that is legal for it."""
        many = np.full(len(rows), len(self.reruns))
        found = _spread(rows, "rerun", np.zeros(len(rows), dtype=int), many)
        return found.take(self._allows(found.pipe, found.rerun))

    def spread_offloads(self, rows: Rows) -> Rows:
        """Every row with everything that can be offloaded."""
        many = np.full(len(rows), len(self.offloads))
        found = _spread(rows, "offload", np.zeros(len(rows), dtype=int), many)
        wants = np.array([needs_zero3(offload) for offload in self.offloads])[found.offload]
        return found.take(~wants | (self.shard["zero"][found.shard] == 3))

    def bare(self, cores: np.ndarray) -> Rows:
        """Rows of these cores, with the first of everything else."""
        return _bare(cores)

    # -- one row, all rows ----------------------------------------------------------------------------

    def table(self, rows: Rows) -> Table:
        """The rows' columns for the formulas."""
        core = {key: values[rows.core] for key, values in self.core.items()}
        kinds = np.array([RECOMPUTE.index(kind) for kind, _, _ in self.reruns])
        shares = np.array([share for _, share, _ in self.reruns])
        as_float = {name: core[name].astype(float) for name in ("tp", "sp", "pp", "cp", "ep", "etp", "dp")}
        return Table(
            units=self.units,
            unit=core["unit"],
            seq_len=np.full(len(rows), float(self.template.seq_len)),
            devices=np.full(len(rows), float(self.template.devices)),
            chunks=self.pipe["chunks"][rows.pipe].astype(float),
            replicate=self.shard["replicate"][rows.shard].astype(float),
            zero=self.shard["zero"][rows.shard].astype(float),
            micro_batch=core["micro_batch"].astype(float),
            micros=core["micros"].astype(float),
            share=shares[rows.rerun],
            schedule=self.pipe["schedule"][rows.pipe],
            recompute=kinds[rows.rerun],
            offload=np.array(self.offloads)[rows.offload],
            cp_kind=core["kind"],
            stages=self.pipe["stages"][rows.pipe],
            **as_float,
        )

    def keys(self, rows: Rows, at: int) -> dict[str, Any]:
        """One row as a layout's keys."""
        core = {key: int(values[rows.core[at]]) for key, values in self.core.items()}
        pipe, shard = int(rows.pipe[at]), int(rows.shard[at])
        return {
            "devices": self.template.devices,
            **{key: core[key] for key in ("tp", "pp", "cp", "ep", "etp", "micro_batch")},
            "sp": bool(core["sp"]),
            "virtual_stages": int(self.pipe["chunks"][pipe]),
            "schedule": SCHEDULES[self.pipe["schedule"][pipe]],
            "cp_kind": CP_KINDS[core["kind"]],
            "dp_replicate": int(self.shard["replicate"][shard]),
            "zero_stage": int(self.shard["zero"][shard]),
            "global_batch": self.global_batch,
            "recompute": self.reruns[rows.rerun[at]][2],
            "precision": self.template.precision,
            "offload": OFFLOADS[self.offloads[rows.offload[at]]],
        }


def least_blocks(recompute: Any) -> int:
    """How many blocks a stage needs for this recomputation."""
    return int(recompute.get("every", 1)) if isinstance(recompute, dict) else 1


def needs_zero3(offload: int) -> bool:
    """Whether only sharded parameters can be offloaded so."""
    return OFFLOADS[offload] in ("parameters", "all")


def _bare(cores: np.ndarray) -> Rows:
    zero = np.zeros(len(cores), dtype=np.intp)
    return Rows(cores.astype(np.intp), zero, zero, zero, zero)


def _lookup(places: Mapping[int, tuple[int, int]], keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First and number for every key."""
    known = np.array(sorted(places))
    at = np.searchsorted(known, keys)
    found = np.array([places[int(key)] for key in known])
    return found[at, 0], found[at, 1]


def _spread(rows: Rows, name: str, first: np.ndarray, many: np.ndarray) -> Rows:
    """Every row `many` times, the part `name` counted from `first`."""
    owner = np.repeat(np.arange(len(rows)), many)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(many) - many, many)
    found = rows.take(owner)
    setattr(found, name, (first[owner] + within).astype(np.intp))
    return found


# -- axes -------------------------------------------------------------------------------------------


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


def make_space(template: Request, global_batch: int, fixed: Fixed) -> Space:
    """The space of a run; axes in `fixed` have only those values. Empty when no layout is legal."""
    if template.chip.timings is not None:  # processes of one machine, priced by what was timed there
        fixed = {**TIMED, **fixed}
    pipe, pipes = _pipes(template, fixed)
    cores, units = _cores(template, global_batch, fixed, set(pipes))
    shard, shards = _shards(cores, fixed)
    offloads = tuple(OFFLOADS.index(o) for o in fixed.get("offload", OFFLOADS))
    reruns = tuple(rerun(template, value) for value in fixed.get("recompute", _usual_reruns()))
    return Space(template, global_batch, units, cores, pipe, pipes, shard, shards, reruns, offloads)


def _usual_reruns() -> tuple[Any, ...]:
    return ("none", "selective", "full", *({"every": n} for n in EVERY))


def rerun(template: Request, value: Any) -> tuple[str, float, Any]:
    """A layout's `recompute` as the table has it: kind, share of the blocks, and itself."""
    if isinstance(value, dict):
        share = 1.0 / value["every"] if "every" in value else 1.0 - value["budget"]
        return "share", share, value
    if value == "selective" and template.framework.name != "scalewright":
        return template.framework.selective, 1.0, value
    return value, 1.0, value


def tensor_sizes(template: Request) -> tuple[int, ...]:
    """Every tp that heads and matrices allow."""
    model, seq_len = template.model, template.seq_len
    sizes = divisors(template.devices)
    return tuple(t for t in sizes if t <= model.num_attention_heads
                 and legal(model, seq_len, devices=t, tp=t, sp=False))  # fmt: skip


def _cores(
    template: Request, global_batch: int, fixed: Fixed, depths: set[int]
) -> tuple[dict[str, np.ndarray], tuple[Unit, ...]]:
    """The cores as columns, and the units that they belong to."""
    units: dict[Unit, int] = {}
    names = ("tp", "sp", "cp", "kind", "pp", "ep", "etp", "dp", "micro_batch", "micros", "unit")
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


def _meshes(template: Request, fixed: Fixed) -> Iterator[tuple[int, bool, int, str]]:
    """Sizes that cut operators and sequence: (tp, sp, cp, kind)."""
    model, seq_len, chip = template.model, template.seq_len, template.chip
    widest = MOST_NODES * max(chip.node, chip.domain)
    for tp in fixed.get("tp", tuple(t for t in tensor_sizes(template) if t <= widest)):
        usual = (True,) if model.moe else (True, False)
        for sp in (s for s in fixed.get("sp", usual if tp > 1 else (False,)) if tp > 1 or not s):
            longest = max(1, seq_len // LEAST_TOKENS)
            some = tuple(c for c in divisors(template.devices) if c <= longest)
            for cp in fixed.get("cp", some):
                kinds = fixed.get("cp_kind", CP_KINDS if cp > 1 else CP_KINDS[:1])
                for kind in kinds:
                    keys = {"devices": tp * cp, "tp": tp, "sp": sp, "cp": cp, "cp_kind": kind}
                    if legal(model, seq_len, **keys) and _has_budgets(template, keys, fixed):
                        yield tp, sp, cp, kind


def _has_budgets(template: Request, keys: dict[str, Any], fixed: Fixed) -> bool:
    """Whether blocks of these sizes can keep within the budgets that are asked for."""
    budgets = [value for value in fixed.get("recompute", ()) if isinstance(value, dict) and "budget" in value]
    return all(legal(template.model, template.seq_len, **keys, recompute=value) for value in budgets)


def _micro_batches(template: Request, samples: int, cp: int, fixed: Fixed) -> Iterator[int]:
    """Micro-batches that divide a data-parallel rank's samples."""
    most = max(1, MOST_TOKENS * cp // template.seq_len)
    for micro in fixed.get("micro_batch", divisors(samples)):
        if samples % micro == 0 and (micro <= most or "micro_batch" in fixed):
            yield micro


def _experts(template: Request, tp: int, cp: int, dp: int, fixed: Fixed) -> Iterator[tuple[int, int]]:
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


def _pipes(template: Request, fixed: Fixed) -> tuple[dict[str, np.ndarray], dict[int, tuple[int, int]]]:
    """Every schedule of every depth."""
    layers = template.model.num_hidden_layers
    rows: list[tuple[Any, ...]] = []
    places: dict[int, tuple[int, int]] = {}
    for pp in fixed.get("pp", tuple(p for p in divisors(template.devices) if p <= layers)):
        first = len(rows)
        for kind, chunks in _schedules(pp, layers, fixed):
            blocks = stage_blocks(replace(template, pp=pp, chunks=chunks, schedule=kind))
            least = 2 * pp if kind in ("dualpipe", "dualpipev") else 1
            split = pp > 1 and kind in SPLIT_BACKWARD
            deep = -(-layers // (pp * (1 if kind == "dualpipe" else chunks)))
            even = kind == "dualpipe"
            rows.append((SCHEDULES.index(kind), chunks, blocks, least, even, split, deep))
        if len(rows) > first:
            places[pp] = (first, len(rows) - first)
    names = ("schedule", "chunks", "stages", "least", "even", "split", "blocks")
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    return {name: np.array(column) for name, column in zip(names, columns, strict=True)}, places


def _schedules(pp: int, layers: int, fixed: Fixed) -> Iterator[tuple[str, int]]:
    """Kinds and virtual stages that a depth allows."""
    if pp == 1:
        if "1f1b" in fixed.get("schedule", ("1f1b",)) and 1 in fixed.get("virtual_stages", (1,)):
            yield "1f1b", 1
        return
    most = layers // pp
    usual = tuple(v for v in range(1, most + 1) if v <= MOST_CHUNKS or layers % (pp * v) == 0)
    for kind in fixed.get("schedule", SYNCHRONOUS):
        for chunks in fixed.get("virtual_stages", (2,) if kind == "dualpipe" else usual):
            if kind in CHUNKED and kind != "dualpipe" and chunks > most:
                continue
            try:
                check_sizes(kind, pp, chunks, 2 * pp)
            except UserError:
                continue
            yield kind, chunks


def _shards(
    cores: dict[str, np.ndarray], fixed: Fixed
) -> tuple[dict[str, np.ndarray], dict[tuple[int, int], tuple[int, int]]]:
    """Every way to shard over every data-parallel group, plainest first."""
    rows: list[tuple[int, int]] = []
    places: dict[tuple[int, int], tuple[int, int]] = {}
    for dp, cp in sorted(set(zip(cores["dp"].tolist(), cores["cp"].tolist(), strict=True))):
        first = len(rows)
        rows += _ways(dp, cp, fixed)
        places[dp, cp] = (first, len(rows) - first)
    columns = np.array(rows, dtype=np.int64).reshape(len(rows), 2)
    return {"zero": columns[:, 0], "replicate": columns[:, 1]}, places


def _ways(dp: int, cp: int, fixed: Fixed) -> list[tuple[int, int]]:
    """(ZeRO stage, replicas): replicas tell only where parameters are sharded."""
    zeros = fixed.get("zero_stage", (0, 1, 2, 3) if dp * cp > 1 else (0, 3))
    found = []
    for zero in zeros:
        if "dp_replicate" in fixed:
            found += [(zero, r) for r in fixed["dp_replicate"] if dp % r == 0]
        elif zero == 3:
            found += [(zero, r) for r in divisors(dp) if r == 1 or dp * cp // r > 1]
        else:
            found.append((zero, 1))
    return found

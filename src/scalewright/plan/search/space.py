"""Every legal layout of a run as rows of small integers, and any of those rows as a table for the formulas.

    core    tp, sp, cp, cp_kind, pp, ep, etp, micro-batch      what decides the operators, and how many blocks
    pipe    schedule, virtual stages                           as many as pp and the layers allow
    shard   ZeRO stage, replicas (HSDP)                        as many as dp has divisors
    rerun   recomputation          offload                     the same for all

    row = (core, pipe, shard, rerun, offload)     rows --columns--> Table: products of axes, no objects

Which rows there are says plan/search/axes.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from scalewright.plan.capabilities import Rule, forbidden
from scalewright.plan.cost.table import RECOMPUTE, Table, Unit
from scalewright.plan.request import CP_KINDS, OFFLOADS, SCHEDULES, Request


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
    never: tuple[Rule, ...] = ()  # values that the trainer doesn't take together

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
            micros = self.core["accumulation"][mine][:, None]
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
        found = np.zeros(len(self.pipe["virtual_stages"]), dtype=np.int64)
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
        if any("offload" in rule for rule in self.never):
            pairs = np.ones(len(rows := self.spread_offloads(rows)))
        else:
            less = len(self.offloads) - sum(needs_zero3(offload) for offload in self.offloads)
            pairs = np.where(self.shard["zero_stage"][rows.shard] == 3, len(self.offloads), less)
        return np.bincount(np.searchsorted(cores, rows.core), pairs, len(cores))

    # -- products -------------------------------------------------------------------------------------

    def spread_pipes(self, rows: Rows) -> Rows:
        """Every row with every schedule that is legal for it."""
        pp = self.core["pp"][rows.core]
        found = _spread(rows, "pipe", *_lookup(self.pipes, pp))
        micros = self.core["accumulation"][found.core]
        legal = micros >= self.pipe["least"][found.pipe]
        return found.take(legal & ((micros % 2 == 0) | ~self.pipe["even"][found.pipe]))

    def spread_shards(self, rows: Rows) -> Rows:
        """Every row with every way to shard that is legal for it."""
        at = rows.core
        both = self.core["dp"][at] * 2**20 + self.core["cp"][at]
        table = {dp * 2**20 + cp: place for (dp, cp), place in self.shards.items()}
        found = _spread(rows, "shard", *_lookup(table, both))
        core = {key: values[found.core] for key, values in self.core.items()}
        ranks = core["dp"] // self.shard["dp_replicate"][found.shard] * core["cp"] * core["tp"]
        found = found.take(ranks % (core["ep"] * core["etp"]) == 0)
        return found.take(~forbidden(self.never, self._sizes(found), len(found))) if self.never else found

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
        found = found.take(~wants | (self.shard["zero_stage"][found.shard] == 3))
        if not any("offload" in rule for rule in self.never):
            return found
        words = np.array([OFFLOADS[one] for one in self.offloads])[found.offload]
        return found.take(~forbidden(self.never, {**self._sizes(found), "offload": words}, len(found)))

    def _sizes(self, rows: Rows) -> dict[str, np.ndarray]:
        """The axes that a trainer's rules speak of."""
        found = {axis: self.core[axis][rows.core] for axis in ("tp", "pp", "cp", "ep", "etp")}
        return found | {"zero_stage": self.shard["zero_stage"][rows.shard]}

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
            virtual_stages=self.pipe["virtual_stages"][rows.pipe].astype(float),
            dp_replicate=self.shard["dp_replicate"][rows.shard].astype(float),
            zero_stage=self.shard["zero_stage"][rows.shard].astype(float),
            micro_batch=core["micro_batch"].astype(float),
            accumulation=core["accumulation"].astype(float),
            share=shares[rows.rerun],
            schedule=self.pipe["schedule"][rows.pipe],
            recompute=kinds[rows.rerun],
            offload=np.array(self.offloads)[rows.offload],
            cp_kind=core["cp_kind"],
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
            "virtual_stages": int(self.pipe["virtual_stages"][pipe]),
            "schedule": SCHEDULES[self.pipe["schedule"][pipe]],
            "cp_kind": CP_KINDS[core["cp_kind"]],
            "dp_replicate": int(self.shard["dp_replicate"][shard]),
            "zero_stage": int(self.shard["zero_stage"][shard]),
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

"""Every legal layout of a run as a row of small integers, and rows as a table for the cost formulas.

    core        tp, sp, cp, cp_kind, pp, ep, etp, micro-batch      decide the operators and blocks of a rank
    pipe        schedule, virtual stages                           those that pp and the layers allow
    shard       ZeRO stage, replicas (HSDP)                        those that dp and cp allow
    recompute, offload                                             the same for all cores

    row = (core, pipe, shard, recompute, offload)     rows --columns--> Table: products of axes, no objects

plan/search/axes.py makes the values of each part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from scalewright.plan.columnar import Columnar
from scalewright.plan.cost.table import RECOMPUTE, Table
from scalewright.plan.cost.units import Unit
from scalewright.plan.frameworks import forbidden
from scalewright.plan.records import LayoutKeys
from scalewright.plan.request import CP_KINDS, OFFLOADS, SCHEDULES, Request
from scalewright.spec.capabilities import Rule

# Axes in which layouts differ, in the order in which reasons name them
CORE_AXES = ("tp", "sp", "pp", "cp", "cp_kind", "ep", "etp", "micro_batch")
AXES = (*CORE_AXES, "schedule", "virtual_stages", "zero_stage", "dp_replicate", "recompute", "offload")
MODULES = "recompute_modules"  # the switch, and the key of a recomputation of modules


@dataclass
class Rows(Columnar):
    """Layouts as indices of their parts; arrays of equal length."""

    core: np.ndarray
    pipe: np.ndarray
    shard: np.ndarray
    recompute: np.ndarray
    offload: np.ndarray

    def __len__(self) -> int:
        return len(self.core)


@dataclass
class Space:
    """The layouts of one run; see the table above. Rows contain indices into these arrays."""

    template: Request
    global_batch: int
    units: tuple[Unit, ...]
    core: dict[str, np.ndarray]  # tp sp cp cp_kind pp ep etp dp micro_batch accumulation unit
    pipe: dict[str, np.ndarray]  # schedule virtual_stages stages min_accumulation even split blocks
    pipes: dict[int, tuple[int, int]]  # pp -> (first pipe, count)
    shard: dict[str, np.ndarray]  # zero_stage dp_replicate
    shards: dict[tuple[int, int], tuple[int, int]]  # (dp, cp) -> (first shard, count)
    recomputes: tuple[tuple[str, float, Any], ...]  # (the table's kind, share of blocks, the layout's value)
    offloads: tuple[int, ...]
    never: tuple[Rule, ...] = ()  # combinations that the trainer doesn't support

    @property
    def cores(self) -> int:
        """The number of cores."""
        return len(self.core["tp"])

    @cached_property
    def sizes(self) -> np.ndarray:
        """The number of layouts of every core."""
        pipes, shards = self.spread_pipes(self.bare(np.arange(self.cores))), self._shards_of_cores
        if any("offload" in rule for rule in self.never):
            pairs = np.ones(len(shards := self.spread_offloads(shards)))
        else:
            less = len(self.offloads) - sum(needs_zero3(offload) for offload in self.offloads)
            pairs = np.where(self.shard["zero_stage"][shards.shard] == 3, len(self.offloads), less)
        ways = np.bincount(pipes.core, self.recomputes_of_pipe[pipes.pipe], self.cores)
        return (ways * np.bincount(shards.core, pairs, self.cores)).astype(np.int64)

    @property
    def size(self) -> int:
        """The number of layouts."""
        return int(self.sizes.sum())

    @cached_property
    def recomputes_of_pipe(self) -> np.ndarray:
        """The number of recomputations that every pipe allows."""
        pipes = np.arange(len(self.pipe["virtual_stages"]))
        return np.asarray(self._allows(pipes[:, None], np.arange(len(self.recomputes))).sum(1))

    def _allows(self, pipe: np.ndarray, recompute: np.ndarray) -> np.ndarray:
        """Whether a pipe allows a recomputation: none with a split backward, {every: n} with n blocks."""
        values = [value if isinstance(value, dict) else {} for _, _, value in self.recomputes]
        every = np.array([int(value.get("every", 1)) for value in values])[recompute]
        return np.asarray(self.plain[recompute] | (~self.pipe["split"][pipe] & (every <= self.pipe["blocks"][pipe])))

    @cached_property
    def _shards_of_cores(self) -> Rows:
        """Every core with every sharding."""
        return self.spread_shards(self.bare(np.arange(self.cores)))

    @cached_property
    def most_sharded(self) -> np.ndarray:
        """Of every core the sharding that leaves a rank least: the highest ZeRO stage, the fewest replicas."""
        rows, shard = self._shards_of_cores, np.zeros(self.cores, dtype=np.intp)
        order = np.lexsort((-self.shard["dp_replicate"][rows.shard], self.shard["zero_stage"][rows.shard]))
        shard[rows.core[order]] = rows.shard[order]
        return shard

    @cached_property
    def leanest(self) -> np.ndarray:
        """Of every pipe the recomputation, of those that it allows, that keeps least."""
        rank = np.array([_leanness(kind, share) for kind, share, _ in self.recomputes])
        pipes = np.arange(len(self.pipe["virtual_stages"]))
        allowed = self._allows(pipes[:, None], np.arange(len(self.recomputes)))
        return np.asarray(np.where(allowed, rank, -1.0).argmax(1))

    @cached_property
    def plain(self) -> np.ndarray:
        """Whether each recomputation is none."""
        return np.array([kind == "none" for kind, _, _ in self.recomputes], dtype=bool)

    @cached_property
    def moves(self) -> np.ndarray:
        """Whether each offload sends activations to the host, so that a backward finds what it would have gathered."""
        return np.array([OFFLOADS[number] in ("activations", "all") for number in self.offloads], dtype=bool)

    def number(self, rows: Rows) -> np.ndarray:
        """A number for every triple of core, pipe and shard."""
        pipes, shards = len(self.pipe["virtual_stages"]), len(self.shard["zero_stage"])
        return np.asarray((rows.core * pipes + rows.pipe) * shards + rows.shard)

    def way(self, rows: Rows) -> np.ndarray:
        """A number for every triple of core, pipe and offload."""
        pipes, offloads = len(self.pipe["virtual_stages"]), len(self.offloads)
        return np.asarray((rows.core * pipes + rows.pipe) * offloads + rows.offload)

    def spread_pipes(self, rows: Rows) -> Rows:
        """Every row with every schedule that is legal for it, and whose number of micro-batches is."""
        spread = _spread(rows, "pipe", *_lookup(self.pipes, self.core["pp"][rows.core]))
        accumulation = self.core["accumulation"][spread.core]
        even = (accumulation % 2 == 0) | ~self.pipe["even"][spread.pipe]
        return spread.take((accumulation >= self.pipe["min_accumulation"][spread.pipe]) & even)

    def spread_shards(self, rows: Rows) -> Rows:
        """Every row with every sharding that is legal for it."""
        keys = self.core["dp"][rows.core] * 2**20 + self.core["cp"][rows.core]
        places = {dp * 2**20 + cp: place for (dp, cp), place in self.shards.items()}
        spread = _spread(rows, "shard", *_lookup(places, keys))
        core = {key: self.core[key][spread.core] for key in ("dp", "cp", "tp", "ep", "etp")}
        ranks = core["dp"] // self.shard["dp_replicate"][spread.shard] * core["cp"] * core["tp"]
        spread = spread.take(ranks % (core["ep"] * core["etp"]) == 0)
        return spread.take(~forbidden(self.never, self._sizes(spread), len(spread))) if self.never else spread

    def forbidden(self, rows: Rows, rules: tuple[Rule, ...]) -> np.ndarray:
        """A mask of the rows, offload and all, that a rule forbids."""
        if not rules:
            return np.zeros(len(rows), dtype=bool)
        names = np.array([OFFLOADS[number] for number in self.offloads])[rows.offload]
        return forbidden(rules, {**self._sizes(rows), "offload": names}, len(rows))

    def spread_recomputes(self, rows: Rows) -> Rows:
        """Every row with every recomputation that is legal for it."""
        spread = _spread(rows, "recompute", np.zeros(len(rows), dtype=int), np.full(len(rows), len(self.recomputes)))
        return spread.take(self.allows(spread))

    def allows(self, rows: Rows) -> np.ndarray:
        """Whether the rows' pipes allow their recomputation."""
        return self._allows(rows.pipe, rows.recompute)

    def spread_offloads(self, rows: Rows) -> Rows:
        """Every row with every offload that is legal for it."""
        spread = _spread(rows, "offload", np.zeros(len(rows), dtype=int), np.full(len(rows), len(self.offloads)))
        return self.legal_offloads(spread)

    def legal_offloads(self, rows: Rows) -> Rows:
        """The rows whose offload is legal beside their sharding."""
        zero3 = np.array([needs_zero3(offload) for offload in self.offloads])[rows.offload]
        spread = rows.take(~zero3 | (self.shard["zero_stage"][rows.shard] == 3))
        if not any("offload" in rule for rule in self.never):
            return spread
        return spread.take(~self.forbidden(spread, self.never))

    def _sizes(self, rows: Rows) -> dict[str, np.ndarray]:
        """The axes that a trainer's rules use."""
        sizes = {axis: self.core[axis][rows.core] for axis in ("tp", "sp", "pp", "cp", "ep", "etp")}
        return sizes | {axis: values[rows.shard] for axis, values in self.shard.items()}

    @staticmethod
    def bare(cores: np.ndarray) -> Rows:
        """Rows of these cores with the first value of every other part."""
        zeros = np.zeros(len(cores), dtype=np.intp)
        return Rows(cores.astype(np.intp), zeros, zeros, zeros, zeros)

    def table(self, rows: Rows) -> Table:
        """The rows as a table for the cost formulas."""
        core = {key: values[rows.core] for key, values in self.core.items()}
        kinds = np.array([RECOMPUTE.index(kind) for kind, _, _ in self.recomputes])
        shares = np.array([share for _, share, _ in self.recomputes])
        sizes = ("tp", "sp", "pp", "cp", "ep", "etp", "dp", "micro_batch", "accumulation")
        as_float = {name: core[name].astype(float) for name in sizes}
        as_float |= {name: values[rows.shard].astype(float) for name, values in self.shard.items()}
        return Table(
            units=self.units,
            unit=core["unit"],
            seq_len=np.full(len(rows), float(self.template.seq_len)),
            devices=np.full(len(rows), float(self.template.devices)),
            virtual_stages=self.pipe["virtual_stages"][rows.pipe].astype(float),
            share=shares[rows.recompute],
            schedule=self.pipe["schedule"][rows.pipe],
            recompute=kinds[rows.recompute],
            offload=np.array(self.offloads)[rows.offload],
            cp_kind=core["cp_kind"],
            stages=self.pipe["stages"][rows.pipe],
            **as_float,
        )

    def keys(self, rows: Rows, i: int) -> LayoutKeys:
        """Row `i` as a layout's keys."""
        core = {key: int(values[rows.core[i]]) for key, values in self.core.items()}
        pipe, shard = int(rows.pipe[i]), int(rows.shard[i])
        return {
            "devices": self.template.devices,
            **{key: core[key] for key in ("tp", "pp", "cp", "ep", "etp", "micro_batch")},
            "sp": bool(core["sp"]),
            "virtual_stages": int(self.pipe["virtual_stages"][pipe]),
            "schedule": SCHEDULES[self.pipe["schedule"][pipe]],
            "cp_kind": CP_KINDS[core["cp_kind"]],
            **{key: int(values[shard]) for key, values in self.shard.items()},
            "global_batch": self.global_batch,
            "recompute": self.recomputes[rows.recompute[i]][2],
            "precision": self.template.precision,
            "offload": OFFLOADS[self.offloads[rows.offload[i]]],
        }


def _leanness(kind: str, share: float) -> float:
    """An order of recomputations by what they keep, the most first."""
    return {"none": 0.0, "full": 3.0, "budget": 1.0 + (1.0 - share)}.get(kind, 1.0 + share)


def needs_zero3(offload: int) -> bool:
    """Whether this offload needs sharded parameters."""
    return OFFLOADS[offload] in ("parameters", "all")


def _lookup(places: Mapping[int, tuple[int, int]], keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The `first` and `count` of every key."""
    known = np.array(sorted(places))
    values = np.reshape([places[key] for key in sorted(places)], (-1, 2)).astype(int)[np.searchsorted(known, keys)]
    return values[:, 0], values[:, 1]


def _spread(rows: Rows, name: str, first: np.ndarray, count: np.ndarray) -> Rows:
    """Every row `count` times, with its part `name` counting up from `first`."""
    owner = np.repeat(np.arange(len(rows)), count)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    spread = rows.take(owner)
    setattr(spread, name, (first[owner] + within).astype(np.intp))
    return spread

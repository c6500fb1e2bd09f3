"""Branch and bound over the legal layouts of a run: each is priced, or pruned by a lower bound on its score.

    bound of a core             compute + exposed tp, cp + host     no pipeline, sharding, recomputation
    bound of (core, pipe)       + bubble, pp and ep messages        no sharding
    (core, pipe, shard)         priced; recomputation and offload only add time
    rows that don't fit         priced with every recomputation, and with every offload if still too large

A row is pruned only if its bound is above `cutoff`: the best score so far times WINDOW, or that of the K-th
kind of layout. So the best is exact, and the Pareto set is exact up to layouts WINDOW times slower.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from scalewright.plan.request import OFFLOADS, SCHEDULES
from scalewright.plan.search.pricer import Priced, Pricer, set_no_extras
from scalewright.plan.search.space import Rows
from scalewright.spec.schedules.kinds import KINDS

WINDOW, MAX_WINDOW = 1.10, 1.5
# A schedule's order among layouts of equal score: 1F1B, the usual one, before GPipe, then the complex ones
SCHEDULE_ORDER = np.array([2 * kind.complexity + (name != "1f1b") for name, kind in KINDS.items()])
MAX_SEEDS = 60_000  # rows that are priced for a first cutoff
Tell = Callable[[int, int], None]  # (layouts done, of so many)
Stop = Callable[[], bool]  # true ends the search


@dataclass
class Finder:
    """The search; `candidates` are the priced rows with scores up to the cutoff of that moment."""

    pricer: Pricer
    top: int
    window: float = WINDOW
    ceiling: float = np.inf  # the first cutoff
    candidates: list[Priced] = field(default_factory=list)
    feasible: int = 0  # priced rows that fit
    decided: int = 0  # layouts that were priced or pruned
    complete: bool = True

    def __post_init__(self) -> None:
        self.space = self.pricer.space
        axes = np.stack([self.space.core[key] for key in ("tp", "pp", "ep")])
        distinct, self.kind_of_core = np.unique(axes, axis=1, return_inverse=True)
        self.best = np.full(distinct.shape[1] * 3, np.inf)  # score of every kind of layout, see `kinds`
        self.cutoff = self.ceiling  # rows with a bound above this are pruned

    def run(
        self, tell: Tell | None = None, stop: Stop | None = None, only: np.ndarray | None = None, batch: int = 128
    ) -> None:
        """Searches all cores (or `only` these), lowest bound first, `batch` of them at once."""
        cores = np.arange(self.space.cores) if only is None else only
        if not len(cores):
            return
        if self.ceiling == np.inf:
            self._seed(cores)
        bound = self.pricer.bounds
        order = cores[np.argsort(bound[cores], kind="stable")]
        for start in range(0, len(order), batch):
            if stop is not None and stop():
                self.complete = False
                return
            cores = order[start : start + batch]
            if bound[cores[0]] > self.cutoff:
                break
            self._search_cores(cores[bound[cores] <= self.cutoff])
            self.decided += int(self.space.sizes[cores].sum())
            if tell is not None:
                tell(start + len(cores), len(order))
        self.decided = int(self.space.sizes[order].sum())
        if tell is not None:
            tell(len(order), len(order))

    def _spread_pipes(self, cores: np.ndarray) -> Rows:
        """Cores with their schedules, without the rows whose bound is above the cutoff."""
        rows = self.space.spread_pipes(self.space.bare(cores))
        if not len(rows):
            return rows
        table = self.space.table(rows)
        set_no_extras(table)
        times = self.pricer.step(table)
        parts = ("compute", "tp_exposed", "cp_exposed", "ep_exposed", "pp_bubble", "pp_exposed")
        return rows.take(self.pricer.bound(times, parts) <= self.cutoff)

    @property
    def has_plain(self) -> bool:
        """Whether the space has every layout without recomputation and offload too, mostly the fastest."""
        return self.space.recomputes[0][0] == "none" and OFFLOADS[self.space.offloads[0]] == "none"

    def _seed(self, cores: np.ndarray) -> None:
        """Sets the first cutoff from common layouts; the search prices the best of them again."""
        core = {key: values[cores] for key, values in self.space.core.items()}
        usual = (core["cp"] == core["cp"].min()) & (core["sp"] == (core["tp"] > 1))
        rows = self.space.spread_pipes(self.space.bare(cores[usual] if usual.any() else cores))
        names = [SCHEDULES.index(name) for name in ("1f1b", "interleaved")]
        common = np.isin(self.space.pipe["schedule"][rows.pipe], names)
        rows = rows.take(common) if common.any() else rows
        rows = self.space.spread_shards(rows)
        plain = self.space.shard["dp_replicate"][rows.shard] == 1
        rows = self.space.spread_recomputes(rows.take(plain) if plain.any() else rows)
        rows = rows if self.has_plain else self.space.spread_offloads(rows)
        if len(rows) > MAX_SEEDS:
            rows = rows.take(np.linspace(0, len(rows) - 1, MAX_SEEDS).astype(int))
        if len(rows):
            before = self.pricer.priced
            self._update_cutoff(self.pricer.price(rows))
            self.pricer.priced = before

    def _search_cores(self, cores: np.ndarray) -> None:
        rows = self.space.spread_shards(self._spread_pipes(cores))
        if not self.has_plain:  # the axes are fixed so that no row bounds the others
            rows = self.space.spread_offloads(self.space.spread_recomputes(rows))
        if not len(rows):
            return
        rows = self._record(self.pricer.price(rows, self.cutoff))
        if len(rows) and self.has_plain:
            self._price_lean(rows.take(self.pricer.may_fit(rows)))

    def _price_lean(self, rows: Rows) -> None:
        """Prices rows that don't fit with every recomputation, and with every offload if still too large."""
        recomputed = self.space.spread_recomputes(rows)
        if not len(recomputed):
            return
        recomputed = recomputed.take(recomputed.recompute > 0)
        if len(recomputed):
            rows = Rows.join([rows, self._record(self.pricer.price(recomputed, self.cutoff))])
        offloaded = self.space.spread_offloads(rows)
        offloaded = offloaded.take(offloaded.offload > 0)
        if len(offloaded):
            self._record(self.pricer.price(offloaded, self.cutoff))

    def _record(self, priced: Priced) -> Rows:
        """Adds priced rows to the candidates; returns those within the cutoff that don't fit."""
        self.feasible += int(priced.fits.sum())
        self._update_cutoff(priced)
        near = priced.take(priced.score <= self.cutoff)
        self.candidates.append(near)
        return near.rows.take(~near.fits)

    def _update_cutoff(self, priced: Priced) -> None:
        """Updates the best score of every kind of layout, and with them the cutoff."""
        fitting = priced.take(priced.fits)
        if not len(fitting):
            return
        np.minimum.at(self.best, self.kinds(fitting.rows), fitting.score)
        scores = np.sort(self.best)[: self.top]
        last = float(scores[-1]) if len(scores) == self.top else np.inf
        cutoff = max(scores[0] * self.window, min(last, scores[0] * MAX_WINDOW)) * (1 + 1e-9)
        self.cutoff = min(cutoff, self.ceiling)

    def kinds(self, rows: Rows) -> np.ndarray:
        """A number for the kind of each row's layout: its tp, pp, ep, and sharding (nothing, states, all)."""
        several = self.space.core["dp"][rows.core] * self.space.core["cp"][rows.core] > 1  # else nothing is sharded
        shard = several * np.array([0, 1, 1, 2])[self.space.shard["zero_stage"][rows.shard]]
        return np.asarray(self.kind_of_core[rows.core] * 3 + shard)

    def ranked(self, priced: Priced) -> np.ndarray:
        """Indices that sort the rows by score (to a millionth), then by simplicity."""
        space, rows = self.space, priced.rows
        pipe = [space.pipe["virtual_stages"][rows.pipe], SCHEDULE_ORDER[space.pipe["schedule"][rows.pipe]]]
        core = [space.core[key][rows.core] for key in ("micro_batch", "cp")]
        shard = [space.shard[key][rows.shard] for key in ("dp_replicate", "zero_stage")]
        keys = (*pipe, rows.recompute, *core, *shard, rows.offload)  # np.lexsort: the last key comes first
        return np.lexsort((*keys, np.round(np.log(priced.score) * 1e6)))

"""Branch and bound over the legal layouts of a run: each is priced, or pruned by a lower bound on its score or memory.

    bound of a core                compute + exposed tp, cp + host     no pipeline, sharding, recomputation
    of (core, pipe, offload)       + bubble, pp and ep messages        states shared by most ranks; and the memory
                                   + optimizer, offload                that no sharding or recomputation goes below;
                                                                       while nothing has fit, the host's as well
    (..., recomputation)           the same with it: where no sharding fits, or all are too slow, none is priced
    (core, pipe, shard, offload)   priced; recomputation only adds time
    rows that don't fit            with the recomputations that are left: a first rank's memory, the time less the
                                   ends of a pipeline, all memory, the whole time

A row is pruned only if its bound is above `cutoff` (the best score so far times WINDOW, or that of the K-th kind of
layout), if it can't fit, or if it offloads what fits without. So the best is exact, and the Pareto set is exact up to
layouts WINDOW times slower. comparisons/search_equals_all.py prices everything, and compares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from scalewright.plan.request import OFFLOADS
from scalewright.plan.search.pricer import Pipes, Priced, Pricer, batches
from scalewright.plan.search.space import AXES, Rows
from scalewright.spec.schedules.kinds import KINDS

WINDOW, MAX_WINDOW = 1.10, 1.5
# A schedule's order among layouts of equal score: 1F1B, the usual one, before GPipe, then the complex ones
SCHEDULE_ORDER = np.array([2 * kind.complexity + (name != "1f1b") for name, kind in KINDS.items()])
SEEDS = 400  # pairs of core and pipe with a recomputation, best bounds first, that are priced for a first cutoff
FIRST, MOST = 4096, 32768  # such pairs that are looked at together: numpy's calls cost as much as thousands of rows
Tell = Callable[[int, int], None]  # (layouts done, of so many)
Stop = Callable[[], bool]  # true ends the search
Wanted = Callable[[Rows, bool], np.ndarray]  # a mask of the rows that are looked for, and whether they are sharded

# Of rows that don't fit as they are, or aren't known to, the numbers: of pairs of core and pipe, of single rows
Needy = tuple[np.ndarray, np.ndarray]


@dataclass
class Finder:
    """The search; `candidates` are the priced rows that fit, with scores up to the cutoff of that moment."""

    pricer: Pricer
    top: int
    window: float = WINDOW
    ceiling: float = np.inf  # the first cutoff
    margin: float = 0.0  # within which a simpler layout is preferred
    wanted: Wanted | None = None
    candidates: list[Priced] = field(default_factory=lambda: [Priced.none()])
    feasible: int = 0  # priced rows that fit
    decided: int = 0  # layouts that were priced or pruned
    complete: bool = True

    def __post_init__(self) -> None:
        self.space = self.pricer.space
        axes = np.stack([self.space.core[key] for key in ("tp", "pp", "ep")])
        distinct, self.kind_of_core = np.unique(axes, axis=1, return_inverse=True)
        self.best = np.full(distinct.shape[1] * 3, np.inf)  # score of every kind of layout, see `kinds`
        self.cutoff = self.ceiling  # rows with a bound above this are pruned
        self.front = Priced.none()  # of the candidates
        # The best score of every value of an axis, for the reasons against it
        self.best_of = [
            (part, np.unique(values, return_inverse=True)[1], np.full(len(np.unique(values)), np.inf))
            for part, columns in (("core", self.space.core), ("pipe", self.space.pipe), ("shard", self.space.shard))
            for axis, values in columns.items() if axis in AXES
        ]  # fmt: skip
        for part, many in (("offload", len(self.space.offloads)), ("recompute", len(self.space.recomputes))):
            self.best_of.append((part, np.arange(many), np.full(many, np.inf)))

    def run(self, tell: Tell | None = None, stop: Stop | None = None, only: np.ndarray | None = None) -> None:
        """Searches all cores (or `only` these), lowest bound first, some thousands of their pipes at once."""
        cores = np.arange(self.space.cores) if only is None else only
        if not len(cores):
            return
        bound = self.pricer.bounds
        order = cores[np.argsort(bound[cores], kind="stable")]
        self._seed(order)
        counts = np.array([self.space.pipes[int(pp)][1] for pp in self.space.core["pp"][order]])
        start, many = 0, FIRST if self.ceiling == np.inf else MOST
        while start < len(order):
            if stop is not None and stop():
                self.complete = False
                return
            end = start + max(1, int(np.searchsorted(np.cumsum(counts[start:]), many, side="right")))
            cores, many = order[start:end], min(2 * many, MOST)
            if bound[cores[0]] > self.cutoff:
                break
            self._search_cores(cores[bound[cores] <= self.cutoff])
            self.pricer.forget()
            self.decided += int(self.space.sizes[cores].sum())
            if tell is not None:
                tell(end, len(order))
            start = end
        self.decided = int(self.space.sizes[order].sum())
        if tell is not None:
            tell(len(order), len(order))

    @property
    def fitting(self) -> Priced:
        """All candidates so far."""
        return Priced.join(self.candidates)

    @property
    def has_plain(self) -> bool:
        """Whether the space has every layout without recomputation and offload too, mostly the fastest."""
        return self.space.recomputes[0][0] == "none" and OFFLOADS[self.space.offloads[0]] == "none"

    def _seed(self, order: np.ndarray) -> None:
        """Sets the first cutoff: of the lowest bounds with a recomputation that may fit, all shardings are priced."""
        if self.ceiling < np.inf or not self.has_plain:
            return
        counts = np.cumsum([self.space.pipes[int(pp)][1] for pp in self.space.core["pp"][order]])
        for many in (8 * SEEDS, 64 * SEEDS):  # where little fits, further down
            cores = order[: 1 + int(np.searchsorted(counts, many))]
            pipes = self.pricer.bound_pipes(self.space.spread_pipes(self.space.bare(cores)), np.inf)
            ways = self.space.spread_recomputes(self._ways(pipes, np.zeros(1, dtype=np.intp))[0])
            ways = ways.take(self.pricer.may_fit(ways))
            ways = ways.take(np.argsort(self.pricer.bound_ways(ways)[1], kind="stable"))
            turn = _turns(self.kind_of_core[ways.core])  # the first of every tp, pp and ep come first, then the second
            rows = self.space.spread_shards(ways.take(np.argsort(turn, kind="stable")[:SEEDS]))
            plain = self.space.shard["dp_replicate"][rows.shard] == 1
            rows = rows.take(plain) if plain.any() else rows
            before = self.pricer.priced
            self._update_cutoff(self.pricer.price_fitting(rows))
            self.pricer.priced = before
            if self.cutoff < np.inf:
                return

    def _ways(self, pipes: Pipes, offloads: np.ndarray, small: Rows | None = None) -> tuple[Rows, np.ndarray]:
        """Pipes with each of these offloads, and bounds on their scores: those that may be near, and may fit, as the
        `small` ones may without any offload."""
        every = np.tile(np.arange(len(pipes[0])), len(offloads))
        rows, bound, slow = pipes[0].take(every), pipes[1][every], pipes[2][every]
        rows.offload = np.repeat(offloads, len(pipes[0]))
        if not len(rows):
            return rows, bound
        leanest = replace(rows, recompute=self.space.leanest[rows.pipe])  # which leaves least to go to a host and back
        bound = bound + self.pricer.states_bound(leanest, slow)
        near = np.flatnonzero(bound <= self.cutoff)
        if small is None:
            near = near[self.pricer.may_ever_fit(rows.take(near))]
            return rows.take(near), bound[near]
        may = np.isin(self.space.number(rows.take(near)), self.space.number(small))
        may[~may] = self.pricer.may_ever_fit(rows.take(near[~may]))
        near = near[may]
        if self.cutoff == np.inf:  # where nothing has fit so far
            near = near[self.pricer.host_may_fit(rows.take(near))]
        return rows.take(near), bound[near]

    def _search_cores(self, cores: np.ndarray) -> None:
        space, rows = self.space, self.space.spread_pipes(self.space.bare(cores))
        pipes = self.pricer.bound_pipes(
            rows if self.wanted is None else rows.take(self.wanted(rows, False)), self.cutoff
        )
        plain = np.array([OFFLOADS[number] == "none" for number in space.offloads])
        needy: Needy | None = None  # null: no row is known to need no offload
        small: Rows | None = None
        for offloads in (np.flatnonzero(plain), np.flatnonzero(~plain)):
            ways, bound = self._ways(pipes, offloads, small)
            short = self._price(ways.take(np.argsort(bound, kind="stable")), needy)
            if plain[offloads].any():  # what fits without, or is too slow as it is, gains nothing
                small, pairs = ways, space.number(pipes[0])
                needy = pairs[~np.isin(pairs, space.number(ways))], space.number(short)

    def _price(self, ways: Rows, needy: Needy | None) -> Rows:
        """Prices ways with all shardings, and those that are too large with every recomputation; returns these, as they
        were, less some that are too slow."""
        if self.space.recomputes[0][0] != "none":  # no row bounds the others
            return self._sort_out(self.space.spread_recomputes(self._sharded(ways, needy)))
        # with some sharding, as they are; of activations that move recomputation leaves fewer
        may = self.pricer.may_fit(ways) & ~self.space.moves[ways.offload]
        too_large = self._sharded(ways.take(~may), needy)
        short = Rows.join([self._sort_out(self._sharded(ways.take(may), needy)), too_large])
        self._price_variants(ways, short)
        return short

    def _sharded(self, ways: Rows, needy: Needy | None) -> Rows:
        """Ways with every sharding: those that are wanted, and if they offload, that may need it."""
        space = self.space
        rows = space.legal_offloads(space.spread_shards(ways))
        if self.wanted is not None:
            rows = rows.take(self.wanted(rows, True))
        if needy is None:
            return rows
        gathers = space.moves[rows.offload] & (space.core["sp"][rows.core] > 0)
        pairs = space.number(replace(rows, shard=np.zeros_like(rows.shard)))
        return rows.take(gathers | np.isin(pairs, needy[0]) | np.isin(space.number(rows), needy[1]))

    def _sort_out(self, rows: Rows) -> Rows:
        """Prices rows and records those that fit; returns the others."""
        parts = [rows.take(slice(0, 0))]
        for part in batches(rows):
            fitting, short = self.pricer.sort_out(part, self.cutoff)
            self._record(fitting)
            parts.append(short)
        return Rows.join(parts)

    def _price_variants(self, ways: Rows, short: Rows) -> None:
        """Prices rows that don't fit with every recomputation that may be among the best, or on the front."""
        space, many = self.space, len(self.space.recomputes)
        variants = space.spread_recomputes(ways.take(np.isin(space.way(ways), space.way(short))))
        variants = variants.take((variants.recompute > 0) | space.moves[variants.offload])
        variants, _ = self.pricer.bound_ways(variants, self.cutoff)
        variants = variants.take(self.pricer.may_fit(variants))
        names = np.unique(space.way(variants))
        left = np.zeros((len(names) + 1, many), dtype=bool)  # recomputations of each way; the last of all others
        left[np.searchsorted(names, space.way(variants)), variants.recompute] = True
        at = np.searchsorted(names, space.way(short))
        at[~np.isin(space.way(short), names)] = len(names)
        owner, recompute = np.nonzero(left[at])
        rows = replace(short.take(owner), recompute=recompute)
        self._record(self.pricer.price_fitting(rows, self.cutoff, self._hopeful))

    def _hopeful(self, rows: Rows, score: np.ndarray, peak: np.ndarray) -> np.ndarray:
        """Rows that, if they were as fast and as small as this, would be near the best of their kind, the best of a
        value of some axis, or on the front."""
        may = score <= self.best[self.kinds(rows)] * (1 + self.margin) * (1 + 1e-9)
        for part, index, best in self.best_of:
            may |= score < best[index[getattr(rows, part)]]
        if self.window == 1.0:
            return np.asarray(may)
        i = np.searchsorted(self.front.score, score * (1 + 1e-12), side="right") - 1
        return np.asarray(may | (i < 0) | (peak < self.front.peak[np.maximum(i, 0)]) if len(self.front) else may | True)

    def _record(self, priced: Priced) -> None:
        """Adds priced rows, all of which fit, to the candidates."""
        self.feasible += len(priced)
        self._update_cutoff(priced)
        self.candidates.append(near := priced.take(priced.score <= self.cutoff))
        if self.window > 1.0 and len(near):
            both = Priced.join([self.front, near])
            self.front = both.take(front_indices(both.score, both.peak))

    def _update_cutoff(self, fitting: Priced) -> None:
        """Updates the best score of every kind of layout and of every value of an axis, and the cutoff."""
        if not len(fitting):
            return
        np.minimum.at(self.best, self.kinds(fitting.rows), fitting.score)
        for part, index, best in self.best_of:
            np.minimum.at(best, index[getattr(fitting.rows, part)], fitting.score)
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


def _turns(values: np.ndarray) -> np.ndarray:
    """How many earlier elements have each element's value."""
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    turns = np.empty(len(values), dtype=np.intp)
    turns[order] = np.arange(len(values)) - np.searchsorted(ranked, ranked)
    return turns


def front_indices(score: np.ndarray, peak: np.ndarray) -> np.ndarray:
    """Indices of the points on the front, by rising score."""
    order = np.lexsort((peak, score))
    least = np.minimum.accumulate(peak[order])
    better = np.concatenate([[True], peak[order][1:] < least[:-1] * (1 - 1e-6)])
    return np.asarray(order[better])

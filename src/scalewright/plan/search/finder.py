"""The best layout of a run: every legal one is priced, or shown to be worse by what is certain of it.

    bound of a core             compute + exposed tp, cp + host     its plainest row, nothing else counted
    bound of (core, pipe)       and bubble, messages, experts       sharding left out
    (core, pipe, shard)         priced: recomputation and offload only add to it
    those that don't fit        priced with every recomputation, and every offload where that isn't enough

A row is left out only when its bound is above `edge`: the best found so far times WINDOW, or the K-th of the
different layouts. So the best is exact, and the Pareto set is exact up to layouts WINDOW times slower.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from scalewright.plan.cost.table import RECOMPUTE, Table
from scalewright.plan.cost.timeline import Step, step
from scalewright.plan.request import OFFLOADS, SCHEDULES
from scalewright.plan.search.pricer import BATCH, Priced, Pricer
from scalewright.plan.search.space import Rows
from scalewright.spec.schedules.kinds import KINDS

WINDOW, WIDEST = 1.10, 1.5
# A schedule's place among equals: 1F1B, as everyone runs it, before GPipe, then what is less plain
PLAINEST = np.array([2 * kind.complexity + (name != "1f1b") for name, kind in KINDS.items()])
MOST_SEEDS = 60_000  # rows that are priced for a first edge
Tell = Callable[[int, int], None]
Stop = Callable[[], bool]


@dataclass
class Finder:
    """The search itself; `found` are the rows that were priced and are no worse than the edge was then."""

    pricer: Pricer
    top: int
    window: float = WINDOW
    ceiling: float = np.inf  # what no layout of interest exceeds
    found: list[Priced] = field(default_factory=list)
    feasible: int = 0  # of the priced rows, those that fit
    decided: int = 0  # layouts that were priced, or whose bound is above the edge
    complete: bool = True

    def __post_init__(self) -> None:
        self.space = self.pricer.space
        axes = np.stack([self.space.core[key] for key in ("tp", "pp", "ep")])
        unlike, self.kind_of_core = np.unique(axes, axis=1, return_inverse=True)
        self.best = np.full(unlike.shape[1] * 3, np.inf)  # score of every kind of layout, see `kinds`
        self.edge = self.ceiling  # what a layout must not exceed to matter

    def run(
        self,
        tell: Tell | None = None,
        stop: Stop | None = None,
        only: np.ndarray | None = None,
        at_once: int = 128,
    ) -> None:
        """Goes through all cores (or `only` some), most promising first."""
        some = np.arange(self.space.cores) if only is None else only
        if not len(some):
            return
        if self.ceiling == np.inf:
            self._seed(some)
        bound = self.bounds
        order = some[np.argsort(bound[some], kind="stable")]
        for start in range(0, len(order), at_once):
            if stop is not None and stop():
                self.complete = False
                return
            some = order[start : start + at_once]
            if bound[some[0]] > self.edge:
                break
            near = some[bound[some] <= self.edge]
            self._cores(near)
            self.decided += int(self.space.sizes[some].sum())
            if tell is not None:
                tell(start + len(some), len(order))
        self.decided = int(self.space.sizes[order].sum())
        if tell is not None:
            tell(len(order), len(order))

    # -- bounds -----------------------------------------------------------------------------------

    @property
    def bounds(self) -> np.ndarray:
        """What every layout of a core costs at least; found once."""
        if self.pricer.bounds is None:
            self.pricer.bounds = self._core_bounds()
        return self.pricer.bounds

    def _core_bounds(self) -> np.ndarray:
        """What every layout of a core costs at least."""
        space, found = self.space, []
        least = {pp: space.pipe["stages"][at : at + n].min(0) for pp, (at, n) in space.pipes.items()}
        depths, inverse = np.unique(space.core["pp"], return_inverse=True)
        stages = np.array([least[int(pp)] for pp in depths])[inverse]
        for start in range(0, space.cores, BATCH):
            part = np.arange(start, min(start + BATCH, space.cores))
            table = space.table(space.bare(part))
            table.stages, table.virtual_stages = stages[part], np.ones(len(part))
            _without_extras(table)
            least_of = []
            for kind in ("1f1b", "dualpipe"):  # the ends of the model on a rank each, or half of both on each
                table.schedule = np.full(len(part), SCHEDULES.index(kind))
                taken = step(table, self.pricer.facts, self.pricer.prices, self.pricer.c)
                least_of.append(self._certain(taken, ("compute", "tp_exposed", "cp_exposed")))
            found.append(np.minimum(*least_of))
        return np.concatenate(found)

    def _certain(self, taken: Step, parts: tuple[str, ...]) -> np.ndarray:
        """The score of some parts, and of the wait for the host."""
        host = taken.parts["other"] - taken.detail["fixed"] - taken.detail["late"]
        score = self.pricer.objective.score({part: taken.parts[part] for part in parts})
        return np.asarray(score + self.pricer.objective.weights["other"] * np.maximum(host, 0.0))

    def _pipes(self, cores: np.ndarray) -> Rows:
        """Cores with the pipes that aren't certain to be worse than the edge."""
        rows = self.space.spread_pipes(self.space.bare(cores))
        if not len(rows):
            return rows
        table = self.space.table(rows)
        _without_extras(table)
        taken = step(table, self.pricer.facts, self.pricer.prices, self.pricer.c)
        parts = ("compute", "tp_exposed", "cp_exposed", "ep_exposed", "pp_bubble", "pp_exposed")
        return rows.take(self._certain(taken, parts) <= self.edge)

    @property
    def has_plain(self) -> bool:
        """Whether every row has a form without recomputation and offload, mostly the fastest."""
        return self.space.reruns[0][0] == "none" and OFFLOADS[self.space.offloads[0]] == "none"

    # -- pricing ----------------------------------------------------------------------------------

    def _seed(self, cores: np.ndarray) -> None:
        """A first edge: the usual layouts of the usual cores; what is best is priced again later."""
        core = {key: values[cores] for key, values in self.space.core.items()}
        usual = (core["cp"] == core["cp"].min()) & (core["sp"] == (core["tp"] > 1))
        rows = self.space.spread_pipes(self.space.bare(cores[usual] if usual.any() else cores))
        names = [SCHEDULES.index(name) for name in ("1f1b", "interleaved")]
        kept = np.isin(self.space.pipe["schedule"][rows.pipe], names)
        rows = rows.take(kept) if kept.any() else rows
        rows = self.space.spread_shards(rows)
        plain = self.space.shard["dp_replicate"][rows.shard] == 1
        rows = self.space.spread_reruns(rows.take(plain) if plain.any() else rows)
        rows = rows if self.has_plain else self.space.spread_offloads(rows)
        if len(rows) > MOST_SEEDS:
            rows = rows.take(np.linspace(0, len(rows) - 1, MOST_SEEDS).astype(int))
        if len(rows):
            self._note(self.pricer.price(rows))
            self.pricer.priced -= len(rows)

    def _cores(self, cores: np.ndarray) -> None:
        rows = self.space.spread_shards(self._pipes(cores))
        if not self.has_plain:  # the axes are fixed so that no row bounds the others
            rows = self.space.spread_offloads(self.space.spread_reruns(rows))
        if not len(rows):
            return
        plain = self.pricer.price(rows)
        self._keep(plain)
        open_rows = plain.take((~plain.fits) & (plain.score <= self.edge))
        rows = open_rows.rows
        if not len(rows) or not self.has_plain:
            return
        rows = rows.take(self.pricer.may_fit(rows))
        self._lean(rows)

    def _lean(self, rows: Rows) -> None:
        """Rows that don't fit as they are: every recomputation, and every offload where that isn't enough."""
        again = self.space.spread_reruns(rows)
        if not len(again):
            return
        again = again.take(again.rerun > 0)
        if len(again):
            priced = self.pricer.price(again)
            self._keep(priced)
            left = priced.take((~priced.fits) & (priced.score <= self.edge)).rows
            rows = Rows.join([rows, left])
        away = self.space.spread_offloads(rows)
        away = away.take(away.offload > 0)
        if len(away):
            self._keep(self.pricer.price(away))

    def _keep(self, priced: Priced) -> None:
        self.feasible += int(priced.fits.sum())
        self._note(priced)
        self.found.append(priced.take(priced.score <= self.edge))

    def _note(self, priced: Priced) -> None:
        """The best of every kind of layout so far, and from it the edge."""
        fit = priced.take(priced.fits)
        if not len(fit):
            return
        np.minimum.at(self.best, self.kinds(fit.rows), fit.score)
        known = np.sort(self.best)[: self.top]
        last = float(known[-1]) if len(known) == self.top else np.inf
        edge = max(known[0] * self.window, min(last, known[0] * WIDEST)) * (1 + 1e-9)
        self.edge = min(edge, self.ceiling)

    def kinds(self, rows: Rows) -> np.ndarray:
        """What makes layouts really different: tp, pp, ep, and what they shard (nothing, states, all)."""
        shard = np.array([0, 1, 1, 2])[self.space.shard["zero_stage"][rows.shard]]
        alone = self.space.core["dp"][rows.core] * self.space.core["cp"][rows.core] == 1
        shard = np.where(alone, 0, shard)  # over one rank nothing is sharded
        return np.asarray(self.kind_of_core[rows.core] * 3 + shard)

    def ranked(self, priced: Priced) -> np.ndarray:
        """The rows' order: by score, and of equals (to a millionth) the plainest first."""
        space, rows = self.space, priced.rows
        pipe = [space.pipe["virtual_stages"][rows.pipe], PLAINEST[space.pipe["schedule"][rows.pipe]]]
        core = [space.core[key][rows.core] for key in ("micro_batch", "cp")]
        shard = [space.shard[key][rows.shard] for key in ("dp_replicate", "zero_stage")]
        plain = (*pipe, rows.rerun, *core, *shard, rows.offload)  # the last tells most
        return np.lexsort((*plain, np.round(np.log(priced.score) * 1e6)))


def _without_extras(table: Table) -> None:
    """Nothing recomputed, and activations offloaded: in a bound, sp's tokens aren't gathered again either."""
    table.recompute = np.full(len(table), RECOMPUTE.index("none"))
    table.offload = np.full(len(table), OFFLOADS.index("activations"))

"""What a search gives: layouts with their predictions, and the plan that they make up.

Choice    a layout, what it costs, whether `train` runs it        Plan    the best, the front, the reasons
Maker     rows of a space as choices
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from scalewright.plan.capabilities import why_untrainable
from scalewright.plan.constants import Constants
from scalewright.plan.predict import Prediction, layout_keys, predict_table
from scalewright.plan.request import Request, from_layout
from scalewright.plan.search.objective import Objective
from scalewright.plan.search.pricer import Priced
from scalewright.plan.search.space import Space
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec

if TYPE_CHECKING:
    from scalewright.plan.search.beyond import Beyond


@dataclass(frozen=True)
class Choice:
    """One layout of a plan: what it costs, and whether `train` runs it."""

    prediction: Prediction
    layout: Layout
    untrainable: str | None
    score: float
    value: float  # what the objective asks for: see Objective.unit

    @property
    def trainable(self) -> bool:
        """Whether `train` runs this layout today."""
        return self.untrainable is None

    @property
    def keys(self) -> dict[str, Any]:
        """The layout as files and flags have it, dp beside it."""
        keys = {**self.layout.dump(), "dp": self.layout.dp}
        return {key: keys[key] for key in layout_keys(self.prediction.request)}

    def dump(self) -> dict[str, Any]:
        """The keys of `predict`, and whether it can be trained."""
        return {
            **self.prediction.dump(),
            "layout": self.keys,
            "trainable": self.trainable,
            "untrainable": self.untrainable,
            "objective_value": self.value,
        }


@dataclass
class Plan:
    """What a search found."""

    model: ModelSpec
    cluster: ClusterSpec
    devices: int
    seq_len: int
    global_batch: int
    objective: Objective
    headroom: float | None  # None: layouts fit up to the p90 of their memory
    best: list[Choice]
    trainable: Choice | None  # the best that `train` runs; None when none can be found
    pareto: list[Choice]
    why_not: list[dict[str, Any]]
    evaluated: int  # layouts that were judged: priced, or certain to be worse by a bound
    priced: int  # of them, those that were priced in full
    space: int  # layouts that there are
    feasible: int  # of the priced ones, those that fit
    seconds: float
    complete: bool
    template: Request
    assumed: list[str] = field(default_factory=list)
    constants: Constants | None = None
    asked: dict[str, Any] = field(default_factory=dict)  # the arguments of the search, to search again
    fastest: Choice | None = None  # where the first of `best` is simpler, and within the margin of it
    beyond: list[Beyond] = field(default_factory=list)  # what the trainer can't run, and would gain by

    def simpler_than(self) -> dict[str, Any] | None:
        """The layout that the first was preferred to, and what that costs; null when it is the fastest."""
        if self.fastest is None:
            return None
        cost = 100 * (self.best[0].score / self.fastest.score - 1)
        seconds = self.fastest.prediction.step_time_s
        return {"layout": self.fastest.keys, "step_time_s": seconds, "cost_pct": cost}

    def dump(self) -> dict[str, Any]:
        """Plain data: the keys of `plan --json`."""
        return {
            "model": self.model.name,
            "cluster": self.cluster.name,
            "devices": self.devices,
            "seq_len": self.seq_len,
            "global_batch": self.global_batch,
            "objective": self.objective.name,
            "objective_unit": self.objective.unit,
            "headroom": self.headroom or 0.0,
            "memory_filter": "p90" if self.headroom is None else "p50",
            "evaluated": self.evaluated,
            "priced": self.priced,
            "space": self.space,
            "feasible": self.feasible,
            "seconds": self.seconds,
            "complete": self.complete,
            "margin": self.asked.get("margin", 0.0),
            "best": [choice.dump() for choice in self.best],
            "beyond": [one.dump() for one in self.beyond],
            "best_trainable": self.trainable.dump() if self.trainable else None,
            "pareto": [choice.dump() for choice in self.pareto],
            "why_not": self.why_not,
            "assumed": self.assumed,
        }


@dataclass(frozen=True)
class Maker:
    """Rows as choices: the layout is parsed by the spec, and priced on the path of a single one."""

    model: ModelSpec
    cluster: ClusterSpec
    template: Request
    space: Space
    aim: Objective
    asked: Mapping[str, Any]  # the arguments of the search

    def of(self, space: Space) -> Maker:
        """The same, of another space."""
        return replace(self, space=space)

    def choices(self, priced: Priced) -> list[Choice]:
        """Choices in the rows' order."""
        layouts = [Layout.parse(self.space.keys(priced.rows, at)) for at in range(len(priced))]
        requests = [self._request(layout) for layout in layouts]
        found: Iterable[Prediction] = predict_table(requests, self.asked["c"]) if requests else ()
        every = zip(found, layouts, priced.score, strict=True)
        return [self._choice(one, layout, float(score)) for one, layout, score in every]

    def _request(self, layout: Layout) -> Request:
        trainer = (self.asked[key] for key in ("framework", "version", "options"))
        return from_layout(
            self.model, self.cluster, layout, self.template.seq_len, *trainer,
            optimizer=self.template.optimizer,
        )  # fmt: skip

    def _choice(self, prediction: Prediction, layout: Layout, score: float) -> Choice:
        why = why_untrainable(self.model, layout, self.template.seq_len, self.template.chip.kind)
        return Choice(prediction, layout, why, score, self.aim.value(score, prediction.tokens))

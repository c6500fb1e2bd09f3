"""Results of a search: layouts with their predictions, and the plan that contains them.

Choice    a layout, its cost, whether `train` runs it      Plan    the best, the Pareto front, the reasons
ChoiceMaker    converts rows of a space to choices
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from scalewright.plan.frameworks import why_untrainable
from scalewright.plan.predict import Prediction, layout_keys, predict_table
from scalewright.plan.records import LayoutKeys
from scalewright.plan.request import Request, from_question
from scalewright.plan.search.objective import Goal, Objective
from scalewright.plan.search.pricer import Priced
from scalewright.plan.search.space import MODULES, Space
from scalewright.plan.search.unusual import unusual
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.question import Question


@dataclass(frozen=True)
class Choice:
    """One layout of a plan with its prediction, and whether `train` runs it."""

    prediction: Prediction
    layout: Layout
    untrainable: str | None  # why `train` doesn't run it
    score: float
    value: float  # of the objective, in Objective.unit
    options: Mapping[str, str] = field(default_factory=dict)  # switches beside the layout, as `--options` has them

    @property
    def trainable(self) -> bool:
        """Whether `train` runs this layout today."""
        return self.untrainable is None

    @property
    def keys(self) -> dict[str, Any]:
        """The layout's keys as in files and flags, and dp."""
        keys = {**self.layout.dump(), "dp": self.layout.dp}
        return {key: keys[key] for key in layout_keys(self.prediction.request)}

    def facts(self) -> dict[str, object]:
        """What a plan adds to the prediction."""
        options = {"options": dict(self.options)} if self.options else {}
        keys = {"trainable": self.trainable, "untrainable": self.untrainable, "objective_value": self.value}
        return {**keys, **options, "unusual": unusual(self.prediction.request)}

    def dump(self) -> dict[str, object]:
        """The keys of `predict`, and whether it can be trained."""
        return {**self.prediction.dump(), "layout": self.keys, **self.facts()}


@dataclass(frozen=True)
class Beyond:
    """A layout that the trainer can't run and that is faster than the trainer's fastest."""

    choice: Choice
    needs: list[str]  # features of the layout that the trainer lacks
    gain_pct: float  # of speed, over the trainer's fastest


@dataclass
class Plan:
    """The result of a search."""

    question: Question
    goal: Goal
    objective: Objective
    best: list[Choice]
    trainable: Choice | None  # the best that `train` runs, if any
    pareto: list[Choice]
    evaluated: int  # layouts that were priced or pruned by a bound
    priced: int  # layouts that were priced in full
    space: int  # all legal layouts
    feasible: int  # priced layouts that fit
    complete: bool
    template: Request
    assumed: list[str]
    seconds: float = 0.0
    why_not: list[dict[str, object]] = field(default_factory=list)
    fastest: Choice | None = None  # set where best[0] is a simpler layout within the margin of it
    beyond: list[Beyond] = field(default_factory=list)  # faster layouts that the trainer can't run

    @property
    def model(self) -> ModelSpec:
        """The network."""
        return self.question.model

    def simpler_than(self) -> dict[str, object] | None:
        """The fastest layout and the cost of preferring best[0] to it; null when best[0] is the fastest."""
        if self.fastest is None:
            return None
        cost = 100 * (self.best[0].score / self.fastest.score - 1)
        strange = unusual(self.fastest.prediction.request)
        known = unusual(self.best[0].prediction.request)
        return {
            "layout": self.fastest.keys,
            "step_time_s": self.fastest.prediction.step_time_s,
            "cost_pct": cost,
            "unusual": [name for name in strange if name not in known],
        }

    def dump(self) -> dict[str, object]:
        """Plain data: the keys of `plan --json` except those of its layouts."""
        return {
            "model": self.model.name,
            "cluster": self.question.cluster.name if self.question.cluster else None,
            "devices": self.goal.devices,
            "seq_len": self.question.seq_len,
            "global_batch": self.goal.global_batch,
            "objective": self.objective.name,
            "objective_unit": self.objective.unit,
            "headroom": self.goal.headroom or 0.0,
            "memory_filter": "p90" if self.goal.headroom is None else "p50",
            "evaluated": self.evaluated,
            "priced": self.priced,
            "space": self.space,
            "feasible": self.feasible,
            "seconds": self.seconds,
            "complete": self.complete,
            "margin": self.goal.margin,
            "why_not": self.why_not,
            "assumed": self.assumed,
        }


@dataclass(frozen=True)
class ChoiceMaker:
    """Converts rows to choices: parses each layout and predicts it as `predict` does."""

    question: Question
    goal: Goal
    template: Request
    space: Space
    objective: Objective

    def choices(self, priced: Priced) -> list[Choice]:
        """Choices in the rows' order."""
        keys = [self.space.keys(priced.rows, i) for i in range(len(priced))]
        options = [_modules_of(key) for key in keys]
        layouts = [
            Layout.parse({**key, **({"recompute": "selective"} if own else {})})
            for key, own in zip(keys, options, strict=True)
        ]
        questions = [replace(self.question, options={**self.question.options, **own}) for own in options]
        asked = (from_question(question, layout) for question, layout in zip(questions, layouts, strict=True))
        requests = [replace(request, compress=self.template.compress) for request in asked]  # as the space was priced
        predictions = predict_table(requests) if requests else ()
        template = self.template
        why = [why_untrainable(template.model, layout, template.seq_len, template.chip.kind) for layout in layouts]
        scores = priced.score.tolist()
        values = [self.objective.value(score, p.tokens) for score, p in zip(scores, predictions, strict=True)]
        return list(map(Choice, predictions, layouts, why, scores, values, options))


def _modules_of(keys: LayoutKeys) -> dict[str, str]:
    """The options of a row whose recomputation is of modules."""
    kind = keys["recompute"]
    return {MODULES: "+".join(kind[MODULES])} if isinstance(kind, dict) and MODULES in kind else {}

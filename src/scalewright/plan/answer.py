"""The answers of `predict` and `plan`, a record each; their `dump()` makes the keys of `--json`.

PredictionAnswer    the prediction (plan/predict.py), what was assumed, the whole run's total
    .reasons        what would help, the evidence (plan/explain.py), the gain of each axis (plan/ablation.py)
ChoiceAnswer        the same of a plan's layout, and whether `train` runs it
PlanAnswer          the plan (plan/search/choices.py) with the answers of its layouts; what was asked besides
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

from scalewright.plan.ablation import ablation
from scalewright.plan.chips import Chip
from scalewright.plan.cost.memory import GIB
from scalewright.plan.explain import evidence, smallest_fix, what_if
from scalewright.plan.frameworks import OURS, of_framework, why_untrainable
from scalewright.plan.predict import Prediction, layout_keys, together
from scalewright.plan.records import Fix, Gain, Link, Nearby, Removed, Stage, Total
from scalewright.plan.request import Request
from scalewright.plan.search.choices import Choice, Plan
from scalewright.plan.search.precisions import LowPrecision
from scalewright.plan.stages import stages
from scalewright.plan.whole_run import WholeRun
from scalewright.spec.layout import Layout
from scalewright.spec.step_parts import TOO_LARGE

YOURS = (  # what is shown of a layout to beat
    "layout", "fits", "risk", "step_time_s", "tokens_per_s", "mfu", "memory_gib", "bottleneck", "smallest_fix",
)  # fmt: skip


@dataclass(frozen=True)
class Reasons:
    """Why a layout costs what it does, and on what evidence: about forty other requests are priced for it."""

    buys: list[Removed]
    what_if: list[Gain]
    smallest_fix: Fix | None
    evidence: dict[str, object]
    lacks: list[str]
    stages: list[Stage]


@dataclass(frozen=True)
class PredictionAnswer:
    """One layout's cost; `unread`: settings of another trainer's file that have no word of ours."""

    prediction: Prediction
    assumed: Sequence[str]
    reasons: Reasons | None = None
    total: Total | None = None  # of the whole run, where its tokens are known
    unread: Sequence[dict[str, object]] = ()

    def dump(self) -> dict[str, object]:
        """The keys of `predict --json`."""
        prediction, reasons = self.prediction, self.reasons
        keys = prediction.dump()
        keys["model"] = {"name": prediction.request.model.name, **keys["model"]}
        keys["assumed"] = list(self.assumed)
        if reasons is not None:
            keys |= {key: value for key, value in vars(reasons).items() if key != "stages"}
        keys |= setting(prediction.request)
        if reasons is not None:
            keys["stages"] = reasons.stages
        optional = {"total": self.total, "unread": self.unread}
        return keys | {key: value for key, value in optional.items() if value}


@dataclass(frozen=True)
class ChoiceAnswer:
    """One layout of a plan; `needs` and `gain_pct` are of a layout that the trainer can't run."""

    answer: PredictionAnswer
    choice: Choice
    needs: list[str] | None = None
    gain_pct: float | None = None

    def dump(self) -> dict[str, object]:
        """The keys of `predict --json`, and what a plan adds."""
        keys = self.answer.dump() | self.choice.facts()
        return keys if self.needs is None else keys | {"needs": self.needs, "gain_pct": self.gain_pct}


@dataclass(frozen=True)
class PlanAnswer:
    """A plan, its layouts' answers, its run, and what else was asked; null: it wasn't."""

    plan: Plan
    assumed: Sequence[str]
    best: Sequence[ChoiceAnswer]
    pareto: Sequence[ChoiceAnswer]
    beyond: Sequence[ChoiceAnswer]
    nearby: list[Nearby]
    trainable: ChoiceAnswer | None
    run: dict[str, object]
    run_yaml: str | None
    asked: dict[str, object] | None = None
    scaling: dict[str, object] | None = None
    written: Mapping[str, object] | None = None  # the run file's path, or why there is none
    yours: dict[str, object] | None = None  # the layout to beat
    emitted: dict[str, object] | None = None  # the user's own file in the best layout
    source: Mapping[str, object] | None = None  # the trainer and the file that the run was read from
    unread: Sequence[dict[str, object]] = ()
    precisions: Sequence[LowPrecision] = ()  # what fewer bits would gain

    def beside(self, cost: Mapping[str, Any]) -> PlanAnswer:
        """With a layout to beat, as `predict` priced it: what the best one gains on it, and single changes to it."""
        changes = [row for row in cost["what_if"] if row["kind"] == "setting" and row["gain_pct"] > 0]
        yours = {key: cost[key] for key in YOURS} | {
            "gain_pct": 100 * (self.plan.best[0].prediction.tokens_per_s / cost["tokens_per_s"] - 1),
            "changes": [row for row in changes if not row["change"].endswith(TOO_LARGE)],
        }
        theirs, searched, assumed = cost["layout"]["precision"], self.plan.template.precision, list(self.assumed)
        if theirs != searched:
            note = f"yours is priced in {theirs}, the plan in {searched}: --precision {theirs} searches in yours"
            assumed.append(note)
        return replace(self, yours=yours, assumed=assumed)

    def dump(self) -> dict[str, object]:
        """The keys of `plan --json`."""
        best, pareto, beyond = ([choice.dump() for choice in some] for some in (self.best, self.pareto, self.beyond))
        best[0]["simpler_than"] = self.plan.simpler_than()
        trainable = self.trainable.dump() if self.trainable else None
        keys = self.plan.dump() | {"assumed": list(self.assumed), "best": best, "pareto": pareto, "beyond": beyond}
        keys |= {"nearby": self.nearby, "best_trainable": trainable, "precisions": list(self.precisions)}
        asked = {"asked": self.asked, "scaling": self.scaling}
        keys |= {key: value for key, value in asked.items() if value is not None}
        keys |= {"run": self.run, "run_yaml": self.run_yaml, **(self.written or {})}
        more = {"yours": self.yours, "emitted": self.emitted, "from": self.source, "unread": list(self.unread)}
        return keys | {key: value for key, value in more.items() if value}


def answer(
    prediction: Prediction, *, run: WholeRun | None = None, explain: bool = True, **more: Any
) -> PredictionAnswer:
    """The answer of one layout; `total` only where `run` has tokens, reasons only with `explain`.

    `more`: what was `assumed`, and what of the user's file is `unread`.
    """
    return answers([prediction], run=run, explain=explain, **more)[0]


def answers(
    predictions: Sequence[Prediction],
    *,
    run: WholeRun | None = None,
    explain: bool = True,
    assumed: Sequence[str] = (),
    unread: Sequence[dict[str, object]] = (),
) -> list[PredictionAnswer]:
    """The answers of several layouts, whose reasons are priced together."""
    priced = run if run is not None and run.tokens is not None else None
    made = []
    for prediction, why in zip(predictions, reasons(predictions) if explain else repeat(None), strict=False):
        request = prediction.request
        notes = [*assumed, *request.assumed, *(priced.assumed(prediction) if priced else [])]
        made.append(PredictionAnswer(prediction, notes, why, priced.total(prediction) if priced else None, unread))
    return made


def reasons(predictions: Sequence[Prediction]) -> list[Reasons]:
    """Of each layout; measured runs are priced apart, by the constants of their own machines."""
    changes: list[Any] = together([of(p) for of in (ablation, what_if, smallest_fix) for p in predictions])
    many, proofs = len(predictions), together([evidence(p) for p in predictions])
    ways = zip(changes[:many], changes[many : 2 * many], changes[2 * many :], proofs, predictions, strict=True)
    return [
        Reasons(buys, gains, fixed, proof, lacks(p.request, layout_keys(p.request)), stages(p))
        for buys, gains, fixed, proof, p in ways
    ]


def setting(request: Request) -> dict[str, object]:
    """The sequence length, the device with its usable memory and links, the trainer and the optimizer."""
    chip, trainer = request.chip, request.framework
    return {
        "seq_len": request.seq_len,
        "device": {
            "name": chip.name,
            "kind": chip.kind,
            "per_node": chip.node,
            "memory_gib": chip.capacity / GIB,
            "usable_gib": chip.capacity * trainer.usable / GIB,  # what a trainer can allocate of it
            "links": links(chip),
        },
        "framework": trainer.name,
        "optimizer": request.optimizer.shown,
        **({"diloco": request.diloco.dump()} if request.diloco is not None else {}),
    }


def lacks(request: Request, layout: Mapping[str, Any]) -> list[str]:
    """Features of the layout that its trainer lacks; for our own trainer, why `train` can't run it."""
    kind = request.chip.kind
    if request.framework.name != OURS:
        trainer = of_framework(request.framework)
        return [*([] if trainer.runs_on(kind) else [f"{kind} support"]), *trainer.missing(layout)]
    keys = {key: value for key, value in layout.items() if key in Layout.model_fields}
    reason = why_untrainable(request.model, Layout.parse(keys, "layout"), request.seq_len, kind)
    return [] if reason is None else [reason]


def links(chip: Chip) -> list[Link]:
    """The links from the inside out: their kind, the devices that one joins (null: all), its rate."""
    levels: list[Link] = []
    if chip.domain > 1:
        levels.append({"kind": chip.link_kind, "devices": chip.domain, "bytes_per_s": chip.link_rate})
    if levels and chip.fabric_kind == "network":  # no network beyond the domain
        return levels
    return [*levels, {"kind": chip.fabric_kind, "devices": None, "bytes_per_s": chip.fabric_rate}]

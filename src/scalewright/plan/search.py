"""`plan`: every legal layout of a run is searched; the best come with predictions, the others with reasons.

model, cluster, devices, batch --> Space (plan/space.py) --> Finder (plan/finder.py) --> Plan
    best        the K best layouts that really differ (tp, pp, ep, what they shard)
    pareto      those that no other beats in both time and memory
    why_not     what costs the nearest losers (plan/why_not.py)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scalewright.plan.constants import Constants
from scalewright.plan.finder import HOST_BYTES, Finder, Priced, make_pricer
from scalewright.plan.fixed import no_layout, read_fixed
from scalewright.plan.losers import near_losers
from scalewright.plan.memory import GIB
from scalewright.plan.objective import Objective, make_objective
from scalewright.plan.pareto import pareto
from scalewright.plan.predict import Prediction, layout_keys, predict_table
from scalewright.plan.request import Request, from_layout
from scalewright.plan.shortage import too_large
from scalewright.plan.space import Fixed, Space, make_space
from scalewright.plan.trainable import untrainable
from scalewright.plan.why_not import UNLIMITED, compare
from scalewright.spec.cluster import ClusterSpec
from scalewright.spec.errors import UserError
from scalewright.spec.huggingface import why_not_running
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.schedules.action import KINDS, PLANNED_ONLY

TRAINABLE: Fixed = {
    "cp": (1,),
    "ep": (1,),
    "etp": (1,),
    "schedule": tuple(kind for kind in KINDS if kind not in PLANNED_ONLY),
}
MOST_DEVICES, MOST_BATCH, MOST_LENGTH = 10**7, 10**9, 10**8


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
    headroom: float
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

    def again(self, **changes: Any) -> Plan:
        """The same search with other arguments, without reasons; `fixed` comes on top of what was fixed."""
        asked = {**self.asked, "explain": False, **changes}
        asked["fixed"] = {**(self.asked["fixed"] or {}), **(asked["fixed"] or {})}
        return search(self.model, self.cluster, **asked)

    @property
    def usable_gib(self) -> float:
        """GiB of a device that a layout may take: what a device really allocates, less the headroom."""
        held = self.best[0].prediction.of.outcome.memory
        assert held is not None
        return float(held.usable[0]) / GIB * (1.0 - self.headroom)

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
            "headroom": self.headroom,
            "evaluated": self.evaluated,
            "priced": self.priced,
            "space": self.space,
            "feasible": self.feasible,
            "seconds": self.seconds,
            "complete": self.complete,
            "best": [choice.dump() for choice in self.best],
            "best_trainable": self.trainable.dump() if self.trainable else None,
            "pareto": [choice.dump() for choice in self.pareto],
            "why_not": self.why_not,
            "assumed": self.assumed,
        }


def search(
    model: ModelSpec,
    cluster: ClusterSpec,
    *,
    devices: int,
    global_batch: int,
    seq_len: int | None = None,
    framework: str = "scalewright",
    version: str | None = None,
    options: Mapping[str, str] | None = None,
    precision: str = "auto",
    objective: str = "time",
    fixed: Mapping[str, Any] | None = None,
    headroom: float = 0.0,
    top: int = 5,
    price: float | None = None,
    tell: Callable[[int, int], None] | None = None,
    stop: Callable[[], bool] | None = None,
    c: Constants | None = None,
    explain: bool = True,
) -> Plan:
    """The best layouts of a run. `headroom`: share of the usable memory that stays free; `price`: of a device
    and hour; `tell(done, total)` as it goes; `stop()` true ends it with what was found so far.
    Without `explain`, `pareto` and `why_not` stay empty.

    Raises UserError when nothing is legal, nothing fits, or an argument can't be.
    """
    began = time.perf_counter()
    length = seq_len or model.context
    _check_numbers(devices, global_batch, length, headroom, top)
    cluster.check_devices(devices)
    plain = Layout.parse({"devices": devices, "precision": precision})
    template = from_layout(model, cluster, plain, length, framework, version, options)
    asked = {
        "devices": devices, "global_batch": global_batch, "seq_len": length, "framework": framework,
        "version": version, "options": options, "precision": precision, "objective": objective,
        "fixed": fixed, "headroom": headroom, "top": top, "price": price, "c": c,
    }  # fmt: skip
    price = cluster.price_per_device_hour if price is None else price
    aim = make_objective(objective, template.chip, devices, price)
    axes = read_fixed(fixed or {}, template)
    space = make_space(template, global_batch, axes)
    if not space.size:
        raise no_layout(template, global_batch, axes)
    finder = Finder(make_pricer(space, aim, headroom, c), top)
    finder.run(tell, stop)
    found = Priced.join(finder.found) if finder.found else None
    fitting = found.take(found.fits) if found is not None else None
    if fitting is None or not len(fitting):
        if not finder.complete:
            raise UserError("stopped before a layout that fits was found", "plan", "let it run longer")
        raise too_large(finder.pricer, axes)
    maker = _Maker(model, cluster, template, space, aim, asked)
    chosen = _different(finder, fitting, top)
    best = maker.choices(chosen)
    front = maker.choices(pareto(finder, fitting)) if explain else []
    plan = Plan(
        model=model,
        cluster=cluster,
        devices=devices,
        seq_len=length,
        global_batch=global_batch,
        objective=aim,
        headroom=headroom,
        best=best,
        trainable=next((choice for choice in best if choice.trainable), None),
        pareto=front,
        why_not=[],
        evaluated=finder.decided,
        priced=finder.pricer.priced,
        space=space.size,
        feasible=finder.feasible,
        seconds=0.0,
        complete=finder.complete,
        template=template,
        assumed=[*aim.assumed, *_host_assumed([*best, *front])],
        constants=c,
        asked=asked,
    )
    if explain and found is not None:
        plan.trainable = _best_trainable(plan)
        losers = near_losers(finder, found, chosen)
        pairs = zip(losers.axes, maker.choices(losers.rows), strict=True)
        plan.why_not = [compare(axis, choice, best[0], plan.usable_gib) for axis, choice in pairs]
    plan.seconds = time.perf_counter() - began
    return plan


def _check_numbers(devices: int, global_batch: int, seq_len: int, headroom: float, top: int) -> None:
    """Raises UserError for numbers that no run has."""
    for key, value, most in (
        ("devices", devices, MOST_DEVICES), ("global_batch", global_batch, MOST_BATCH),
        ("seq_len", seq_len, MOST_LENGTH), ("top", top, 10_000),
    ):  # fmt: skip
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise UserError(f"{key} is {value}", "plan", f"use a whole number from 1 to {most:,}")
    if not (isinstance(headroom, (int, float)) and (0 <= headroom < 1 or headroom == UNLIMITED)):
        raise UserError(
            f"headroom is {headroom}", "plan", "use a share of the memory from 0 up to 1, such as 0.1"
        )


@dataclass(frozen=True)
class _Maker:
    """Rows as choices: the layout is parsed by the spec, and priced on the path of a single one."""

    model: ModelSpec
    cluster: ClusterSpec
    template: Request
    space: Space
    aim: Objective
    asked: Mapping[str, Any]

    def choices(self, priced: Priced) -> list[Choice]:
        """Choices in the rows' order."""
        layouts = [Layout.parse(self.space.keys(priced.rows, at)) for at in range(len(priced))]
        requests = [self._request(layout) for layout in layouts]
        found: Iterable[Prediction] = predict_table(requests, self.asked["c"]) if requests else ()
        return [self._choice(one, layout, float(score))
                for one, layout, score in zip(found, layouts, priced.score, strict=True)]  # fmt: skip

    def _request(self, layout: Layout) -> Request:
        return from_layout(
            self.model, self.cluster, layout, self.template.seq_len, self.asked["framework"],
            self.asked["version"], self.asked["options"],
        )  # fmt: skip

    def _choice(self, prediction: Prediction, layout: Layout, score: float) -> Choice:
        why = untrainable(self.model, layout, self.template.seq_len)
        return Choice(prediction, layout, why, score, self.aim.value(score, prediction.tokens))


def _host_assumed(choices: Iterable[Choice]) -> list[str]:
    """What is taken for granted of hosts, where something is offloaded to them."""
    if all(choice.layout.offload == "none" for choice in choices):
        return []
    return [f"a host has {HOST_BYTES / 1e9:.0f} GB of memory for each of its devices"]


def _best_trainable(plan: Plan) -> Choice | None:
    """The best layout that `train` runs: the best of all, or that of a search of those alone."""
    if plan.best[0].trainable or why_not_running(plan.model) is not None:
        return plan.best[0] if plan.best[0].trainable else None
    given = dict(plan.asked["fixed"] or {})
    for axis, ready in TRAINABLE.items():
        value = given.get(axis, ready)
        values = value if isinstance(value, (list, tuple)) else (value,)
        given[axis] = tuple(one for one in values if one in ready)
    try:
        found = plan.again(fixed=given, top=1).best[0] if all(given.values()) else None
    except UserError:
        return plan.trainable
    return found if found is not None and found.trainable else plan.trainable


def _different(finder: Finder, fitting: Priced, top: int) -> Priced:
    """The best of every kind of layout, `top` of them, best first; of equals the plainest."""
    order = finder.ranked(fitting)
    kinds = finder.kinds(fitting.rows)[order]
    _, first = np.unique(kinds, return_index=True)
    return fitting.take(order[np.sort(first)[:top]])

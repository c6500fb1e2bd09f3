"""`plan`: every legal layout of a run is searched; the best come with predictions, the others with reasons.

model, cluster, devices, batch --> Space (axes.py) --> Finder (finder.py) --> Plan (choices.py)
    best        the K best layouts that really differ (tp, pp, ep, what they shard)
    pareto      those that no other beats in both time and memory
    why_not     what costs the nearest losers (compare.py)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from scalewright.plan.capabilities import Capabilities, find_capabilities, trainers_on
from scalewright.plan.chips import Chip
from scalewright.plan.constants import Constants
from scalewright.plan.frameworks import OURS
from scalewright.plan.request import Request, from_layout
from scalewright.plan.search.axes import Fixed, make_space
from scalewright.plan.search.beyond import beyond
from scalewright.plan.search.choices import Choice, Maker, Plan
from scalewright.plan.search.compare import compare
from scalewright.plan.search.finder import WINDOW, Finder
from scalewright.plan.search.fixed import check_capable, no_layout, read_fixed
from scalewright.plan.search.losers import near_losers
from scalewright.plan.search.objective import make_objective
from scalewright.plan.search.pareto import pareto
from scalewright.plan.search.pricer import HOST_BYTES, Priced, make_pricer
from scalewright.plan.search.shortage import too_large
from scalewright.plan.search.simplest import choose
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.huggingface import why_not_running
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.optimizers import ADAMW, Optimizer

__all__ = ["Choice", "Plan", "again", "search"]

UNLIMITED = -1e6  # headroom of a search that memory doesn't bind: every layout fits
MOST_MARGIN = 0.5
MOST = {"devices": 10**7, "global_batch": 10**9, "seq_len": 10**8, "top": 10**4}


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
    optimizer: Optimizer = ADAMW,
    precision: str = "auto",
    objective: str = "time",
    fixed: Mapping[str, Any] | None = None,
    headroom: float | None = None,
    top: int = 5,
    price: float | None = None,
    tell: Callable[[int, int], None] | None = None,
    stop: Callable[[], bool] | None = None,
    c: Constants | None = None,
    explain: bool = True,
    margin: float = 0.0,
) -> Plan:
    """The best layouts of a run, of those that the trainer can run (plan/data/capabilities.yaml).

    `headroom`: share of the usable memory that stays free of the predicted peak. Null: what fits up to the
    p90 of its memory, or, where nothing does, what is likelier than not to fit. `price`: of a device and
    hour. `tell(done, total)` is called as it goes; `stop()` true ends it with what was found so far.
    `margin`: by how much a simpler layout may be slower than the fastest and still come first.
    Without `explain`, `pareto`, `why_not` and `beyond` stay empty.

    Raises UserError when nothing is legal, nothing fits, or an argument can't be.
    """
    began = time.perf_counter()
    asked: dict[str, Any] = {
        "devices": devices,
        "global_batch": global_batch,
        "seq_len": seq_len or model.context,
        "top": top,
        "framework": framework,
        "version": version,
        "options": options,
        "optimizer": optimizer,
        "precision": precision,
        "objective": objective,
        "fixed": fixed,
        "headroom": headroom,
        "price": price,
        "margin": margin,
        "c": c,
    }
    maker, finder, axes = _prepare(model, cluster, asked)
    finder.run(tell, stop)
    found = Priced.join(finder.found) if finder.found else None
    fitting = found.take(found.fits) if found is not None else None
    if found is None or fitting is None or not len(fitting):
        if not finder.complete:
            raise UserError("stopped before a layout that fits was found", "plan", "let it run longer")
        if headroom is None:
            asked["headroom"] = 0.0
            return search(model, cluster, **asked, tell=tell, stop=stop, explain=explain)
        raise too_large(finder.pricer, axes)
    chosen, fastest = choose(finder, fitting, top, margin)
    front = maker.choices(pareto(finder, fitting)) if explain else []
    plan = _plan(maker, finder, maker.choices(chosen), front)
    if fastest.score[0] < chosen.score[0] * (1 - 1e-6):
        plan.fastest = maker.choices(fastest)[0]
    if explain:
        trainer = capabilities_of(model, maker.template)
        if trainer.known and trainer.runs_on(maker.template.chip.kind) and finder.complete:
            plan.beyond = beyond(maker, finder, axes, trainer, float(fastest.score[0]), margin, stop)
        plan.trainable = _best_trainable(plan)
        losers = near_losers(finder, found, chosen)
        pairs = zip(losers.axes, maker.choices(losers.rows), strict=True)
        plan.why_not = [compare(axis, choice, plan.best[0], plan.headroom) for axis, choice in pairs]
    plan.seconds = time.perf_counter() - began
    return plan


def again(plan: Plan, **changes: Any) -> Plan:
    """A plan's search with other arguments, without reasons; `fixed` comes on top of what was fixed."""
    asked = {**plan.asked, "explain": False, **changes}
    asked["fixed"] = {**(plan.asked["fixed"] or {}), **(asked["fixed"] or {})}
    return search(plan.model, plan.cluster, **asked)


def _prepare(model: ModelSpec, cluster: ClusterSpec, asked: Mapping[str, Any]) -> tuple[Maker, Finder, Fixed]:
    """What a search needs, its arguments checked."""
    devices, batch, headroom = asked["devices"], asked["global_batch"], asked["headroom"]
    _check_numbers(asked)
    cluster.check_devices(devices)
    plain = Layout.parse({"devices": devices, "precision": asked["precision"]})
    trainer = (asked[key] for key in ("framework", "version", "options"))
    template = from_layout(model, cluster, plain, asked["seq_len"], *trainer, optimizer=asked["optimizer"])
    price = cluster.price_per_device_hour if asked["price"] is None else asked["price"]
    aim = make_objective(asked["objective"], template.chip, devices, price)
    axes = read_fixed(asked["fixed"] or {}, template)
    if template.framework.name != OURS:  # ours may be asked for what `train` lacks: the answer says so
        trainer_has = find_capabilities(template.framework.name)
        _check_runs(trainer_has, template.chip)
        check_capable(axes, trainer_has)
    space = make_space(template, batch, axes, capabilities_of(model, template))
    if not space.size:
        raise no_layout(template, batch, axes)
    window = max(WINDOW, 1 + asked["margin"])
    finder = Finder(make_pricer(space, aim, headroom, asked["c"]), asked["top"], window)
    return Maker(model, cluster, template, space, aim, asked), finder, axes


def _check_runs(trainer: Capabilities, chip: Chip) -> None:
    """Raises UserError for devices that the trainer doesn't run on, with those trainers that do."""
    if not trainer.runs_on(chip.kind):
        others = " or ".join(trainers_on(chip.kind)) or "unknown"
        what = f"{trainer.trainer} doesn't run on {chip.name} ({chip.kind})"
        raise UserError(what, "--framework", f"use --framework {others}")


def _check_numbers(asked: Mapping[str, Any]) -> None:
    """Raises UserError for numbers that no run has."""
    for key, most in MOST.items():
        value = asked[key]
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise UserError(f"{key} is {value}", "plan", f"use a whole number from 1 to {most:,}")
    headroom, margin = asked["headroom"], asked["margin"]
    if not (isinstance(margin, (int, float)) and 0 <= margin <= MOST_MARGIN):
        raise UserError(f"margin is {margin}", "plan", f"use a share from 0 to {MOST_MARGIN}, such as 0.02")
    if headroom is not None and not (
        isinstance(headroom, (int, float)) and (0 <= headroom < 1 or headroom == UNLIMITED)
    ):
        how = "use a share of the memory from 0 up to 1, such as 0.1"
        raise UserError(f"headroom is {headroom}", "plan", how)


def _plan(maker: Maker, finder: Finder, best: list[Choice], front: list[Choice]) -> Plan:
    """The plan, but for its reasons."""
    asked = dict(maker.asked)
    return Plan(
        model=maker.model,
        cluster=maker.cluster,
        devices=asked["devices"],
        seq_len=asked["seq_len"],
        global_batch=asked["global_batch"],
        objective=maker.aim,
        headroom=asked["headroom"],
        best=best,
        trainable=next((choice for choice in best if choice.trainable), None),
        pareto=front,
        why_not=[],
        evaluated=finder.decided,
        priced=finder.pricer.priced,
        space=maker.space.size,
        feasible=finder.feasible,
        seconds=0.0,
        complete=finder.complete,
        template=maker.template,
        assumed=[*maker.aim.assumed, *_host_assumed([*best, *front])],
        constants=asked["c"],
        asked=asked,
    )


def _host_assumed(choices: Iterable[Choice]) -> list[str]:
    """What is taken for granted of hosts, where something is offloaded to them."""
    if all(choice.layout.offload == "none" for choice in choices):
        return []
    return [f"a host has {HOST_BYTES / 1e9:.0f} GB of memory for each of its devices"]


def _best_trainable(plan: Plan) -> Choice | None:
    """The best layout that `train` runs: the best of all, or that of a search of those alone."""
    nothing = why_not_running(plan.model) or not find_capabilities(OURS).runs_on(plan.template.chip.kind)
    if plan.best[0].trainable or nothing:
        return plan.best[0] if plan.best[0].trainable else None
    given = dict(plan.asked["fixed"] or {})
    for axis, ready in find_capabilities(OURS).axes.items():
        value = given.get(axis, ready)
        values = value if isinstance(value, (list, tuple)) else (value,)
        given[axis] = tuple(one for one in values if one in ready)
    try:
        found = again(plan, fixed=given, top=1).best[0] if all(given.values()) else None
    except UserError:
        return plan.trainable
    return found if found is not None and found.trainable else plan.trainable


def capabilities_of(model: ModelSpec, template: Request) -> Capabilities:
    """What the run's trainer can run; everything, where it is ours and can't run the model in any layout."""
    name = template.framework.name
    if name == OURS and why_not_running(model) is not None:
        return Capabilities(name)
    return find_capabilities(name)

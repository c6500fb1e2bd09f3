"""The search behind `plan`: the best legal layouts of a run with predictions, the others with reasons.

model, cluster, devices, batch --> Space (axes.py) --> Finder (finder.py) --> Plan (choices.py)
    best        the K best layouts of different kinds (tp, pp, ep, sharding)
    pareto      layouts that no other beats in both time and memory
    why_not     costs of the near losers (compare.py)
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from scalewright.plan.capabilities import Capabilities, find_capabilities, of_framework, trainers_on
from scalewright.plan.chips import Chip
from scalewright.plan.constants import Constants
from scalewright.plan.frameworks import OURS
from scalewright.plan.request import Request, from_layout
from scalewright.plan.search.axes import Fixed, make_space
from scalewright.plan.search.beyond import beyond
from scalewright.plan.search.choices import Choice, ChoiceMaker, Plan
from scalewright.plan.search.compare import compare
from scalewright.plan.search.finder import WINDOW, Finder, Stop, Tell
from scalewright.plan.search.fixed import check_capable, no_layout, read_fixed
from scalewright.plan.search.losers import near_losers
from scalewright.plan.search.objective import make_objective
from scalewright.plan.search.pareto import pareto
from scalewright.plan.search.pricer import HOST_BYTES, Priced, make_pricer
from scalewright.plan.search.shortage import too_large
from scalewright.plan.search.simplest import choose
from scalewright.spec.diloco import DilocoSpec
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.huggingface import why_not_running
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.optimizers import ADAMW, Optimizer

__all__ = ["Choice", "Plan", "search", "search_again"]

UNLIMITED = -1e6  # headroom of a search without a memory limit: every layout fits
MAX_MARGIN = 0.5
MAX_VALUES = {"devices": 10**7, "global_batch": 10**9, "seq_len": 10**8, "top": 10**4}


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
    diloco: DilocoSpec | None = None,
    precision: str = "auto",
    objective: str = "time",
    fixed: Mapping[str, Any] | None = None,
    headroom: float | None = None,
    top: int = 5,
    price: float | None = None,
    tell: Tell | None = None,
    stop: Stop | None = None,
    c: Constants | None = None,
    explain: bool = True,
    margin: float = 0.0,
) -> Plan:
    """The best layouts of a run, of those that the trainer can run (plan/data/capabilities.yaml).

    `headroom`: share of the usable memory that the predicted peak leaves free. Null: layouts must fit at the
    p90 of their memory, or, if none does, at the predicted peak. `price`: per device-hour.
    `tell(done, total)` is called with the progress; the search ends with the best so far if `stop()` is true.
    `margin`: by how much a simpler layout may be slower than the fastest and still come first.
    Without `explain`, `pareto`, `why_not` and `beyond` stay empty.

    Raises UserError when nothing is legal, nothing fits, or an argument is invalid.
    """
    began = time.perf_counter()
    arguments: dict[str, Any] = {
        "devices": devices,
        "global_batch": global_batch,
        "seq_len": seq_len or model.context,
        "top": top,
        "framework": framework,
        "version": version,
        "options": options,
        "optimizer": optimizer,
        "diloco": diloco,
        "precision": precision,
        "objective": objective,
        "fixed": fixed,
        "headroom": headroom,
        "price": price,
        "margin": margin,
        "c": c,
    }
    maker, finder, axes = _prepare(model, cluster, arguments)
    finder.run(tell, stop)
    candidates = Priced.join(finder.candidates)
    fitting = candidates.take(candidates.fits)
    if not len(fitting):
        if not finder.complete:
            raise UserError("stopped before a layout that fits was found", "plan", "let it run longer")
        if headroom is None:
            arguments["headroom"] = 0.0
            return search(model, cluster, **arguments, tell=tell, stop=stop, explain=explain)
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
        names, losers = near_losers(finder, candidates, chosen)
        pairs = zip(names, maker.choices(losers), strict=True)
        plan.why_not = [compare(axis, choice, plan.best[0], plan.headroom) for axis, choice in pairs]
    plan.seconds = time.perf_counter() - began
    return plan


def search_again(plan: Plan, **changes: Any) -> Plan:
    """A plan's search with some arguments changed and without reasons; `fixed` adds to the fixed axes."""
    arguments = {**plan.arguments, "explain": False, **changes}
    arguments["fixed"] = {**(plan.arguments["fixed"] or {}), **(arguments["fixed"] or {})}
    return search(plan.model, plan.cluster, **arguments)


def _prepare(
    model: ModelSpec, cluster: ClusterSpec, arguments: Mapping[str, Any]
) -> tuple[ChoiceMaker, Finder, Fixed]:
    """Checks the arguments of a search; returns its choice maker, its finder and the fixed axes."""
    devices, batch, headroom = arguments["devices"], arguments["global_batch"], arguments["headroom"]
    _check_numbers(arguments)
    cluster.check_devices(devices)
    plain = Layout.parse({"devices": devices, "precision": arguments["precision"]})
    trainer = (arguments[key] for key in ("framework", "version", "options"))
    seq_len, optimizer = arguments["seq_len"], arguments["optimizer"]
    template = from_layout(model, cluster, plain, seq_len, *trainer, optimizer=optimizer)
    template = replace(template, diloco=_islands(arguments))
    price = cluster.price_per_device_hour if arguments["price"] is None else arguments["price"]
    objective = make_objective(arguments["objective"], template.chip, devices, price)
    axes = read_fixed(arguments["fixed"] or {}, template)
    if template.framework.name != OURS:  # ours may be fixed to values that `train` lacks: marked untrainable
        capabilities = of_framework(template.framework)
        _check_runs(capabilities, template.chip)
        check_capable(axes, capabilities)
    space = make_space(template, batch, axes, capabilities_of(model, template))
    if not space.size:
        raise no_layout(template, batch, axes)
    window = max(WINDOW, 1 + arguments["margin"])
    finder = Finder(make_pricer(space, objective, headroom, arguments["c"]), arguments["top"], window)
    return ChoiceMaker(model, cluster, template, space, objective, arguments), finder, axes


def _islands(arguments: Mapping[str, Any]) -> DilocoSpec | None:
    """The outer optimizer of all layouts; raises UserError where some would have no islands."""
    diloco: DilocoSpec | None = arguments["diloco"]
    sizes = (arguments["fixed"] or {}).get("dp_replicate", 1)
    if diloco is not None and min(sizes if isinstance(sizes, (list, tuple)) else [sizes]) < 2:
        how = "fix dp_replicate to the number of islands: --fix dp_replicate=4"
        raise UserError("diloco makes islands of replicas, and layouts without any compete", "plan", how)
    return diloco


def _check_runs(trainer: Capabilities, chip: Chip) -> None:
    """Raises UserError for devices that the trainer doesn't run on; the error lists the trainers that do."""
    if not trainer.runs_on(chip.kind):
        others = " or ".join(trainers_on(chip.kind)) or "unknown"
        what = f"{trainer.trainer} doesn't run on {chip.name} ({chip.kind})"
        raise UserError(what, "--framework", f"use --framework {others}")


def _check_numbers(arguments: Mapping[str, Any]) -> None:
    """Raises UserError for numbers out of range."""
    for key, most in MAX_VALUES.items():
        value = arguments[key]
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise UserError(f"{key} is {value}", "plan", f"use a whole number from 1 to {most:,}")
    headroom, margin = arguments["headroom"], arguments["margin"]
    if not (isinstance(margin, (int, float)) and 0 <= margin <= MAX_MARGIN):
        raise UserError(f"margin is {margin}", "plan", f"use a share from 0 to {MAX_MARGIN}, such as 0.02")
    if headroom is not None and not (
        isinstance(headroom, (int, float)) and (0 <= headroom < 1 or headroom == UNLIMITED)
    ):
        how = "use a share of the memory from 0 up to 1, such as 0.1"
        raise UserError(f"headroom is {headroom}", "plan", how)


def _plan(maker: ChoiceMaker, finder: Finder, best: list[Choice], front: list[Choice]) -> Plan:
    """The plan without its reasons."""
    arguments = dict(maker.arguments)
    return Plan(
        model=maker.model,
        cluster=maker.cluster,
        devices=arguments["devices"],
        seq_len=arguments["seq_len"],
        global_batch=arguments["global_batch"],
        objective=maker.objective,
        headroom=arguments["headroom"],
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
        assumed=[*maker.objective.assumed, *_host_assumed([*best, *front])],
        arguments=arguments,
    )


def _host_assumed(choices: Iterable[Choice]) -> list[str]:
    """The assumption about host memory, if a layout offloads to it."""
    if all(choice.layout.offload == "none" for choice in choices):
        return []
    return [f"a host has {HOST_BYTES / 1e9:.0f} GB of memory for each of its devices"]


def _best_trainable(plan: Plan) -> Choice | None:
    """The best layout that `train` runs: the best of all, or of a search of only such layouts."""
    ours = find_capabilities(OURS)
    if plan.best[0].trainable:
        return plan.best[0]
    if why_not_running(plan.model) or not ours.runs_on(plan.template.chip.kind):
        return None
    fixed = dict(plan.arguments["fixed"] or {})
    for axis, supported in ours.axes.items():
        value = fixed.get(axis, supported)
        values = value if isinstance(value, (list, tuple)) else (value,)
        fixed[axis] = tuple(item for item in values if item in supported)
    try:
        best = search_again(plan, fixed=fixed, top=1).best[0] if all(fixed.values()) else None
    except UserError:
        return plan.trainable
    return best if best is not None and best.trainable else plan.trainable


def capabilities_of(model: ModelSpec, template: Request) -> Capabilities:
    """The capabilities of the run's trainer; no limits if it is ours and runs no layout of the model."""
    name = template.framework.name
    if name == OURS and why_not_running(model) is not None:
        return Capabilities(name)
    return of_framework(template.framework)

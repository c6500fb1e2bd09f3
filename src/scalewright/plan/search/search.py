"""The search behind `plan`: the best legal layouts of a run with predictions, the others with reasons.

Question, Goal --> Space (axes.py) --> Finder (branch_and_bound.py) --> Plan (choices.py)
    best        the K best layouts of different kinds (tp, pp, ep, sharding)
    pareto      layouts that no other beats in both time and memory
    why_not     costs of the near losers (compare.py)

memory
  | x                    Recomputation saves memory and costs time: a row that fits without it can have
  |   x    o             variants on the front. They are priced unless a candidate is as fast as the
  |      x     o         row and needs no more memory than the row with everything recomputed.
  +-----------x-- time
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from scalewright.plan.frameworks import OURS, of_framework
from scalewright.plan.request import Request, from_question
from scalewright.plan.search.axes import Fixed, make_space
from scalewright.plan.search.branch_and_bound import WINDOW, Finder, Stop, Tell, front_indices
from scalewright.plan.search.choices import Choice, ChoiceMaker, Plan
from scalewright.plan.search.compare import compare, near_losers
from scalewright.plan.search.fixed import as_tuple, check_capable, no_layout, read_fixed
from scalewright.plan.search.objective import Goal, make_objective
from scalewright.plan.search.pricer import Priced, make_pricer
from scalewright.plan.search.shortage import choose, out_of_reach, too_large
from scalewright.plan.search.unusual import EACH, MOST
from scalewright.spec.capabilities import Capabilities, find_capabilities, trainers_on
from scalewright.spec.errors import UserError
from scalewright.spec.huggingface import why_not_running
from scalewright.spec.layout import Layout
from scalewright.spec.question import Question

__all__ = ["Choice", "Plan", "search", "search_again"]

MAX_LENGTH = 10**8  # tokens of a sequence


def search(
    question: Question, goal: Goal, *, tell: Tell | None = None, stop: Stop | None = None, explain: bool = True
) -> Plan:
    """The best layouts of a run, of those that the trainer can run (spec/capabilities.yaml).

    `tell(done, total)` is called with the progress; the search ends with the best so far if `stop()` is true.
    Without `explain`, `pareto`, `why_not` and `beyond` stay empty.

    Raises UserError when nothing is legal, nothing fits, or an argument is invalid.
    """
    began = time.perf_counter()
    maker, finder, axes = prepare(question, goal)
    finder.run(tell, stop)
    fitting = finder.fitting
    if not len(fitting):
        if not finder.complete:
            raise UserError("stopped before a layout that fits was found", "plan", "let it run longer")
        if goal.headroom is None:
            return search(question, replace(goal, headroom=0.0), tell=tell, stop=stop, explain=explain)
        raise too_large(finder.pricer, axes)
    chosen, fastest = choose(finder, fitting, goal.top, goal.margin)
    best, front = maker.choices(chosen), maker.choices(pareto(finder, fitting)) if explain else []
    offloads = any(choice.layout.offload != "none" for choice in (*best, *front)) or maker.template.host_copies
    plan = Plan(
        question=question,
        goal=goal,
        objective=maker.objective,
        best=best,
        trainable=next((choice for choice in best if choice.trainable), None),
        pareto=front,
        evaluated=finder.decided,
        priced=finder.pricer.priced,
        space=maker.space.size,
        feasible=finder.feasible,
        complete=finder.complete,
        template=maker.template,
        assumed=[*_left_out(maker), *maker.objective.assumed, *(maker.template.chip.host_assumed if offloads else [])],
    )
    if fastest.score[0] < chosen.score[0] * (1 - 1e-6):
        plan.fastest = maker.choices(fastest)[0]
    if explain:
        trainer = capabilities_of(maker.template)
        if trainer.known and trainer.runs_on(maker.template.chip.kind) and finder.complete:
            plan.beyond = out_of_reach(maker, finder, axes, trainer, float(fastest.score[0]), stop)
        plan.trainable = _best_trainable(plan)
        names, losers = near_losers(finder, fitting.take(fitting.score <= finder.cutoff), chosen)
        pairs = zip(names, maker.choices(losers), strict=True)
        plan.why_not = [compare(axis, choice, plan.best[0], goal.headroom) for axis, choice in pairs]
    plan.seconds = time.perf_counter() - began
    return plan


def search_again(plan: Plan, **changes: Any) -> Plan:
    """A plan's search with some of its goal changed and without reasons; `fixed` adds to the fixed axes."""
    fixed = {**plan.goal.fixed, **changes.pop("fixed", {})}
    return search(plan.question, replace(plan.goal, fixed=fixed, **changes), explain=False)


def better_than(
    plan: Plan, score: float, stop: Stop | None = None, usual: bool = False, **changes: Any
) -> Choice | None:
    """The best layout of a plan's run with some of its goal changed, if any scores less than `score`.

    `usual`: the first of a plan with that goal, where a simpler one may come before the fastest.
    """
    goal = replace(plan.goal, top=1, **changes)
    try:
        maker, finder, _ = prepare(plan.question, goal)
    except UserError:
        return None
    finder.window = finder.window if usual else 1 + goal.margin
    finder.cutoff = finder.ceiling = score * (1 + finder.margin) if usual else score
    finder.run(None, stop)
    if not len(fitting := finder.fitting):
        return None
    chosen, _ = choose(finder, fitting, 1, goal.margin)
    return maker.choices(chosen)[0]


def prepare(question: Question, goal: Goal) -> tuple[ChoiceMaker, Finder, Fixed]:
    """Checks what is asked; returns the choice maker, the finder and the fixed axes."""
    if not 1 <= question.seq_len <= MAX_LENGTH:
        raise UserError(f"seq_len is {question.seq_len}", "plan", f"use a whole number from 1 to {MAX_LENGTH:,}")
    islands = question.run.diloco is not None and question.has_facts
    if islands and min(as_tuple(goal.fixed.get("dp_replicate", 1))) < 2:
        how = "fix dp_replicate to the number of islands: --fix dp_replicate=4"
        raise UserError("diloco makes islands of replicas, and layouts without any compete", "plan", how)
    keys: dict[str, object] = {"devices": goal.devices, "precision": goal.precision}
    if goal.fixed.get("zero_stage") in (0, (0,), [0]):  # then all layouts may compress as the run does
        keys["zero_stage"] = 0
    template = from_question(question, Layout.parse(keys))
    if question.has_facts:
        template = replace(template, diloco=question.run.diloco)
    price = question.cluster.price_per_device_hour if question.cluster and goal.price is None else goal.price
    objective = make_objective(goal.objective, template.chip, goal.devices, price)
    axes = read_fixed(goal.fixed, template)
    if template.framework.name != OURS:  # ours may be fixed to values that `train` lacks: marked untrainable
        capabilities = of_framework(template.framework)
        if not capabilities.runs_on(kind := template.chip.kind):
            what = f"{capabilities.trainer} doesn't run on {template.chip.name} ({kind})"
            others = " or ".join(trainers_on(kind)) or "unknown"
            raise UserError(what, "--framework", f"use --framework {others}")
        check_capable(axes, capabilities)
    space = make_space(template, goal.global_batch, axes, capabilities_of(template))
    if not space.size:
        raise no_layout(template, goal.global_batch, axes)
    pricer = make_pricer(space, objective, goal.headroom)
    usual = (1 + goal.margin) * (1 + EACH) ** MOST if goal.margin else 1.0  # where a first layout may be
    finder = Finder(pricer, goal.top, max(WINDOW, usual), margin=usual - 1)
    return ChoiceMaker(question, goal, template, space, objective), finder, axes


def _left_out(maker: ChoiceMaker) -> list[str]:
    """What the run has and its layouts are priced without."""
    run, lines = maker.question.run, []
    if run.train.compress != "none" and maker.template.compress == "none":
        lines.append("no compressed gradients: they need --fix zero_stage=0, in our own trainer")
    if run.diloco is not None and maker.template.diloco is None:
        lines.append(f"no diloco: {maker.template.framework.name} is priced without")
    return lines


def _best_trainable(plan: Plan) -> Choice | None:
    """The best layout that `train` runs: the best of all, or of a search of only such layouts."""
    ours = find_capabilities(OURS)
    if plan.best[0].trainable:
        return plan.best[0]
    if why_not_running(plan.model) or not ours.runs_on(plan.template.chip.kind):
        return None
    fixed = dict(plan.goal.fixed)
    for axis, supported in ours.axes.items():
        values = as_tuple(fixed.get(axis, supported))
        fixed[axis] = tuple(item for item in values if item in supported)
    try:
        best = search_again(plan, fixed=fixed, top=1).best[0] if all(fixed.values()) else None
    except UserError:
        return plan.trainable
    return best if best is not None and best.trainable else plan.trainable


def capabilities_of(template: Request) -> Capabilities:
    """The capabilities of the run's trainer; no limits if it is ours and runs no layout of the model."""
    name = template.framework.name
    if name == OURS and why_not_running(template.model) is not None:
        return Capabilities(name)
    return of_framework(template.framework)


def pareto(finder: Finder, fitting: Priced, most: int = 40) -> Priced:
    """The front among layouts up to `finder.window` slower than the best, fastest first; at most `most`."""
    slowest = fitting.score.min() * finder.window * (1 + 1e-9)
    near = fitting.take(fitting.score <= slowest)
    front = near.take(front_indices(near.score, near.peak))
    plain = near.take(finder.has_plain & (near.rows.recompute == 0) & (near.rows.offload == 0))
    floor = finder.pricer.floor(plain.rows)
    i = np.searchsorted(front.score, plain.score * (1 + 1e-12), side="right") - 1
    leaner = plain.take(floor < np.where(i >= 0, front.peak[np.maximum(i, 0)], np.inf))
    variants = finder.space.spread_recomputes(leaner.rows)
    variants = variants.take(variants.recompute > 0)
    if len(variants):
        priced = finder.pricer.price(variants)
        finder.feasible += int(priced.fits.sum())
        near = Priced.join([near, priced.take(priced.fits & (priced.score <= slowest))])
        front = near.take(front_indices(near.score, near.peak))
    if len(front) > most:
        front = front.take(np.unique(np.linspace(0, len(front) - 1, most).astype(int)))
    return front

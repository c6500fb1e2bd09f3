"""A question from names and flags, and the whole answer of a plan.

Question, Goal --search--> Plan: best, pareto, why_not      (plan/search/search.py)
    the records of the answer                               (plan/answer.py)
    why a given layout isn't chosen                         (plan/search/why_not.py)
    the same search on other device counts                  (plan/search/scaling.py)
    the run file of the best layout that `train` runs       (plan/search/run_file.py)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from scalewright.plan import defaults
from scalewright.plan.answer import ChoiceAnswer, PlanAnswer, answers
from scalewright.plan.frameworks import OURS
from scalewright.plan.predict import Prediction, price
from scalewright.plan.records import LayoutKeys
from scalewright.plan.search.branch_and_bound import Stop, Tell
from scalewright.plan.search.objective import MONEY, Goal
from scalewright.plan.search.precisions import ANY, gains, search_any
from scalewright.plan.search.run_file import planned, run_file
from scalewright.plan.search.scaling import nearby, scaling
from scalewright.plan.search.search import Choice, Plan, search
from scalewright.plan.search.why_not import why_not as explain_loss
from scalewright.plan.switches import check_names
from scalewright.plan.whole_run import WholeRun
from scalewright.spec.common.files import check_replaceable, write_signed
from scalewright.spec.diloco import DilocoSpec, check_diloco
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.model import ModelSpec
from scalewright.spec.optimizers import ADAMW, Optimizer
from scalewright.spec.presets import load_model_spec
from scalewright.spec.question import Question
from scalewright.spec.run import OptimizerSpec, PythonRef

OwnOptimizer = tuple[PythonRef, Optimizer]  # a user's, by its import path, and what was measured of it


class Notes(NamedTuple):
    """What was assumed for a question: of its length, and of its trainer and machine."""

    length: tuple[str, ...]
    setting: tuple[str, ...]

    def used(self, devices: int, cluster: ClusterSpec) -> list[str]:
        """`setting`, without the rate of a network that so many devices don't use."""
        beyond = devices > cluster.devices_per_node
        return [text for text in self.setting if beyond or not text.startswith("fabric ")]


def ask(
    model: str | Mapping[str, Any] | ModelSpec | Question,
    cluster: ClusterSpec,
    seq_len: int | None = None,
    *,
    framework: str | None = None,
    software_version: str | None = None,
    options: Mapping[str, str] | None = None,
    optimizer: str | OwnOptimizer | None = None,
    diloco: Mapping[str, Any] | None = None,
) -> tuple[Question, Notes]:
    """A run from its model, or from a question, with the flags over it. Raises UserError."""
    asked = model if isinstance(model, Question) else None
    spec = asked.model if asked else load_model_spec(model)  # type: ignore[arg-type]
    length, notes = defaults.resolve_length(spec, seq_len if seq_len is not None else asked.seq_len if asked else None)
    trainer = framework or (asked.trainer if asked else None)
    _, trainer_notes = defaults.resolve_trainer(trainer or (asked.run.engine if asked else None), software_version)
    record, optimizer_notes = defaults.resolve_optimizer(optimizer, trainer)
    islands = defaults.resolve_diloco(diloco, trainer)
    check_names(options)
    if asked is None:
        asked = Question.of(spec, length)
    elif optimizer is None:
        optimizer_notes = _priced_optimizer(asked, trainer)
    if length != asked.seq_len:
        asked = asked.with_length(length)
    changes: dict[str, OptimizerSpec | PythonRef | DilocoSpec] = {} if islands is None else {"diloco": islands}
    if isinstance(optimizer, tuple):
        changes["optimizer"] = optimizer[0]
    elif optimizer:
        changes["optimizer"] = OptimizerSpec(name=record.written)
    given = {**(asked.options if trainer == asked.trainer else {}), **(options or {})}
    asked = replace(
        asked, run=asked.run.model_copy(update=changes), cluster=cluster, trainer=trainer,
        version=software_version or asked.version, options=given,
        optimizer=optimizer[1] if isinstance(optimizer, tuple) else asked.optimizer,
    )  # fmt: skip
    return asked, Notes(tuple(notes), (*trainer_notes, *optimizer_notes, *cluster.assumed))


def _priced_optimizer(asked: Question, trainer: str | None) -> list[str]:
    """What is assumed of the run's own optimizer."""
    optimizer = asked.run.optimizer
    if isinstance(optimizer, PythonRef):
        trial = f"--optimizer {optimizer.python} tries it"
        note = f"your own optimizer as {ADAMW.name}, which keeps the most state ({trial})"
        return [] if asked.optimizer else [note]
    if "optimizer" not in asked.run.model_fields_set:
        return [f"optimizer {ADAMW.name}"] if trainer in (None, OURS) else []
    if trainer not in (None, OURS) and optimizer.record is not ADAMW:
        return [f"optimizer {optimizer.name} priced as {ADAMW.name}, as every one of {trainer}"]
    return []


def ask_layout(question: Question, notes: Notes, given: LayoutKeys) -> tuple[Prediction, list[str]]:
    """The price of a run in a layout of which some keys are `given`, and all that was assumed. Raises UserError."""
    assert question.cluster is not None
    stated = defaults.resolve_sizes(given, question.cluster, question.seq_len)
    sizes: list[str] = []
    if question.states_layout:
        left_out = {"micro_batch"} - question.layout.model_fields_set - question.guessed.keys()
        if left_out and "global_batch" in question.guessed:  # a micro-batch of each rank
            left_out.add("global_batch")
        resized = question.resized(stated.get("devices"), stated.get("global_batch"), stated.get("micro_batch", 0))
        sizes += resized.notes({*stated, *left_out})
        stated = {**{key: value for key, value in resized.layout.dump().items() if key not in left_out}, **stated}
    ours = question.states_layout and question.form is None  # `train` runs such a file with 1
    full, filled = defaults.complete(stated, question, micro_batch=not ours)
    check_diloco(question.run.diloco, full, question.model.num_hidden_layers)
    prediction = price(question.with_layout(full))
    said = {*stated, *(note.split()[0] for note in filled)}
    left = defaults.assumptions(said, full, prediction.request)
    return prediction, [*notes.length, *sizes, *filled, *left, *notes.used(full.devices, question.cluster)]


def answer_plan(
    question: Question,
    goal: Goal,
    assumed: Sequence[str] = (),
    *,
    run: WholeRun | None = None,
    counts: Sequence[int] = (),
    why_not: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    data: str | None = None,
    explain: bool = True,
    tell: Tell | None = None,
    stop: Stop | None = None,
    force: bool = False,
) -> PlanAnswer:
    """The answer of a plan; writes the run file where `out` is given. Raises UserError."""
    if out is not None:
        check_replaceable(Path(out), force)
    run = (run or WholeRun(price=goal.price)).of(question)
    run.check(priced=goal.objective != "time")
    if question.cluster is not None:
        run = run.on(question.cluster, priced=goal.objective in MONEY)
        goal = replace(goal, price=run.hourly if goal.objective in MONEY else goal.price)
    find = search_any if goal.precision == ANY else search
    plan = find(question, goal, tell=tell, stop=stop)
    notes = [*assumed, *plan.assumed, *run.assumed(plan.best[0].prediction)]
    if (why := {"auto": "auto", ANY: "the fastest"}.get(goal.precision)) is not None:
        notes.append(f"precision {plan.template.precision} ({why})")

    def chosen(choices: Sequence[Choice], explain: bool = False) -> list[ChoiceAnswer]:
        made = answers([choice.prediction for choice in choices], run=run, explain=explain, assumed=assumed)
        return [ChoiceAnswer(*pair) for pair in zip(made, choices, strict=True)]

    text = run_file(plan, data)
    return PlanAnswer(
        plan=plan,
        assumed=notes,
        best=chosen(plan.best, explain),
        pareto=chosen(plan.pareto),
        beyond=[
            replace(made, needs=layout.needs, gain_pct=layout.gain_pct)
            for made, layout in zip(chosen([layout.choice for layout in plan.beyond]), plan.beyond, strict=True)
        ],
        precisions=gains(plan, stop) if explain and plan.complete else [],
        nearby=nearby(plan) if explain and plan.complete else [],
        trainable=chosen([plan.trainable])[0] if plan.trainable else None,
        run=planned(plan.question, plan.best[0].layout, plan.template.compress, data),
        run_yaml=text,
        asked=explain_loss(plan, why_not) if why_not is not None else None,
        scaling=scaling(question, goal, counts, stop, tell) if counts and plan.complete else None,
        written=_write(text, plan, Path(out), force) if out is not None else None,
    )


def _write(text: str | None, plan: Plan, path: Path, force: bool) -> dict[str, str | bool | None]:
    """Writes the run file; returns its path, or why `train` runs no layout of the plan."""
    if text is None:
        return {"run_file": None, "run_file_untrainable": plan.best[0].untrainable}
    write_signed(path, text, force)
    return {"run_file": str(path), "run_file_untrainable": None, "run_file_to_fill": ("FILL-IN" in text)}

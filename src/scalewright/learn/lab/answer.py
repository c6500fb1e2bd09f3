"""The keys of `lab NAME --json`, of `lab --list --json`, and of an exercise's check.

{lab, title, question, theory, formula, source, measured[], expected[], verdict, conclusion, busy_cores, pictures[],
 notes[], change[], at_scale, terms[], exercise, page, seconds}
measured[i] {name, value, unit, timed}     beside expected[i] {value, relation, tolerance, because, formula, holds}
verdict: holds | differs | too busy        a value by the clock that differs on a busy machine concludes nothing
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scalewright.learn.lab.bench import Bench
from scalewright.learn.lab.lab import Lab, find_lab, labs
from scalewright.learn.lab.outcome import Outcome, Value
from scalewright.spec.common.numbers import number_of
from scalewright.spec.errors import UserError

SECONDS = {"ms": 1e-3, "us": 1e-6, "µs": 1e-6, "s": 1.0}
BUSY = 0.25  # of the cores: where others keep more, a difference by the clock is nobody's


def run_lab(
    name: str, train: Callable[..., Any], *, short: bool = False, seed: int = 0,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:  # fmt: skip
    """Runs the experiment, and puts what it measured beside what is expected; `train`: `scalewright.api.train`. Raises
    UserError for an unknown lab."""
    from scalewright.launch.settings import cache_folder

    lab = find_lab(name)
    _check_torch()
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="scalewright-lab-", ignore_cleanup_errors=True) as work:
        bench = Bench(lab.name, Path(work), cache_folder() / "labs", train=train, short=short, seed=seed, tell=tell)
        outcome = lab.experiment()(bench)
    bench.finished()
    return answer(lab, outcome, bench.busy, time.perf_counter() - begun)


def answer(lab: Lab, outcome: Outcome, busy: float, seconds: float) -> dict[str, Any]:
    """The keys of a lab that has been run."""
    verdict, conclusion = conclude(outcome.values, busy)
    return {
        "lab": lab.name, "title": lab.title, "question": lab.question, "theory": lab.theory, "formula": lab.formula,
        "source": lab.source,
        "measured": [
            {"name": value.name, "value": value.measured, "unit": value.unit, "timed": value.timed}
            for value in outcome.values
        ],
        "expected": [
            {"value": value.expected, "relation": value.relation, "tolerance": value.tolerance,
             "because": value.because, "formula": value.formula, "holds": value.holds}
            for value in outcome.values
        ],
        "verdict": verdict, "conclusion": conclusion, "busy_cores": round(busy, 2),
        "pictures": list(outcome.pictures), "notes": list(outcome.notes), "change": list(lab.change),
        "at_scale": lab.at_scale, "terms": list(lab.terms), "exercise": lab.exercise.question, "page": None,
        "seconds": round(seconds, 1),
    }  # fmt: skip


def conclude(values: Sequence[Value], busy: float) -> tuple[str, str]:
    """The verdict, and a sentence: what holds, or what differs first."""
    from scalewright.machine.processor import read_processor

    cores = read_processor().logical_cores
    wrong = [value for value in values if not value.holds]
    if not wrong:
        first = values[0]
        return "holds", f"{len(values)} of {len(values)} hold: {_sentence(first)}"
    if busy > BUSY * cores and all(value.timed for value in wrong):
        what = f"others kept {busy:.1f} of {cores} cores busy: {len(wrong)} of {len(values)} differ, and may not on "
        return "too busy", f"{what}a quiet machine: {_sentence(wrong[0])}"
    return "differs", f"{len(values) - len(wrong)} of {len(values)} hold; {_sentence(wrong[0])}"


def _sentence(value: Value) -> str:
    from scalewright.report.present.explain import quantity

    words = {"near": "", "at most": "at most ", "at least": "at least "}[value.relation]
    expected = quantity(value.expected, value.unit)
    return f"{value.name} was {quantity(value.measured, value.unit)}, {value.formula} gives {words}{expected}"


def listing() -> dict[str, Any]:
    """Every lab in a line."""
    rows = [{"lab": lab.name, "title": lab.title, "question": lab.question, "seconds": lab.seconds} for lab in labs()]
    return {"labs": rows}


def check(name: str, given: str) -> dict[str, Any]:
    """Whether an answer to the lab's exercise is right: {lab, exercise, given, right, answer, unit, function, formula}.

    Raises UserError for what is no number.
    """
    lab = find_lab(name)
    correct, number = lab.exercise.answer(), read_number(given, lab.exercise.unit)
    return {
        "lab": lab.name, "exercise": lab.exercise.question, "given": number,
        "right": abs(number - correct) <= lab.exercise.tolerance * abs(correct), "answer": correct,
        "unit": lab.exercise.unit, "function": lab.exercise.function, "formula": lab.formula,
    }  # fmt: skip


def read_number(text: str, unit: str) -> float:
    """A number as people write it, in base units: 12%, 2.5 GB, 30 ms, 8k. Raises UserError."""
    words = text.strip().removesuffix(unit).strip() if unit not in ("s", "share", "B") else text.strip()
    if words.endswith("%"):
        return 0.01 * read_number(words[:-1], "")
    for ending, size in SECONDS.items() if unit == "s" else ():
        if words.endswith(ending):
            return size * read_number(words.removesuffix(ending), "")
    try:
        return float(words.replace(",", ""))
    except ValueError:
        number = number_of(words, "bytes" if unit.startswith("B") else "")
    if number is None:
        raise UserError(f"{text!r} is no number", "--check", f"give one, in {unit or 'no unit'}: 0.25, 25%, 2.5GB")
    return number


def _check_torch() -> None:
    if find_spec("torch") is None:
        raise UserError("labs need torch", "scalewright lab", "pip install -e '.[train]'")

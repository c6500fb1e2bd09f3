"""A lab's words, as data: labs.yaml, one entry a lab, in the order of the course.

name: pipelines          lab NAME              experiments/pipelines.py
question, theory, formula, source, change, at_scale, terms, exercise, seconds
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from scalewright.learn.explain.compute import function_of
from scalewright.learn.explain.entries import Computed
from scalewright.spec.base import Spec, parse_yaml
from scalewright.spec.errors import unknown

if TYPE_CHECKING:
    from scalewright.learn.lab.bench import Bench
    from scalewright.learn.lab.outcome import Outcome

FILE = Path(__file__).with_name("labs.yaml")


class Exercise(Spec):
    """A question with a number for an answer, which a public function of this package computes."""

    question: str
    function: str  # below scalewright: learn.training.bubble_over_ideal
    arguments: Mapping[str, Any] = Field(default_factory=dict)
    unit: str = ""
    tolerance: float = 0.01  # of an answer that was rounded by hand

    def answer(self) -> float:
        """The number, in base units."""
        return float(function_of(Computed(function=self.function))(**self.arguments))


class Lab(Spec):
    """What is asked, what theory says, and what to do next."""

    name: str
    title: str
    question: str
    theory: str
    formula: str
    source: str
    change: tuple[str, ...]  # what to try next: commands, with what they should show
    at_scale: str  # what it means on a thousand GPUs
    terms: tuple[str, ...]  # entries of `explain`
    exercise: Exercise
    seconds: int  # of the whole lab, on two quiet cores

    def experiment(self) -> Callable[[Bench], Outcome]:
        """The function that measures; importing it may take torch."""
        module = importlib.import_module(f"scalewright.learn.lab.experiments.{self.name.replace('-', '_')}")
        return module.run  # type: ignore[no-any-return]


@lru_cache(maxsize=1)
def labs() -> tuple[Lab, ...]:
    """All labs, in the order of the course."""
    entries = parse_yaml(FILE.read_text(encoding="utf-8"), FILE.name, trusted=True)
    return tuple(Lab.parse(entry, FILE.name) for entry in entries)


def find_lab(name: str) -> Lab:
    """The lab of a name, or of its number from 1 on; raises UserError with the nearest names."""
    every = labs()
    if name.isdecimal() and 1 <= int(name) <= len(every):
        return every[int(name) - 1]
    by_name = {lab.name: lab for lab in every}
    wanted = name.strip().lower().replace("_", "-").replace(" ", "-")
    if wanted not in by_name:
        raise unknown("lab", name, by_name, "scalewright lab")
    return by_name[wanted]

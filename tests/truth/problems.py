"""The worked problems as data: read from problems.yaml, and answered by the public function that each names.

    {function: learn.laws.mfu, inputs: {...}}  --answer-->  a number in SI units, or what `take` names
    model, spec: a preset or its keys   cost: a StageCost            --as_printed-->  in the source's unit

Nothing here knows a formula.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, reduce
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from scalewright.spec.presets import load_model_spec
from scalewright.spec.schedule import StageCost

FILE = Path(__file__).parent / "problems.yaml"
IN_SCOPE = ("params", "roofline", "training", "memory", "pipeline", "collective", "sharding", "hardware")
LATER = ("scaling-law", "inference")

# How much of the SI unit (seconds, bytes, FLOPs, shares; tokens, parameters and the like as they are) one is.
UNITS = {
    "%": 0.01, "h": 3600.0, "GPU-h": 3600.0, "days": 86400.0, "years": 365.25 * 86400,
    "GB": 1e9, "GiB": 2.0**30, "TFLOP/s": 1e12, "GFLOPs/token": 1e9,
}  # fmt: skip
PLAIN = {
    "ratio", "bool", "x", "s", "Hz", "bytes", "B/s", "B/param", "params", "tokens", "tokens/GPU",
    "tokens/chip", "sequences", "steps", "elements", "psi", "calls", "ways", "chips", "GPUs",
    "microbatches", "F", "FLOPs", "FLOPs/token", "FLOPs/byte", "OPs/byte", "FLOP/s", "OP/s", "FLOPs/USD",
}  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """One published number (or yes and no) and what computes it."""

    problem: Mapping[str, Any]
    key: str

    def __str__(self) -> str:
        return f"{self.problem['id']}-{self.key}"

    @property
    def facts(self) -> Mapping[str, Any]:
        """The answer's own keys."""
        return dict(self.problem["answers"][self.key])

    @property
    def function(self) -> str:
        """Dotted name within scalewright; only a problem that is skipped may have none."""
        return str(self.facts.get("function") or self.problem["function"])

    @property
    def inputs(self) -> dict[str, Any]:
        """Arguments of the function."""
        return {**self.problem.get("inputs", {}), **self.facts.get("inputs", {})}

    def compute(self) -> Any:
        """What the function says, in the unit of the source."""
        result = public_function(self.function)(**{k: _argument(k, v) for k, v in self.inputs.items()})
        taken = reduce(getattr, self.facts["take"].split("."), result) if "take" in self.facts else result
        return taken if isinstance(taken, bool) else taken / UNITS.get(self.facts["unit"], 1.0)


@cache
def problems() -> tuple[dict[str, Any], ...]:
    """All problems, those of later folders too."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return tuple(yaml.load(FILE.read_text(encoding="utf-8"), Loader=loader))


def answers(topic: str | None = None) -> Iterator[Answer]:
    """Every answer of the problems in scope."""
    for problem in problems():
        if problem["topic"] in IN_SCOPE and topic in (None, problem["topic"]):
            yield from (Answer(problem, key) for key in problem["answers"])


def public_function(name: str) -> Callable[..., Any]:
    """The function or class of that dotted name; fails for what isn't public, or is elsewhere."""
    module, _, attribute = name.rpartition(".")
    assert module.split(".")[0] in ("plan", "spec", "learn"), name
    assert not any(part.startswith("_") for part in name.split(".")), name
    found: Callable[..., Any] = getattr(import_module(f"scalewright.{module}"), attribute)
    assert inspect.getdoc(found), f"{name} has no docstring"
    return found


def _argument(name: str, value: Any) -> Any:
    """A model by name or keys, a stage's costs, or the value as it is."""
    if name in ("model", "spec"):
        return load_model_spec(value)
    return StageCost(**value) if name == "cost" else value

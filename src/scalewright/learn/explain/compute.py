"""An entry's number and picture: the function that it names, called with the quantities of a run.

    {function: learn.roofline.ridge_point, given: {bytes_per_s: memory_bytes_per_s}, unit: FLOP/B}
      ridge_point(peak=subject.peak, bytes_per_s=subject.memory_bytes_per_s)

An argument without a default that is neither `given` nor `fixed` is the quantity of its own name. Where a run lacks
one (a single device has no network), or can't be cut as the term needs, the example's number stands in, and says so.
"""

from __future__ import annotations

import importlib
import inspect
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scalewright.learn.explain.asked_run import Missing
from scalewright.learn.explain.entries import Computed, Number
from scalewright.learn.explain.find import example
from scalewright.learn.explain.subject import Subject
from scalewright.spec.common.formatting import count
from scalewright.spec.errors import UserError


@dataclass(frozen=True)
class Value:
    """A number in base units, what it is of, and whose."""

    number: float
    unit: str
    of: str
    function: str
    run: str


def function_of(computed: Computed) -> Callable[..., Any]:
    """The function that is named: public, of a module of this package, or a method of a class there."""
    path = computed.function.split(".")
    for cut in range(len(path) - 1, 0, -1):
        try:
            value: Any = importlib.import_module(".".join(["scalewright", *path[:cut]]))
        except ModuleNotFoundError:
            continue
        for name in path[cut:]:
            value = getattr(value, name)
        assert callable(value)
        return value  # type: ignore[no-any-return]
    raise ModuleNotFoundError(computed.function)


def call(computed: Computed, subject: Subject) -> Any:
    """What the function returns for a run. Raises Missing."""
    function = function_of(computed)
    given = {name: subject.quantity(quantity) for name, quantity in computed.given.items()}
    for name, parameter in inspect.signature(function).parameters.items():
        needed = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        if needed and name not in given and name not in computed.fixed:
            given[name] = subject.quantity(name)
    return function(**given, **computed.fixed)


def compute(number: Number, subject: Subject) -> Value:
    """The number for a run, or for the example where the run lacks a quantity."""
    try:
        asked = subject.assuming(number.assume)
        value = _taken(call(number, asked), number.take)
    except (Missing, UserError) as error:
        why = error.what if isinstance(error, UserError) else f"your run has no {str(error).replace('_', ' ')}"
        subject = example()
        asked = subject.assuming(number.assume)
        value = _taken(call(number, asked), number.take)
        subject = replace(subject, name=f"{subject.name} ({why})")
    names = [name for _, name, *_ in string.Formatter().parse(number.of) if name]
    of = number.of.format(**{name: _shown(asked.quantity(name)) for name in names})
    if asked.notes:
        of += f", if {' and '.join(asked.notes)}"
    return Value(float(value), number.unit, of, number.function, subject.name)


def draw(picture: Computed, subject: Subject) -> dict[str, Any] | None:
    """The picture of a run: bars, a table or a drawing (pictures.py); none where the run lacks a quantity."""
    try:
        drawn = call(picture, subject.assuming(picture.assume))
    except (Missing, UserError):
        return None
    return drawn if isinstance(drawn, dict) else None


def _taken(value: Any, path: str) -> Any:
    for name in path.split(".") if path else ():
        if isinstance(value, Mapping):
            value = value[name]
        elif isinstance(value, Sequence):
            value = value[int(name)]
        else:
            value = getattr(value, name)
    return value


def _shown(value: Any) -> str:
    if not isinstance(value, int):
        return str(value)
    return count(value) if value >= 1 << 22 else f"{value:,}"

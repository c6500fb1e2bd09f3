"""Fixes of an invalid layout: changes that are tried, the nearest first, and offered in the fewest words.

    tp 3, 8 heads   ->   tp 2?  tp 4?  tp 1 with sp false? ...   ->   "use tp 2 with global_batch 8"

A failed check has sorts of fixes. The first fix of each sort with which every check passes is offered, with
the changes that must follow from it. Keys that a run file leaves null stay null.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec

Fix = dict[str, Any]  # changes of the layout's keys, or of seq_len
Fixes = Iterable[Fix]  # fixes of one sort, nearest first
MOST_TRIED = 400  # fixes of one sort, which may have a hundred thousand


@dataclass(frozen=True)
class Case:
    """A layout with the model and the sequence length that it is checked against."""

    layout: Layout
    model: ModelSpec
    seq_len: int | None
    train: bool

    def with_fix(self, fix: Fix) -> Case:
        """The case with a fix; nulls are derived again. Raises UserError when the layout is invalid."""
        changes = {key: value for key, value in fix.items() if key != "seq_len"}
        layout = Layout.parse({**self.layout.stated(), **changes})
        return replace(self, layout=layout, seq_len=fix.get("seq_len", self.seq_len))


@dataclass(frozen=True)
class Problem:
    """A failed check: what is wrong, and sorts of fixes to try, built only when they are needed."""

    what: str
    fixes: Callable[[], list[Fixes]]


Check = Callable[[Case], Problem | None]


def first_problem(case: Case, checks: Sequence[Check]) -> tuple[int, Problem] | None:
    """The index of the first check that fails, and its problem; None when all pass."""
    for index, check in enumerate(checks):
        if (problem := check(case)) is not None:
            return index, problem
    return None


def find_fix(case: Case, checks: Sequence[Check], index: int, problem: Problem) -> str:
    """`use ...`: the first fix of each sort that passes all checks, else check `index`; two sorts at most."""
    for needed in (len(checks), index + 1):
        working = [fix for fixes in problem.fixes() if (fix := _first_working(case, checks, fixes, needed))]
        if working:
            return "use " + ", or ".join(_words(case, fix) for fix in working[:2])
    return ""


def _first_working(case: Case, checks: Sequence[Check], fixes: Fixes, needed: int) -> Fix | None:
    """The first fix with which the first `needed` checks pass, among the nearest `MOST_TRIED`."""
    complete = (fix for start in fixes for fix in _completed(case, start))
    nearest = itertools.islice(complete, MOST_TRIED)
    return next((fix for fix in nearest if _passed(case, checks, fix) >= needed), None)


def _completed(case: Case, fix: Fix) -> Iterator[Fix]:
    """A fix alone, and with changes that must follow: no sp without tp, other stages, another batch."""
    layout, full = case.layout, dict(fix)
    if fix.get("tp") == 1 and layout.sp:
        full["sp"] = False
    if layout.stage_layers is not None and {"pp", "virtual_stages", "schedule"} & set(fix):
        full["stage_layers"] = None
    yield full
    if "global_batch" not in full:
        sizes = {key: full.get(key, getattr(layout, key)) for key in ("tp", "pp", "cp")}
        samples = layout.micro_batch * max(1, layout.devices // (sizes["tp"] * sizes["pp"] * sizes["cp"]))
        yield {**full, "global_batch": max(1, round(layout.global_batch / samples)) * samples}
        yield {**full, "global_batch": 2 * sizes["pp"] * samples}


def _passed(case: Case, checks: Sequence[Check], fix: Fix) -> int:
    """The number of checks that pass with a fix, before the first that fails."""
    try:
        failure = first_problem(case.with_fix(fix), checks)
    except UserError:
        return 0
    return len(checks) if failure is None else failure[0]


def _words(case: Case, fix: Fix) -> str:
    """`{"tp": 1, "sp": False}` as `tp 1 with sp false`, without keys that would be derived to that value."""
    now = {**case.layout.stated(), "seq_len": case.seq_len}
    for key in [key for key in fix if key not in now]:
        shorter = {other: value for other, value in fix.items() if other != key}
        if shorter and case.with_fix(shorter) == case.with_fix(fix):
            fix = shorter
    parts = [f"{key} {as_text(value)}" for key, value in fix.items() if key not in now or value != now[key]]
    return " with ".join([parts[0], " and ".join(parts[1:])] if parts[1:] else parts)


def as_text(value: Any) -> str:
    """A value as YAML on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {as_text(inner)}" for key, inner in value.items()) + "}"
    names = {None: "null", True: "true", False: "false"}
    return str(value) if type(value) in (int, float, str) else names[value]


def near(center: int, most: int) -> Iterator[int]:
    """1 to `most`, nearest to `center` first, the smaller of two before the larger."""
    return iter(sorted(range(1, most + 1), key=lambda number: (abs(number - center), number)))

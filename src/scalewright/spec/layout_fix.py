"""How to mend a layout that can't be: changes that were tried, the nearest first, in the fewest words.

    tp 3, 8 heads   ->   tp 2?  tp 4?  tp 1 with sp false? ...   ->   "use tp 2 with global_batch 8"

A check says what is wrong and gives families of changes. Each family's first change with which every check
passes is offered, together with what must follow from it. What a run file leaves null stays null.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec

Mend = dict[str, Any]  # changes of the layout's keys, or of seq_len
Family = Iterable[Mend]  # mends of one sort, nearest first
MOST_TRIED = 400  # of a family: nobody waits for the hundred-thousandth micro-batch


@dataclass(frozen=True)
class Case:
    """One question: can this be, all together?"""

    layout: Layout
    model: ModelSpec
    seq_len: int | None
    train: bool

    def mended(self, mend: Mend) -> Case:
        """The case with a mend; what was null is derived anew. Raises UserError when that can't be."""
        changes = {key: value for key, value in mend.items() if key != "seq_len"}
        layout = Layout.parse({**self.layout.said(), **changes})
        return replace(self, layout=layout, seq_len=mend.get("seq_len", self.seq_len))


@dataclass(frozen=True)
class Problem:
    """What is wrong, and the families of changes that might mend it, made only when they are asked for."""

    what: str
    mends: Callable[[], list[Family]]


Check = Callable[[Case], Problem | None]


def first_problem(case: Case, checks: Sequence[Check]) -> tuple[int, Problem] | None:
    """The first check that fails, and what it found."""
    for turn, check in enumerate(checks):
        if (found := check(case)) is not None:
            return turn, found
    return None


def find_mend(case: Case, checks: Sequence[Check], turn: int, problem: Problem) -> str:
    """The first mend of each family that passes every check, or at least this one; two families at most."""
    for enough in (len(checks), turn + 1):
        found = [mend for family in problem.mends() if (mend := _first_working(case, checks, family, enough))]
        if found:
            return "use " + ", or ".join(_words(case, mend) for mend in found[:2])
    return ""


def _first_working(case: Case, checks: Sequence[Check], family: Family, enough: int) -> Mend | None:
    """The first mend with which the first `enough` checks pass; those far from what was said aren't tried."""
    mends = (mend for start in family for mend in _completed(case, start))
    near = itertools.islice(mends, MOST_TRIED)
    return next((mend for mend in near if _passed(case, checks, mend) >= enough), None)


def _completed(case: Case, mend: Mend) -> Iterator[Mend]:
    """A mend alone, and with what must follow from it: no sp without tp, other stages, another batch."""
    layout, full = case.layout, dict(mend)
    if mend.get("tp") == 1 and layout.sp:
        full["sp"] = False
    if layout.stage_layers is not None and {"pp", "virtual_stages", "schedule"} & set(mend):
        full["stage_layers"] = None
    yield full
    if "global_batch" not in full:
        sizes = {key: full.get(key, getattr(layout, key)) for key in ("tp", "pp", "cp")}
        samples = layout.micro_batch * max(1, layout.devices // (sizes["tp"] * sizes["pp"] * sizes["cp"]))
        yield {**full, "global_batch": max(1, round(layout.global_batch / samples)) * samples}
        yield {**full, "global_batch": 2 * sizes["pp"] * samples}


def _passed(case: Case, checks: Sequence[Check], mend: Mend) -> int:
    """How many checks pass in a row with a mend."""
    try:
        found = first_problem(case.mended(mend), checks)
    except UserError:
        return 0
    return len(checks) if found is None else found[0]


def _words(case: Case, mend: Mend) -> str:
    """`{"tp": 1, "sp": False}` as `tp 1 with sp false`; what comes by itself goes without saying."""
    now = {**case.layout.said(), "seq_len": case.seq_len}
    for key in [key for key in mend if key not in now]:
        shorter = {other: value for other, value in mend.items() if other != key}
        if shorter and case.mended(shorter) == case.mended(mend):
            mend = shorter
    parts = [f"{key} {as_text(value)}" for key, value in mend.items() if key not in now or value != now[key]]
    return " with ".join([parts[0], " and ".join(parts[1:])] if parts[1:] else parts)


def as_text(value: Any) -> str:
    """A value as YAML has it on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {as_text(inner)}" for key, inner in value.items()) + "}"
    names = {None: "null", True: "true", False: "false"}
    return str(value) if type(value) in (int, float, str) else names[value]


def near(wanted: int, most: int) -> Iterator[int]:
    """1 to `most`, nearest to `wanted` first, the smaller of two before the larger."""
    return iter(sorted(range(1, most + 1), key=lambda number: (abs(number - wanted), number)))

"""The sizes that each kind of schedule needs, and the errors for others.

    kind                            virtual stages   micro-batches
    gpipe 1f1b zb-h1 pipedream      1                any
    interleaved zb-interleaved      2 or more        any (groups of pp; uneven ones are evened out)
    zbv                             2                any (2 pp - 1 fill it)
    dualpipev                       2                2 pp or more
    dualpipe                        2, and even pp   2 pp or more, even

The virtual stages of dualpipe are the two ways; its model is cut into pp parts, not 2 pp.
"""

from __future__ import annotations

from typing import NamedTuple

from scalewright.spec.errors import UserError
from scalewright.spec.schedules.kinds import find_kind


class SizeProblem(NamedTuple):
    """A condition that sizes break, and a fix: `how` as a sentence, or the `micro_batches` that work."""

    what: str
    how: str = ""
    micro_batches: int = 0


def check_sizes(kind: str, ranks: int, virtual_stages: int, micro_batches: int) -> None:
    """Raises UserError when there is no such schedule of these sizes."""
    find_kind(kind)
    sizes = {"pp": ranks, "virtual_stages": virtual_stages, "micro_batches": micro_batches}
    for key, value in sizes.items():
        if value < 1:
            raise UserError(f"{key} is {value}", "schedule", f"use {key} 1 or more")
    if problem := find_problem(kind, ranks, virtual_stages, micro_batches):
        raise UserError(problem.what, "schedule", problem.how or f"use micro_batches {problem.micro_batches}")


def find_problem(kind: str, ranks: int, virtual_stages: int, micro_batches: int) -> SizeProblem | None:
    """The first condition of the table above that these sizes break; None when all hold."""
    if problem := _stages_problem(kind, ranks, virtual_stages):
        return problem
    record = find_kind(kind)
    if record.paired and micro_batches < 2 * ranks:
        return SizeProblem(
            f"{micro_batches} micro-batches are fewer than 2 x pp {ranks} = {2 * ranks}, which schedule {kind} needs",
            micro_batches=2 * ranks,
        )
    if record.both_ways and ranks % 2:
        return SizeProblem(
            f"schedule {kind} pairs the ranks but pp {ranks} is odd", "use schedule dualpipev, or an even pp"
        )
    if record.both_ways and micro_batches % 2:
        return SizeProblem(
            f"schedule {kind} halves the micro-batches but {micro_batches} is odd", micro_batches=micro_batches + 1
        )
    return None


def _stages_problem(kind: str, ranks: int, virtual_stages: int) -> SizeProblem | None:
    record = find_kind(kind)
    other = record.sibling
    if record.stages == "several":
        if virtual_stages > 1:
            return None
        instead = f"schedule {other}"
        return SizeProblem(
            f"schedule {kind} needs virtual_stages 2 or more but it is {virtual_stages}",
            f"use {instead}" if ranks == 1 else f"use virtual_stages 2, or {instead}",
        )
    needed = 2 if record.stages == "two" else 1
    if virtual_stages == needed:
        return None
    how = f"use virtual_stages {needed}"
    if record.stages == "one" and other and ranks > 1:
        how += f", or schedule {other}"
    return SizeProblem(f"schedule {kind} takes virtual_stages {needed} but it is {virtual_stages}", how)

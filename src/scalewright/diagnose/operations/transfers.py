"""Which compute a send or receive belongs to, and which send a receive takes from.

    forward, micro-batch 3   place 0 ──send──► recv ── place 1 ──send──► recv ── place 2
    backward                 place 0 ◄─recv ── send ── place 1 ...       places: model chunks, in order

A stage's sends belong to its computes in order. The first place receives nothing forward and the last sends
nothing: tables lack those, or have them as operations that take no time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scalewright.diagnose.operations.kinds import Kind, kind_of
from scalewright.diagnose.operations.table import Operation

Transfer = tuple[int, int, int]  # direction, micro-batch, the sender's place


def transfers(
    operations: Sequence[Operation], rows: Sequence[int], computes: Sequence[int], last: int
) -> Iterator[tuple[int, int, Transfer | None]]:
    """For a stage's sends and receives: (its row, its compute's row, the transfer, None where there is none).

    `rows`, `computes`: of the stage, by their start. `last`: the model's last place.
    """
    for name in sorted({operations[row].name for row in rows}):
        kind = kind_of(name)
        if not kind.passes:
            continue
        passing = [row for row in rows if operations[row].name == name]
        of_direction = [row for row in computes if kind_of(operations[row].name).direction == kind.direction]
        needing = [row for row in of_direction if not _at_the_end(operations[row], kind, last)]
        if len(passing) == len(needing):
            users = needing
        elif len(passing) <= len(of_direction):  # those that pass nothing on are recorded, but for the first
            users = of_direction[len(of_direction) - len(passing) :]
        else:
            continue
        for row, compute in zip(passing, users, strict=True):
            user = operations[compute]
            sender = user.place if kind.sends else user.place - kind.direction
            nothing = _at_the_end(user, kind, last)
            yield row, compute, None if nothing else (kind.direction, user.micro_batch, sender)


def _at_the_end(operation: Operation, kind: Kind, last: int) -> bool:
    """Whether a compute has nobody to send to, or to receive from."""
    return operation.place == (last if kind.sends == (kind.direction > 0) else 0)

"""Builds a schedule from a kind and three sizes: every rank's order, then the messages."""

from __future__ import annotations

from scalewright.spec.schedules.check import check_sizes
from scalewright.spec.schedules.kinds import find_kind, stage_ranks
from scalewright.spec.schedules.messages import with_messages
from scalewright.spec.schedules.schedule import Schedule


def schedule(kind: str, ranks: int, virtual_stages: int, micro_batches: int, pairs: bool = False) -> Schedule:
    """Every rank's ordered actions for one step; raises UserError when there is no such schedule.

    `pairs` is for a runtime that computes a forward and a backward together (dualpipev, dualpipe): it marks
    the forwards of the pairs and puts the receives of both before. Without pairs no such wait is needed.

    >>> schedule("1f1b", ranks=2, virtual_stages=1, micro_batches=1).actions[1][0]
    Action(kind='receive_activation', stage=1, micro=0, peer=0, overlap=False)
    """
    check_sizes(kind, ranks, virtual_stages, micro_batches)
    orders = [find_kind(kind).order(rank, ranks, virtual_stages, micro_batches) for rank in range(ranks)]
    if not pairs:
        orders = [
            [action._replace(overlap=False) if action.overlap else action for action in order] for order in orders
        ]
    plain = Schedule(
        kind, ranks, virtual_stages, micro_batches, stage_ranks(kind, ranks, virtual_stages), tuple(map(tuple, orders))
    )
    return with_messages(plain)

"""Builds a schedule from a kind and three sizes, which it checks: every rank's order, then its messages.

Sends and receives stand among the computations so that in-order, blocking receives can't deadlock.

    rank 1:  ... receive_activation(stage 1, micro 3)  forward(1, 3)  send_activation(1, 3) ...
    rank 2:                                    ... receive_activation(2, 3)  forward(2, 3) ...

A send follows the computation of its tensor. A receive precedes the computation that needs it, but follows
the receives of all messages that the same peer sent earlier: both ends have one order per pair of ranks and
direction. That costs no time (the earlier message was sent before the needed one) and adds no cycle of waits
to those of the computations. Two neighbouring stages on one rank need no message.

    kind                            virtual stages   micro-batches
    gpipe 1f1b zb-h1 pipedream      1                any
    interleaved zb-interleaved      2 or more        any (groups of pp; uneven ones are evened out)
    zbv                             2                any (2 pp - 1 fill it)
    dualpipev                       2                2 pp or more
    dualpipe                        2, and even pp   2 pp or more, even

The virtual stages of dualpipe are the two ways; its model is cut into pp parts, not 2 pp.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import NamedTuple

from scalewright.spec.common.formatting import counted
from scalewright.spec.errors import UserError
from scalewright.spec.schedules.action import Action, Message
from scalewright.spec.schedules.kinds import find_kind, stage_ranks
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
    if find_kind(kind).paired and not pairs:
        orders = [[action._replace(overlap=False) for action in order] for order in orders]
    rank_of = stage_ranks(kind, ranks, virtual_stages)
    return with_messages(Schedule(kind, ranks, virtual_stages, micro_batches, rank_of, tuple(map(tuple, orders))))


# The sort of tensor that a computation needs from one neighbour stage and gives to the other.
_TENSOR = {"forward": "activation", "backward": "gradient", "backward_input": "gradient"}
_Pair = tuple[int, int]  # (sending rank, receiving rank)


def with_messages(plain: Schedule) -> Schedule:
    """The same schedule with its messages; `plain` holds computations only."""
    channels: defaultdict[_Pair, list[Action]] = defaultdict(list)  # each pair's receives, in order
    place: dict[tuple[str, int, int], tuple[int, int]] = {}  # receive -> (sending rank, position)
    for rank, actions in enumerate(plain.actions):
        for action in actions:
            if receive := _receive_of(plain, action):
                channel = channels[rank, plain.rank_of[receive.stage]]
                place[receive.kind, receive.stage, receive.micro] = (rank, len(channel))
                channel.append(receive)
    return replace(plain, actions=tuple(_weave(plain, rank, channels, place) for rank in range(plain.ranks)))


def _weave(
    plain: Schedule, rank: int, channels: dict[_Pair, list[Action]], place: dict[tuple[str, int, int], tuple[int, int]]
) -> tuple[Action, ...]:
    """One rank's computations with its receives before and its sends after them."""
    woven: list[Action] = []
    taken: defaultdict[int, int] = defaultdict(int)  # messages taken so far, by peer
    computations = plain.actions[rank]
    for index, action in enumerate(computations):
        # A pair that may be computed together needs both of its inputs first.
        unit = computations[index : index + 2] if action.overlap else (action,)
        needs = [(f"receive_{_TENSOR[a.kind]}", a.stage, a.micro) for a in unit if a.kind in _TENSOR]
        for peer, position in (place[needed] for needed in needs if needed in place):  # others are on this rank
            while taken[peer] <= position:
                woven.append(channels[peer, rank][taken[peer]])
                taken[peer] += 1
        woven.append(action)
        if receive := _receive_of(plain, action):
            kind: Message = "send_activation" if receive.kind == "receive_activation" else "send_gradient"
            woven.append(Action(kind, action.stage, action.micro, plain.rank_of[receive.stage]))
    return tuple(woven)


def _receive_of(plain: Schedule, action: Action) -> Action | None:
    """The receive of an action's result on another rank; None when no message is sent."""
    if (tensor := _TENSOR.get(action.kind)) is None:
        return None
    stage = plain.after(action.stage) if tensor == "activation" else plain.before(action.stage)
    rank = plain.rank_of[action.stage]
    if stage is None or plain.rank_of[stage] == rank:
        return None
    kind: Message = "receive_activation" if tensor == "activation" else "receive_gradient"
    return Action(kind, stage, action.micro, rank)


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
        few = f"{counted(micro_batches, 'micro-batches are')} fewer than 2 x pp {ranks} = {2 * ranks}"
        return SizeProblem(f"{few}, which schedule {kind} needs", micro_batches=2 * ranks)
    if record.both_ways and ranks % 2:
        how = "use schedule dualpipev, or an even pp"
        return SizeProblem(f"schedule {kind} pairs the ranks but pp {ranks} is odd", how)
    if record.both_ways and micro_batches % 2:
        what = f"schedule {kind} halves the micro-batches but {micro_batches} is odd"
        return SizeProblem(what, micro_batches=micro_batches + 1)
    return None


def _stages_problem(kind: str, ranks: int, virtual_stages: int) -> SizeProblem | None:
    record = find_kind(kind)
    if record.stages == "several":
        how = "use " + ("" if ranks == 1 else "virtual_stages 2, or ") + f"schedule {record.sibling}"
        what = f"schedule {kind} needs virtual_stages 2 or more but it is {virtual_stages}"
        return SizeProblem(what, how) if virtual_stages == 1 else None
    needed = 2 if record.stages == "two" else 1
    if virtual_stages == needed:
        return None
    how = f"use virtual_stages {needed}"
    if record.stages == "one" and record.sibling and ranks > 1:
        how += f", or schedule {record.sibling}"
    return SizeProblem(f"schedule {kind} takes virtual_stages {needed} but it is {virtual_stages}", how)

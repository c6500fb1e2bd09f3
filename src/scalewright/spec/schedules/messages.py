"""Sends and receives, put among the computations so that in-order, blocking receives can't deadlock.

    rank 1:  ... receive_activation(stage 1, micro 3)  forward(1, 3)  send_activation(1, 3) ...
    rank 2:                                    ... receive_activation(2, 3)  forward(2, 3) ...

A send follows the computation of its tensor. A receive precedes the computation that needs it, but follows
the receives of all messages that the same peer sent earlier: both ends have one order per pair of ranks and
direction. That costs no time (the earlier message was sent before the needed one) and adds no cycle of waits
to those of the computations. Two neighbouring stages on one rank need no message.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from scalewright.spec.schedules.action import Action, Message
from scalewright.spec.schedules.schedule import Schedule

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
    return Schedule(
        plain.kind,
        plain.ranks,
        plain.virtual_stages,
        plain.micro_batches,
        plain.rank_of,
        tuple(_weave(plain, rank, channels, place) for rank in range(plain.ranks)),
    )


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
        for needed in _needs(plain, unit):
            if needed not in place:
                continue
            peer, position = place[needed]
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
    tensor = _TENSOR.get(action.kind)
    if tensor is None:
        return None
    stage = plain.after(action.stage) if tensor == "activation" else plain.before(action.stage)
    rank = plain.rank_of[action.stage]
    if stage is None or plain.rank_of[stage] == rank:
        return None
    kind: Message = "receive_activation" if tensor == "activation" else "receive_gradient"
    return Action(kind, stage, action.micro, rank)


def _needs(plain: Schedule, actions: Sequence[Action]) -> list[tuple[str, int, int]]:
    """The receives that these computations can't start without (some may be local: then none exists)."""
    return [
        ("receive_" + _TENSOR[action.kind], action.stage, action.micro) for action in actions if action.kind in _TENSOR
    ]

"""Actions of a rank: a computation, or a message to or from another rank."""

from __future__ import annotations

from typing import Literal, NamedTuple

Compute = Literal["forward", "backward", "backward_input", "backward_weight"]
Message = Literal["send_activation", "receive_activation", "send_gradient", "receive_gradient"]
ActionKind = Compute | Message

COMPUTE: frozenset[str] = frozenset({"forward", "backward", "backward_input", "backward_weight"})
SENDS: frozenset[str] = frozenset({"send_activation", "send_gradient"})
RECEIVES: frozenset[str] = frozenset({"receive_activation", "receive_gradient"})


class Action(NamedTuple):
    """One action of a rank; `stage` is always a stage of that rank.

    A send of an activation follows the forward of `stage`, a receive of one comes before it; gradients likewise around
    the backward. `peer` is the rank at the other end of a message. `overlap` marks a forward that the schedule's
    authors compute together with the next backward of the same rank; computing it first gives the same numbers.
    """

    kind: ActionKind
    stage: int
    micro: int
    peer: int = -1
    overlap: bool = False

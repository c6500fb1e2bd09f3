"""From a few micro-batches to a whole step of a pipeline: what each action costs, in the schedule's order.

    played    F0 F1 B0 F2 B1 B2            each action measured: FLOPs, traffic, bytes that it adds and frees,
                                           and how high it stands in between
    replayed  F0 F1 F2 F3 B0 F4 B1 ...     the same pieces, in the order of the rank's own, longer list

A stage's first forward and first backward differ from the others (gradients begin), and so does its last
backward (reductions). A receive posts the next one from its peer, but for the last. A sent message is freed
when a later message from its receiver acknowledges it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from scalewright.parallel.messages import acknowledgements
from scalewright.spec.schedule import COMPUTE, RECEIVES, SENDS, Action, Schedule

Traffic = dict[tuple[str, str, int], tuple[int, int]]  # (axis, kind, group size) -> (count, bytes)
Bytes = dict[str, int]  # by kind
Turn = Literal["first", "middle", "last"]
Key = tuple[str, int, Turn]  # an action's kind, its stage's place among the rank's, its turn


@dataclass(frozen=True)
class Piece:
    """A part of a step. Bytes are relative to those alive when it began."""

    flops: int
    traffic: Traffic
    change: Bytes  # by when it ended
    most: Bytes  # every kind at its own highest
    peak: Bytes  # every kind when their sum was highest


@dataclass(frozen=True)
class RankStep:
    """What one rank does and holds in a step."""

    flops: int
    traffic: Traffic
    most: Bytes  # every kind at its own highest
    at_peak: Bytes  # every kind when their sum is highest
    outer: Traffic = field(default_factory=dict)  # of the outer steps of all fragments (DiLoCo)

    @property
    def peak(self) -> int:
        """The highest sum."""
        return sum(self.at_peak.values())


@dataclass(frozen=True)
class Script:
    """A rank's step in pieces: what comes before and after its actions, and one of every sort of action."""

    alive: Bytes  # when the step began
    before: Piece
    pieces: dict[Key, Piece]
    after: Piece  # from when all messages have arrived


def sorts(plan: Schedule, rank: int) -> Iterator[Key]:
    """The sort of each of a rank's actions, in their order."""
    places = {stage: place for place, stage in enumerate(plan.stages_of(rank))}
    last = {a.stage: n for n, a in enumerate(plan.actions[rank]) if a.kind in ("backward", "backward_weight")}
    last_of_peer = {a.peer: n for n, a in enumerate(plan.actions[rank]) if a.kind in RECEIVES}
    begun: set[tuple[str, int]] = set()
    for number, action in enumerate(plan.actions[rank]):
        turn: Turn = "middle"
        if action.kind in COMPUTE:
            part = action.kind if action.kind in ("forward", "backward_input") else "backward"
            if last.get(action.stage) == number:
                turn = "last"
            elif (part, action.stage) not in begun:
                turn = "first"
            begun.add((part, action.stage))
        elif action.kind in RECEIVES and last_of_peer[action.peer] == number:
            turn = "last"
        yield action.kind, places[action.stage], turn


def shorten(plan: Schedule, rank: int) -> Schedule:
    """A part of a schedule, of as few micro-batches as have every sort of action of the rank; renumbered."""
    wanted, kept = list(sorts(plan, rank)), {0, plan.micro_batches - 1}
    while True:
        short = _only(plan, rank, kept)
        missing = set(wanted) - set(sorts(short, rank))
        more = {a.micro for a, sort in zip(plan.actions[rank], wanted, strict=True) if sort in missing} - kept
        if not more:
            return short
        kept.add(min(more))


def _only(plan: Schedule, rank: int, kept: Iterable[int]) -> Schedule:
    number = {micro: index for index, micro in enumerate(sorted(kept))}
    kept_actions = tuple(a._replace(micro=number[a.micro]) for a in plan.actions[rank] if a.micro in number)
    actions = tuple(kept_actions if other == rank else () for other in range(plan.ranks))
    return replace(plan, micro_batches=len(number), actions=actions)


def replay(script: Script, plan: Schedule, rank: int) -> RankStep:
    """The step of a rank that has the script's stages at its own place in the schedule."""
    state = _State(dict(script.alive))
    state.take(script.before)
    messages = _SentMessages(plan, rank, script)
    for action, sort in zip(plan.actions[rank], sorts(plan, rank), strict=True):
        state.take(script.pieces[sort])
        state.free(messages.after(action))
    state.free(messages.rest())
    state.take(script.after)
    return RankStep(state.flops, state.traffic(), state.most, state.at_peak)


class _State:
    def __init__(self, now: Bytes) -> None:
        self.now, self.most, self.at_peak = now, dict(now), dict(now)
        self.flops = 0
        self._count: Counter[tuple[str, str, int]] = Counter()
        self._bytes: Counter[tuple[str, str, int]] = Counter()

    def take(self, piece: Piece) -> None:
        """Goes through a piece."""
        self.flops += piece.flops
        for key, (count, size) in piece.traffic.items():
            self._count[key] += count
            self._bytes[key] += size
        top = {kind: self.now[kind] + more for kind, more in piece.peak.items()}
        if sum(top.values()) > sum(self.at_peak.values()):
            self.at_peak = top
        for kind in self.now:
            self.most[kind] = max(self.most[kind], self.now[kind] + piece.most[kind])
            self.now[kind] += piece.change[kind]

    def free(self, size: int) -> None:
        """Subtracts sent messages that are freed: the watch counts them as activations."""
        self.now["activations"] -= size

    def traffic(self) -> Traffic:
        """Counts and bytes of every collective."""
        return {key: (self._count[key], self._bytes[key]) for key in self._count}


class _SentMessages:
    """Sent messages that are still alive; a peer's messages acknowledge those that it has received."""

    def __init__(self, plan: Schedule, rank: int, script: Script) -> None:
        self.acknowledged = {peer: deque(counts) for peer, counts in acknowledgements(plan, rank).items()}
        self.sent: Counter[int] = Counter()  # to each peer
        self.freed: Counter[int] = Counter()  # of these
        sends = [piece for (kind, _, _), piece in script.pieces.items() if kind in SENDS]
        sent = [size for piece in sends for (axis, _, _), (_, size) in piece.traffic.items() if axis == "pp"]
        self.size = sent[0] if sent else 0  # all are of one shape

    def after(self, action: Action) -> int:
        """Bytes that are freed with an action."""
        if action.kind in SENDS:
            self.sent[action.peer] += 1
        elif action.kind in RECEIVES and self.acknowledged.get(action.peer):
            received = self.acknowledged[action.peer].popleft()
            freed, self.freed[action.peer] = received - self.freed[action.peer], received
            return freed * self.size
        return 0

    def rest(self) -> int:
        """Bytes of all that is left."""
        return (self.sent.total() - self.freed.total()) * self.size

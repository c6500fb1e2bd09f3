"""The simulation of a schedule: start and end of every action, for planner, report and tests.

    rank 0   F0 >  F1 >  . . . . . . . . > B0      a rank runs its list in order;
               |     |              |              a send (>) is asynchronous, a receive blocks;
    rank 1     > F0 B0 > F1 . . . .                a link carries one message at a time, each way,
                                                   from when its receiver has taken the one before

    bubble of a rank = 1 - its busy time / makespan

Costs may differ by stage and micro-batch; the order never changes, so a slow stage shows as waits.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from scalewright.spec.errors import RunError
from scalewright.spec.schedules.action import COMPUTE, RECEIVES, SENDS, Action
from scalewright.spec.schedules.schedule import Schedule


class Deadlock(RunError):
    """A schedule in which an action waits for an input that never comes."""


@dataclass(frozen=True)
class StageCost:
    """Seconds that one micro-batch takes in one stage. A whole backward is both parts, unless given."""

    forward: float
    backward_input: float
    backward_weight: float
    whole_backward: float | None = None

    @property
    def backward(self) -> float:
        """Seconds of a backward that isn't split."""
        parts = self.backward_input + self.backward_weight
        return parts if self.whole_backward is None else self.whole_backward


Seconds = Callable[[Action], float]
PairSeconds = Callable[[Action, Action], float]  # of a forward and a backward that are computed together
Cost = StageCost | Sequence[StageCost] | Seconds


@dataclass(frozen=True)
class Timing:
    """Start and end of every action, in seconds from the step's start; parallel to `schedule.actions`.

    A send lasts from its start until the message has arrived, a receive from when the rank begins to wait
    until it continues.
    """

    schedule: Schedule
    spans: tuple[tuple[tuple[float, float], ...], ...]
    busy: tuple[float, ...]  # by rank: seconds in which it computes

    @cached_property
    def makespan(self) -> float:
        """Seconds until the last action has ended: the step, if all ranks wait for each other at its end."""
        return max((end for spans in self.spans for _, end in spans), default=0.0)

    @property
    def bubble(self) -> tuple[float, ...]:
        """Share of the makespan in which each rank doesn't compute."""
        return tuple(1 - busy / self.makespan if self.makespan else 0.0 for busy in self.busy)

    @property
    def bubble_fraction(self) -> float:
        """Share of all ranks' time in which they don't compute."""
        return sum(self.bubble) / len(self.bubble)

    @property
    def active(self) -> tuple[float, ...]:
        """Seconds from each rank's first computation to the end of its last (as Qi et al. 2023 count)."""
        seconds = []
        for actions, spans in zip(self.schedule.actions, self.spans, strict=True):
            computed = [span for action, span in zip(actions, spans, strict=True) if action.kind in COMPUTE]
            seconds.append(max(end for _, end in computed) - min(start for start, _ in computed))
        return tuple(seconds)


def simulate(
    schedule: Schedule, cost: Cost, send: float | Seconds = 0.0, overlapped: float | PairSeconds | None = None
) -> Timing:
    """When every action runs, given what each costs; raises Deadlock when an input never comes.

    `cost` is one StageCost for all stages, one for each, or seconds as a function of the action. `send` is
    how long a message occupies its link (0: it arrives at once). `overlapped` is the time of a forward and a
    backward that are computed together (`Action.overlap`); without it they run one after the other.
    """
    together = overlapped if overlapped is None or callable(overlapped) else lambda _forward, _backward: overlapped
    return _Clock(schedule, _seconds(cost), send if callable(send) else lambda _: send, together).run()


def _seconds(cost: Cost) -> Seconds:
    if callable(cost):
        return cost
    if isinstance(cost, StageCost):
        stage_cost = cost
        return lambda action: float(getattr(stage_cost, action.kind))
    stage_costs = cost
    return lambda action: float(getattr(stage_costs[action.stage], action.kind))


class _Sent(NamedTuple):
    """A message on its link."""

    receive: tuple[str, int, int]  # kind, stage and micro-batch of the action that takes it
    seconds: float  # that it occupies its link
    position: int  # of its send among the sender's actions


class _Clock:
    """The state of one simulation: each rank's time, messages on links, inputs that are ready."""

    def __init__(self, schedule: Schedule, cost: Seconds, send: Seconds, overlapped: PairSeconds | None) -> None:
        self.schedule, self.cost, self.send, self.overlapped = schedule, cost, send, overlapped
        self.now = [0.0] * schedule.ranks
        self.busy = [0.0] * schedule.ranks
        self.spans: list[list[tuple[float, float]]] = [[] for _ in range(schedule.ranks)]
        self.links: defaultdict[tuple[int, int], deque[_Sent]] = defaultdict(deque)
        self.free: defaultdict[tuple[int, int], float] = defaultdict(float)  # when a link can carry the next
        self.posted: defaultdict[tuple[int, int], float] = defaultdict(float)  # and its receiver take it
        self.ready: set[tuple[str, int, int]] = set()  # activations and gradients that a stage can use
        self.joint: dict[int, tuple[float, float]] = {}  # by rank: the span of the pair being computed

    def run(self) -> Timing:
        runnable, blocked = deque(range(self.schedule.ranks)), set[int]()
        while runnable:
            rank = runnable.popleft()
            actions = self.schedule.actions[rank]
            while len(self.spans[rank]) < len(actions):
                action = actions[len(self.spans[rank])]
                if not self._do(rank, action):
                    blocked.add(rank)
                    break
                if action.kind in SENDS and action.peer in blocked:
                    blocked.remove(action.peer)
                    runnable.append(action.peer)
        if blocked:
            action = self.schedule.actions[rank := min(blocked)][len(self.spans[rank])]
            raise Deadlock(f"schedule {self.schedule.kind}: rank {rank} waits for ever in {_name(action)}")
        return Timing(self.schedule, tuple(map(tuple, self.spans)), tuple(self.busy))

    def _do(self, rank: int, action: Action) -> bool:
        """Runs the rank's next action; False when it must wait for a message."""
        start = end = self.now[rank]
        if action.kind in RECEIVES:
            if not (link := self.links[action.peer, rank]):
                return False
            end = self._receive(rank, action, start, link.popleft())
        elif action.kind in SENDS:
            start = end = self._send(rank, action, start)
        else:
            start, end = self._compute(rank, action, start)
        self.spans[rank].append((start, end))
        return True

    def _receive(self, rank: int, action: Action, now: float, sent: _Sent) -> float:
        """Takes a message off its link and returns when the rank goes on."""
        if sent.receive != (action.kind, action.stage, action.micro):
            coming = "{} of stage {}, micro-batch {}".format(*sent.receive)
            raise Deadlock(f"schedule {self.schedule.kind}: rank {rank} expects {_name(action)} but {coming} is next")
        self.ready.add((action.kind.removeprefix("receive_"), action.stage, action.micro))
        link, spans = (action.peer, rank), self.spans[action.peer]
        begun = max(spans[sent.position][0], self.free[link], self.posted[link])
        arrival = self.free[link] = begun + sent.seconds
        spans[sent.position] = (spans[sent.position][0], arrival)
        self.now[rank] = self.posted[link] = max(now, arrival)
        return self.now[rank]

    def _send(self, rank: int, action: Action, now: float) -> float:
        """Puts a message on its link and returns when it is ready to leave; its receive ends its span."""
        schedule, link = self.schedule, (rank, action.peer)
        forward = action.kind == "send_activation"
        stage = schedule.after(action.stage) if forward else schedule.before(action.stage)
        if stage is None:
            raise Deadlock(f"schedule {schedule.kind}: rank {rank} has no receiver for {_name(action)}")
        if rank in self.joint:  # the forward of a running pair: it leaves when both are done
            now = self.joint[rank][1]
        kind = action.kind.replace("send", "receive")
        self.links[link].append(_Sent((kind, stage, action.micro), self.send(action), len(self.spans[rank])))
        return now

    def _compute(self, rank: int, action: Action, now: float) -> tuple[float, float]:
        """Runs a computation, alone or as half of a pair, and returns its start and end."""
        self._check_inputs(rank, action)
        self._offer(action)
        if rank in self.joint:  # the second half of a pair
            start, end = self.joint.pop(rank)
            self.now[rank] = end
            return start, end
        seconds = self.cost(action)
        if action.overlap and self.overlapped is not None:
            actions = self.schedule.actions[rank]
            following = (a for a in actions[len(self.spans[rank]) + 1 :] if a.kind in COMPUTE)
            seconds = self.overlapped(action, next(following))
            self.joint[rank] = (now, now + seconds)
        else:
            self.now[rank] = now + seconds
        self.busy[rank] += seconds
        return now, now + seconds

    def _check_inputs(self, rank: int, action: Action) -> None:
        """Raises when a computation's input isn't ready by its turn: in this order it never will be."""
        schedule, stage, micro = self.schedule, action.stage, action.micro
        needs: list[tuple[str, int, int]] = []
        if action.kind == "forward" and schedule.before(stage) is not None:
            needs.append(("activation", stage, micro))
        if action.kind in ("backward", "backward_input"):
            needs.append(("kept", stage, micro))
            if schedule.after(stage) is not None:
                needs.append(("gradient", stage, micro))
        if action.kind == "backward_weight":
            needs.append(("input part", stage, micro))
        for need in needs:
            if need not in self.ready:
                raise Deadlock(f"schedule {schedule.kind}: rank {rank} reaches {_name(action)} without its {need[0]}")

    def _offer(self, action: Action) -> None:
        """Marks the results of a computation as ready on its own rank."""
        schedule, stage, micro = self.schedule, action.stage, action.micro
        if action.kind == "backward_weight":
            self.ready.discard(("input part", stage, micro))
            return
        if action.kind == "forward":
            result, neighbour = "activation", schedule.after(stage)
            self.ready.add(("kept", stage, micro))
        else:
            result, neighbour = "gradient", schedule.before(stage)
            self.ready.discard(("kept", stage, micro))
        if action.kind == "backward_input":
            self.ready.add(("input part", stage, micro))
        if neighbour is not None and schedule.rank_of[neighbour] == schedule.rank_of[stage]:
            self.ready.add((result, neighbour, micro))  # other ranks receive it as a message


def _name(action: Action) -> str:
    return f"{action.kind} of stage {action.stage}, micro-batch {action.micro}"

"""Schedules whose ranks hold an early and a late stage: the V (ZB-V, DualPipeV), bidirectional DualPipe.

    rank 0   stage 0         stage 7        a V: near = the early stage, far = the late one
    rank 1     stage 1     stage 6
    rank 2       stage 2 stage 5
    rank 3        stage 3 > 4

A micro-batch goes down the ranks and back up, so that rank 0 has the loss and starts its backwards first, and
all ranks hold about as many activations.
"""

from __future__ import annotations

from collections import defaultdict, deque

from scalewright.spec.schedules.action import Action


class _Tape:
    """A rank's list while it is built; each stage takes its micro-batches in order, from `first` on."""

    def __init__(self, first: dict[int, int] | None = None) -> None:
        self.actions: list[Action] = []
        self._next: defaultdict[tuple[str, int], int] = defaultdict(int)
        for stage, micro in (first or {}).items():
            self._next["forward", stage] = self._next["backward", stage] = micro
        self._waiting: deque[tuple[int, int]] = deque()  # input parts whose weight part is pending

    def forward(self, stage: int, overlap: bool = False) -> None:
        self.actions.append(Action("forward", stage, self._take("forward", stage), overlap=overlap))

    def backward(self, stage: int, split: bool = False) -> None:
        micro = self._take("backward", stage)
        self.actions.append(Action("backward_input" if split else "backward", stage, micro))
        if split:
            self._waiting.append((stage, micro))

    def weight(self, stage: int | None = None) -> None:
        """Adds the oldest pending weight part (of one stage, if given); nothing when none is pending."""
        unit = next((unit for unit in self._waiting if stage in (None, unit[0])), None)
        if unit is not None:
            self._waiting.remove(unit)
            self.actions.append(Action("backward_weight", *unit))

    def _take(self, kind: str, stage: int) -> int:
        micro = self._next[kind, stage]
        self._next[kind, stage] += 1
        return micro


def zbv(rank: int, ranks: int, _chunks: int, micros: int) -> list[Action]:
    """ZB-V (Qi et al. 2023 §6, 2024): no wait between a rank's first and last action when F = I = W.

    Written for 2 ranks - 1 micro-batches or more; with fewer, it is the same order without the others.

    rank 0 | F0a F1a F2a F3a F4a F0b I0b W0b F1b I1b W1b F2b I2b W2b F5a I0a W0a F3b I3b W3b I1a ...
    rank 1 | .   F0a F1a F2a F0b F3a F1b I0b W0b F2b I1b W1b F4a I0a W0a F3b I2b W2b F5a I1a W1a ...
    rank 2 | .   .   F0a F0b F1a F1b F2a F2b I0b W0b F3a I0a W0a F3b I1b W1b F4a I1a W1a F4b I2b ...
    """
    near, far = rank, 2 * ranks - 1 - rank
    enough = max(micros, 2 * ranks - 1)
    tape = _Tape()

    def whole(stage: int) -> None:
        tape.backward(stage, split=True)
        tape.weight(stage)

    for _ in range(2 * (ranks - rank) - 1):  # fill the way down and back
        tape.forward(near)
    for _ in range(rank):
        tape.forward(far)
        tape.forward(near)
    for _ in range(ranks - rank):  # the first micro-batches reach the loss
        tape.forward(far)
        whole(far)
    for turn in range(enough - ranks):  # steady: one of each, on both stages
        if turn < enough - (2 * ranks - 1 - rank):
            tape.forward(near)
        whole(near)
        tape.forward(far)
        whole(far)
    for _ in range(rank):  # drain: input parts first, other ranks wait for them
        tape.backward(near, split=True)
        tape.backward(far, split=True)
    for _ in range(ranks - rank):
        tape.backward(near, split=True)
        tape.weight(near)
    for stage in (far, near):
        for _ in range(rank):
            tape.weight(stage)
    return [action for action in tape.actions if action.micro < micros]


def dualpipev(rank: int, ranks: int, _chunks: int, micros: int) -> list[Action]:
    """DualPipeV (DeepSeek-AI 2025, after Sea AI Lab's "cut in half" of DualPipe): forwards beside backwards.

    rank 0 | F0a F1a F2a F0b I0b W0b F1b F3a B1b---- F2b B0a---- F4a B2b---- F3b B1a---- F5a B3b---- ...
    rank 1 | .   F0a F0b F1a F1b F2a B0b---- F2b B0a---- F3a B1b---- F3b B1a---- F4a B2b---- F4b ...

    From F3a on rank 0 and F2b on rank 1, a forward and the backward after it may be computed together.
    """
    tape = _Tape()
    _eight_steps(tape, rank, ranks, micros, near=rank, far=2 * ranks - 1 - rank)
    return tape.actions


def dualpipe(rank: int, ranks: int, _chunks: int, micros: int) -> list[Action]:
    """DualPipe (DeepSeek-AI 2024, V3's report §3.2.1): micro-batches enter at both ends.

    In each half of the ranks, the way that enters at its end is scheduled as DualPipeV's near stage.

    rank 0 | F0a F1a F2a F4b I4b W4b F5b F3a B5b---- F6b B0a---- B6b---- F7b .   B1a---- ...
    rank 1 | .   F0a F4b F1a F5b F2a B4b---- F6b B0a---- F3a B5b---- F7b B1a---- B6b---- ...
    rank 2 | .   F4b F0a F5b F1a F6b B0a---- F2a B4b---- F7b B1a---- F3a B5b---- B2a---- ...
    rank 3 | F4b F5b F6b F0a I0a W0a F1a F7b B1a---- F2a B4b---- B2a---- F3a .   B5b---- ...
    """
    down, up = rank, 2 * ranks - 1 - rank
    tape = _Tape({down: 0, up: micros // 2})
    from_the_end = min(rank, ranks - 1 - rank)
    near, far = (down, up) if rank < ranks // 2 else (up, down)
    _eight_steps(tape, from_the_end, ranks // 2, micros // 2, near, far)
    return tape.actions


def _eight_steps(tape: _Tape, rank: int, ranks: int, micros: int, near: int, far: int) -> None:
    """The eight steps of DeepSeek's published order, for rank `rank` of a fold `ranks` deep."""
    outer = ranks - 1 - rank  # ranks between this one and the fold
    for _ in range(2 * outer):  # 1. fill
        tape.forward(near)
    for _ in range(rank + 1):  # 2. both ways fill
        tape.forward(near)
        tape.forward(far)
    for _ in range(outer):  # 3. first backwards; the weight part fills the wait
        tape.backward(far, split=True)
        tape.weight()
        tape.forward(far)
    for turn in range(micros - 2 * ranks + rank + 1):  # 4. steady: pairs
        tape.forward(near, overlap=turn > 0 or outer > 0)  # at the fold the first pair would only wait
        tape.backward(far)
        tape.forward(far, overlap=True)
        tape.backward(near)
    for _ in range(outer):  # 5. no forward is left for the near stage
        tape.backward(far)
        tape.forward(far, overlap=True)
        tape.backward(near)
    for turn in range(2 * (rank + 1)):  # 6. drain; from half-way on, input parts first
        split = turn > rank
        tape.backward(near if turn % 2 else far, split)
    for _ in range(outer):  # 7. weight parts fill the waits
        tape.weight()
        tape.backward(near, split=True)
    for _ in range(rank + 1):  # 8. and end the step
        tape.weight()

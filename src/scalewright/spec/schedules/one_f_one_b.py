"""Schedules with round-robin stages (GPipe, 1F1B, interleaved, ZB-H1): one order with three parameters.

    warm      forwards before the first backward       (gpipe: all of them; the others: until one comes back)
    split     whole backwards, or input and weight parts apart
    delay     how many input parts the weight parts lag behind

A walk does `warm` forwards, then one forward and one backward in turn, then the backwards that are left.
"""

from __future__ import annotations

from collections.abc import Sequence

from scalewright.spec.schedules.action import Action

Unit = tuple[int, int]  # (stage, micro-batch)


def gpipe(rank: int, ranks: int, chunks: int, micros: int) -> list[Action]:
    """All forwards, then all backwards (Huang et al. 2019): all activations are alive in between.

    rank 0 | F0 F1 F2 F3 .  .  .  .  .  .  .  .  .  B0--- B1--- B2--- B3---
    rank 1 | .  F0 F1 F2 F3 .  .  .  .  .  .  B0--- B1--- B2--- B3--- .  .
    rank 2 | .  .  F0 F1 F2 F3 .  .  .  B0--- B1--- B2--- B3--- .  .  .  .
    rank 3 | .  .  .  F0 F1 F2 F3 B0--- B1--- B2--- B3--- .  .  .  .  .  .
    """
    forwards, backwards = _units(rank, ranks, chunks, [micros])
    return _walk(forwards, backwards, warm=len(forwards))


def one_forward_one_backward(rank: int, ranks: int, chunks: int, micros: int) -> list[Action]:
    """1F1B (PipeDream-Flush, Narayanan et al. 2021a; PipeDream runs the same order without the flush).

    Rank r holds at most ranks - r activations, whatever the number of micro-batches.

    rank 0 | F0 F1 F2 F3 .  .  .  .  .  .  B0--- F4 B1--- F5 B2--- ...
    rank 1 | .  F0 F1 F2 .  .  .  .  B0--- F3 B1--- F4 B2--- F5 B3--- ...
    rank 2 | .  .  F0 F1 .  .  B0--- F2 B1--- F3 B2--- F4 B3--- F5 ...
    rank 3 | .  .  .  F0 B0--- F1 B1--- F2 B2--- F3 B3--- F4 B4--- ...
    """
    forwards, backwards = _units(rank, ranks, chunks, [micros])
    return _walk(forwards, backwards, warm=ranks - 1 - rank)


def interleaved(rank: int, ranks: int, chunks: int, micros: int) -> list[Action]:
    """Interleaved 1F1B (Narayanan et al. 2021b): smaller stages, so that the bubble shrinks by `chunks`.

    Micro-batches go in groups; a group passes all chunks before the next group starts (a, b: chunks).

    rank 0 | F0a F1a F0b F1b F2a .   B0b---- F3a B1b---- F2b B0a---- F3b B1a---- ...
    rank 1 | .   F0a F1a F0b B0b---- F1b B1b---- F2a B0a---- F3a B1a---- F2b B2b---- ...
    """
    groups = _groups(ranks, micros)
    forwards, backwards = _units(rank, ranks, chunks, groups)
    return _walk(forwards, backwards, warm=(chunks - 1) * groups[0] + 2 * (ranks - 1 - rank))


def zero_bubble(rank: int, ranks: int, chunks: int, micros: int) -> list[Action]:
    """ZB-H1 (Qi et al. 2023), and the same with chunks: 1F1B whose weight parts fill the waits.

    Other ranks wait only for the input part of a backward. Rank r delays its weight parts by r
    micro-batches, so that every rank holds as many activations as 1F1B's first rank.

    rank 0 | F0 F1 F2 F3 .  .  .  I0 W0 F4 I1 W1 F5 I2 W2 ...
    rank 1 | .  F0 F1 F2 .  .  I0 F3 I1 W0 F4 I2 W1 F5 I3 ...
    rank 2 | .  .  F0 F1 .  I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 ...
    rank 3 | .  .  .  F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 ...
    """
    groups = _groups(ranks, micros) if chunks > 1 else [micros]
    forwards, backwards = _units(rank, ranks, chunks, groups)
    warm = (ranks - 1 - rank) + ((chunks - 1) * groups[0] if chunks > 1 else 0)
    return _walk(forwards, backwards, warm=warm, delay=rank)


def _groups(ranks: int, micros: int) -> list[int]:
    """Sizes of the groups of micro-batches: as even as can be, none below `ranks` while there are enough.

    With `micros` divisible by `ranks` they are all `ranks`, as in the paper. A group below `ranks` would
    make rank 0 wait for its own chunk; that happens only when there are fewer micro-batches than ranks.
    """
    rounds = max(1, micros // ranks)
    return [micros // rounds + (turn < micros % rounds) for turn in range(rounds)]


def _units(rank: int, ranks: int, chunks: int, groups: Sequence[int]) -> tuple[list[Unit], list[Unit]]:
    """A rank's forwards and its backwards, each in order: by group, chunk (backwards: last first), micro."""
    forwards: list[Unit] = []
    backwards: list[Unit] = []
    first = 0
    for size in groups:
        micros = range(first, first + size)
        forwards += [(chunk * ranks + rank, micro) for chunk in range(chunks) for micro in micros]
        backwards += [(chunk * ranks + rank, micro) for chunk in reversed(range(chunks)) for micro in micros]
        first += size
    return forwards, backwards


def _walk(forwards: list[Unit], backwards: list[Unit], warm: int, delay: int | None = None) -> list[Action]:
    """The walk of the file's docstring; `delay` None keeps backwards whole."""
    total = len(forwards)
    warm = min(warm, total)
    actions = [Action("forward", *unit) for unit in forwards[:warm]]
    for turn in range(total):
        if warm + turn < total:
            actions.append(Action("forward", *forwards[warm + turn]))
        actions.append(Action("backward" if delay is None else "backward_input", *backwards[turn]))
        if delay is not None and turn >= delay:
            actions.append(Action("backward_weight", *backwards[turn - delay]))
    if delay is not None:
        actions += [Action("backward_weight", *unit) for unit in backwards[max(0, total - delay) :]]
    return actions

"""A step put together from pieces: which part of a schedule is played, and what the pieces add up to."""

from __future__ import annotations

import pytest

from scalewright.dry_run.live_bytes import KINDS
from scalewright.dry_run.replay import Piece, Script, replay, shorten, sorts
from scalewright.spec.schedule import KINDS as SCHEDULES
from scalewright.spec.schedule import Schedule, peak_activations, schedule

TRAINED = [name for name, kind in SCHEDULES.items() if kind.trained]
SIZE = 100


def plan_of(kind: str, ranks: int, micros: int) -> Schedule:
    return schedule(kind, ranks, 1 if kind in ("gpipe", "1f1b", "zb-h1") else 2, micros)


@pytest.mark.parametrize("kind", TRAINED)
def test_a_few_micro_batches_have_every_sort_of_action(kind: str) -> None:
    plan = plan_of(kind, 8, 64)
    for rank in range(8):
        short = shorten(plan, rank)
        assert set(sorts(short, rank)) == set(sorts(plan, rank))
        assert short.micro_batches <= 6
        assert {action.micro for action in short.actions[rank]} == set(range(short.micro_batches))


def piece(change: int = 0, flops: int = 0) -> Piece:
    level = dict.fromkeys(KINDS, 0) | {"activations": change}
    high = dict.fromkeys(KINDS, 0) | {"activations": max(change, 0)}
    return Piece(flops, {}, level, high, high)


@pytest.mark.parametrize("kind", TRAINED)
def test_activations_as_the_schedule_counts_them(kind: str) -> None:
    plan = plan_of(kind, 4, 16)
    changes = {"forward": SIZE, "backward": -SIZE, "backward_weight": -SIZE}
    for rank in range(4):
        pieces = {key: piece(changes.get(key[0], 0), flops=1) for key in sorts(plan, rank)}
        step = replay(Script(dict.fromkeys(KINDS, 0), piece(), pieces, piece()), plan, rank)
        assert step.most["activations"] == step.peak == SIZE * peak_activations(plan)[rank]
        assert step.flops == len(plan.actions[rank])

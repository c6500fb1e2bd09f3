"""Our orders against PyTorch's schedule tables.

Where they differ on purpose:
- 1f1b: the table of the last rank starts with micro-batch 1 and leaves 0 out (torch runs another code path
  for it); the rest of that row, shifted by one, and all other rows agree.
- interleaved, zb-interleaved: torch refuses micro-batches that don't divide into equal groups; we even
  them out (`loop._groups`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from scalewright.spec.schedule import schedule

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

NAMES = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
Row = list[tuple[str, int, int]]


@pytest.fixture
def world() -> Iterator[Any]:
    """Starts a fake process group of a given size in this process."""
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")

    def start(ranks: int) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("fake", rank=0, world_size=ranks, store=fake.FakeStore())

    yield start
    if dist.is_initialized():
        dist.destroy_process_group()


def table(name: str, ranks: int, stages: list[int], micros: int) -> dict[int, Row]:
    """Every rank's computations in torch's schedule, with pairs split."""
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import get_schedule_class

    count = ranks * len(stages)
    parts = [PipelineStage(torch.nn.Identity(), s, count, torch.device("cpu")) for s in stages]
    single = name in ("GPipe", "1F1B")
    schedule_torch = get_schedule_class(name)(parts[0] if single else parts, n_microbatches=micros)
    order = schedule_torch._get_pipeline_order() if single else schedule_torch.pipeline_order
    rows: dict[int, Row] = {}
    for rank, actions in order.items():
        flat = [part for action in actions if action is not None for part in action.sub_actions or (action,)]
        rows[rank] = [
            (NAMES[kind], a.stage_index, a.microbatch_index)
            for a in flat
            if (kind := a.computation_type.value) in NAMES
        ]
    return rows


def ours(kind: str, ranks: int, virtual: int, micros: int) -> dict[int, Row]:
    plan = schedule(kind, ranks, virtual, micros)
    return {rank: [(a.kind, a.stage, a.micro) for a in plan.compute(rank)] for rank in range(ranks)}


LOOPED = [
    ("GPipe", "gpipe", 1),
    ("1F1B", "1f1b", 1),
    ("Interleaved1F1B", "interleaved", 2),
    ("Interleaved1F1B", "interleaved", 3),
    ("InterleavedZeroBubble", "zb-h1", 1),
    ("InterleavedZeroBubble", "zb-interleaved", 2),
    ("InterleavedZeroBubble", "zb-interleaved", 3),
    ("ZBVZeroBubble", "zbv", 2),
    ("DualPipeV", "dualpipev", 2),
]


@pytest.mark.parametrize(("name", "kind", "virtual"), LOOPED)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_orders_agree(world: Any, name: str, kind: str, virtual: int, ranks: int) -> None:
    world(ranks)
    stages = [0, 2 * ranks - 1] if kind in ("zbv", "dualpipev") else [c * ranks for c in range(virtual)]
    for micros in (2 * ranks, 3 * ranks, 2 * ranks + 2):
        if kind == "1f1b":
            compare_1f1b(table(name, ranks, stages, micros), ours(kind, ranks, virtual, micros), ranks)
            continue
        assert ours(kind, ranks, virtual, micros) == table(name, ranks, stages, micros)


def compare_1f1b(theirs: dict[int, Row], ours_by_rank: dict[int, Row], ranks: int) -> None:
    last = ranks - 1
    shifted = [(kind, stage, micro - (kind == "forward")) for kind, stage, micro in theirs.pop(last)]
    assert shifted == ours_by_rank.pop(last)
    assert theirs == ours_by_rank

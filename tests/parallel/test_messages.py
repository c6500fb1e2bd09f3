"""Messages come out as they went in, buffers are freed when they have arrived, and no order can deadlock."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from parallel.pipeline_cases import build, loss, micro_batches, tiny
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.messages import Messages, acknowledgements, lane
from scalewright.parallel.parallelize import parallelize
from scalewright.parallel.pipeline import Pipeline, Recorder
from scalewright.parallel.stages import cut_stages
from scalewright.spec.grid import make_grid
from scalewright.spec.groups import LANES
from scalewright.spec.layout import Layout
from scalewright.spec.placement import place
from scalewright.spec.schedule import COMPUTE, RECEIVES, SENDS, Action, Schedule, schedule
from worlds import run_world

KINDS = [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 3), ("zb-h1", 1)]
KINDS += [("zb-interleaved", 2), ("zb-interleaved", 3), ("zbv", 2), ("dualpipev", 2)]


def plans(most: int = 6) -> list[Schedule]:
    """Every schedule, of many sizes."""
    return [
        schedule(kind, ranks, chunks, micros)
        for kind, chunks in KINDS
        for ranks in range(2, most + 1)
        for micros in (1, 2, 3, 5, 8, 13, 16)
        if kind != "dualpipev" or micros >= 2 * ranks
    ]


# -- between real ranks ------------------------------------------------------------------------------


def talk(mesh: Mesh, layout: Layout) -> list[list[float]]:
    """Every rank sends 20 numbers to every other before it receives any; the numbers from each, in order."""
    messages, rank, received = Messages(mesh), mesh.index("pp"), []
    messages.start((4, 3), torch.float32, dict.fromkeys({*range(layout.pp)} - {rank}, 20))
    for number in range(20):
        for peer in range(layout.pp):
            if peer != rank:
                strided = torch.full((3, 4), float(100 * rank + number)).t()
                messages.send(strided, peer)
    for peer in range(layout.pp):
        if peer != rank:
            received.append([float(messages.receive(peer)[3, 2]) for _ in range(20)])
    messages.finish()
    assert not any(messages._sent.values())
    return received


def test_first_in_first_out() -> None:
    """Whatever the peer and the way, and though all are sent before any is received."""
    results = run_world(talk, {"devices": 3, "pp": 3})
    for rank, received in enumerate(results):
        others = [peer for peer in range(3) if peer != rank]
        assert received == [[100.0 * peer + number for number in range(20)] for peer in others]


def ahead(mesh: Mesh, layout: Layout) -> list[bool]:
    """Whether the next message is there before it is asked for; the last receive posts none."""
    messages, rank = Messages(mesh), mesh.index("pp")
    peer, there = 1 - rank, []
    messages.start((256, 256), torch.float32, {peer: 3})
    for number in range(3):
        messages.send(torch.full((256, 256), float(number)), peer)
    for number in range(3):
        assert messages.receive(peer)[0, 0] == number
        if number < 2:
            _, buffer = messages._posted[peer]
            until = time.monotonic() + 60
            while not bool((buffer == number + 1).all()) and time.monotonic() < until:
                time.sleep(0.001)
            there.append(bool((buffer == number + 1).all()))
    there.append(peer not in messages._posted)
    messages.finish()
    return there


def test_the_next_message_arrives_while_its_receiver_computes() -> None:
    for there in run_world(ahead, {"devices": 2, "pp": 2}):
        assert there == [True, True, True]


def held(mesh: Mesh, layout: Layout) -> list[int]:
    """The most sent tensors that a rank keeps in a step, those left after it, and after forwards alone."""
    spec, most = tiny(4), 0
    parallel = build(spec, layout, mesh)
    pipeline = parallel.executor
    assert isinstance(pipeline, Pipeline)

    class Watch(Recorder):
        def after(self, action: Action) -> None:
            nonlocal most
            most = max(most, sum(map(len, pipeline.messages._sent.values())))

    pipeline.recorder = Watch()
    pipeline.train(micro_batches(spec, layout.accumulation), loss, torch.tensor(100.0))
    left = sum(map(len, pipeline.messages._sent.values()))
    for micro in micro_batches(spec, 5):
        pipeline.total(micro, loss)
    return [most, left, sum(map(len, pipeline.messages._sent.values()))]


def test_sent_tensors_are_freed_when_they_have_arrived() -> None:
    layout = {"devices": 4, "pp": 4, "micro_batch": 2, "global_batch": 32}
    for most, left, forward_only in run_world(held, layout):
        assert 0 < most <= 2 * 4, "as many as are under way, not all of the step's 16 each way"
        assert left == 0
        assert forward_only <= 1, "a validation is one micro-batch ahead at most"


# -- from the schedule alone -------------------------------------------------------------------------


def test_acknowledgements_count_arrived_messages() -> None:
    """Counted in another way: the receives from us in a peer's list before each of its sends."""
    for plan in plans(4):
        for rank in range(plan.ranks):
            for peer, counts in acknowledgements(plan, rank).items():
                actions = plan.actions[peer]
                sends = [i for i, a in enumerate(actions) if a.kind in SENDS and a.peer == rank]
                assert len(counts) == len(sends)
                for position, count in zip(sends, counts, strict=True):
                    before = actions[:position]
                    assert count == sum(a.kind in RECEIVES and a.peer == rank for a in before)
                assert counts == sorted(counts)


@dataclass
class _Transfer:
    """A send or a receive in a communicator's queue; it starts when the stream has come to `position`."""

    sends: bool
    peer: int
    position: int
    done: bool = False


def finishes(plan: Schedule, channel: Callable[[int, int], Any]) -> bool:
    """Whether a schedule gets to its end on a device whose communicators work strictly in turn.

    A send and its receive happen together, when both are at the head of their queues and their ranks' streams
    have come so far; a stream stops at a receive that hasn't happened.
    """
    streams: list[list[_Transfer | None]] = [[] for _ in range(plan.ranks)]
    queues: defaultdict[tuple[int, Any], deque[_Transfer]] = defaultdict(deque)
    for rank, actions in enumerate(plan.actions):
        for action in actions:
            if action.kind in COMPUTE:
                streams[rank].append(None)
                continue
            sends = action.kind in SENDS
            ends = (rank, action.peer) if sends else (action.peer, rank)
            transfer = _Transfer(sends, action.peer, len(streams[rank]))
            queues[rank, channel(*ends)].append(transfer)
            if not sends:
                streams[rank].append(transfer)
    now, moved = [0] * plan.ranks, True
    while moved:
        moved = False
        for rank, stream in enumerate(streams):
            while now[rank] < len(stream) and ((step := stream[now[rank]]) is None or step.done):
                now[rank], moved = now[rank] + 1, True
        for (rank, name), queue in queues.items():
            other = queues.get((queue[0].peer, name)) if queue and queue[0].sends else None
            if not other or other[0].sends or other[0].peer != rank:
                continue
            if now[rank] >= queue[0].position and now[queue[0].peer] >= other[0].position:
                queue.popleft().done = other.popleft().done = moved = True
    return all(reached == len(stream) for reached, stream in zip(now, streams, strict=True))


def _direction(source: int, target: int) -> bool:
    return source < target


def test_lanes_keep_nccl_from_waiting_in_a_circle() -> None:
    stuck = set()
    for plan in plans():
        assert finishes(plan, lambda s, t: (_direction(s, t), lane(s, t))), plan.kind
        if not finishes(plan, _direction):
            stuck.add((plan.kind, plan.ranks))
    # One communicator for each direction would not do: hence the lanes.
    assert ("zb-interleaved", 3) in stuck
    assert ("zbv", 4) in stuck
    assert not any(ranks == 2 for _, ranks in stuck), "two ranks need no lanes, and get none"


def test_lanes_of_pairs_that_meet_differ() -> None:
    for plan in plans():
        pairs = {
            (rank, action.peer) for rank, actions in enumerate(plan.actions) for action in actions
            if action.peer >= 0 and action.peer != rank
        }  # fmt: skip
        for first, second in pairs:
            for third in {peer for rank, peer in pairs if rank == second} - {first}:
                assert lane(first, second) != lane(second, third)
    assert {int(name[-1]) for name in LANES} == {1, 2}, "lane 0 is the axis itself"


# -- without a network ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "rank"), [("1f1b", 0), ("interleaved", 3), ("zbv", 1), ("zb-h1", 2)])
def test_one_rank_of_a_fake_world(kind: str, rank: int) -> None:
    """The dry run: a rank's step on tensors without numbers, and no process at the other end."""
    from scalewright.dry_run.rehearse import fake_world

    layout = Layout.parse({"devices": 4, "pp": 4, "schedule": kind, "micro_batch": 2, "global_batch": 16})
    spec = tiny(8)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake_world(make_grid(layout), rank) as mesh:
        with torch.device("meta"):
            stages = cut_stages(spec, layout, rank)
        parallel = parallelize(stages, place(spec, layout), layout, mesh, bf16=False, memory=fake)
        with fake:
            losses = parallel.executor.train(micro_batches(spec, 8), loss, torch.tensor(100.0))
        assert losses.shape == (2,)
        assert all(weight.gradient is not None for weight in parallel.weights)

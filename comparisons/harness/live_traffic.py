"""What every rank sends in one step of a layout, watched: its real program on CPU processes.

    build the network -> one step, which makes what is made once -> one step, watched -> bytes on a ring

Every rank runs the trainer's own code over Gloo; the meter is the dry run's (`dry_run/watch.py`): it counts
each collective and its whole tensor. A gather's output and an all-reduce's tensor don't compare as they are:
what a rank sends of each is computed for a ring, the convention of the papers and of nccl-tests.
"""

from __future__ import annotations

from typing import Any

from harness.live_ranks import on_every_rank
from scalewright.dry_run.rehearse import Player
from scalewright.dry_run.watch import Watch
from scalewright.learn.communication import ring_volume
from scalewright.parallel.mesh import Mesh
from scalewright.spec.run import RunSpec
from scalewright.train.network import build_network, first_weights
from scalewright.train.resolve import resolve

Seen = list[dict[str, Any]]  # of one rank: axis, kind, group_size, count, bytes


def measure(run: dict[str, Any]) -> list[Seen]:
    """What each rank of a run sends in its second step; control traffic (some scalars) is left out."""
    return on_every_rank(_watch, resolve(RunSpec.parse(run), read_data=False).run)


def on_a_ring(seen: Seen) -> dict[str, float]:
    """Bytes that the rank sends over each axis.

    (n - 1) / n of a gather's or a scatter's tensor, twice that of an all-reduce's, the whole of a message.
    """
    sent: dict[str, float] = {}
    for collective in seen:
        axis = collective["axis"]
        volume = ring_volume(collective["kind"], collective["bytes"], collective["group_size"])
        sent[axis] = sent.get(axis, 0) + volume
    return sent


def busiest(ranks: list[Seen]) -> dict[str, float]:
    """`on_a_ring` of the rank that sends the most."""
    return max(map(on_a_ring, ranks), key=lambda sent: sum(sent.values()))


def _watch(run: RunSpec, mesh: Mesh) -> Seen:
    network = build_network(run, mesh, bf16=run.layout.precision == "bf16")
    with Watch(mesh) as watch:
        player = Player(run, network.parallel, mesh, run.data.seq_len, watch)  # type: ignore[union-attr]
        first_weights(run, network, mesh)
        for _ in range(2):
            player.run_step(run.layout.accumulation)
        return [sent.dump() for sent in watch.collectives if sent.axis != "control"]

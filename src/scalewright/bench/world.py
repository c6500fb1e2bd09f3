"""A benchmark's processes: each joins the world on its device, and leaves it in the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scalewright.launch.rank import RankContext

PRELOAD = ("scalewright.parallel.mesh",)  # what a local process needs, imported once for all


@contextmanager
def joined(context: RankContext, device: str) -> Iterator[Any]:
    """This rank's torch device, while it is in the world."""
    import torch

    from scalewright.parallel.mesh import join_world, leave_world

    place = torch.device("cuda", context.local_rank) if device == "cuda" else torch.device(device)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    if context.threads:
        torch.set_num_threads(context.threads)
    join_world(
        context.rank, context.world, context.rendezvous, place,
        attempt=context.attempt, shared_store=context.shared_store,
    )  # fmt: skip
    try:
        yield place
    finally:
        leave_world()

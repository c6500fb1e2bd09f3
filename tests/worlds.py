"""Functions that tests run on every rank of a small world: `run_world(target, world, *arguments)`.

Ranks are forked from a server that has imported torch (0.1 s each); what they return must be plain data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from scalewright.launch.local import run_local
from scalewright.launch.rank import RankContext
from scalewright.parallel.collectives import gather_json
from scalewright.parallel.mesh import Mesh, join_world, leave_world, make_mesh
from scalewright.spec.grid import make_grid
from scalewright.spec.layout import Layout
from scalewright.train.run import PRELOAD

CPU = torch.device("cpu")


def run_world(target: Callable[..., Any], layout: dict[str, Any], *arguments: Any) -> list[Any]:
    """`target(mesh, layout, *arguments)` on every rank of a layout; every rank's answer, in rank order."""
    found: list[Any] = run_local(_enter, (target, layout, arguments), layout["devices"], preload=PRELOAD, threads=1)
    return found


def _enter(context: RankContext, target: Any, layout: dict[str, Any], arguments: tuple[Any, ...]) -> Any:
    parsed = Layout.parse(layout)
    torch.set_num_threads(1)
    join_world(context.rank, context.world, context.rendezvous, CPU)
    try:
        mesh = make_mesh(make_grid(parsed), context.rank, CPU)
        return gather_json(target(mesh, parsed, *arguments), mesh)
    finally:
        leave_world()


def one_rank() -> tuple[Mesh, Layout]:
    """The mesh and layout of a process alone."""
    layout = Layout()
    return make_mesh(make_grid(layout), 0, CPU), layout


def plain(tensor: Tensor) -> list[Any]:
    """A tensor as JSON numbers; fp32 goes through exactly."""
    found: list[Any] = tensor.detach().tolist()
    return found

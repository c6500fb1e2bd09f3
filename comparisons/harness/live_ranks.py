"""What a look at every rank of a run sees: CPU processes over Gloo, and the trainer's own code on a mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from scalewright.launch.local import run_local
from scalewright.launch.rank import RankContext
from scalewright.parallel.collectives import gather_json
from scalewright.parallel.mesh import Mesh, join_world, leave_world, make_mesh
from scalewright.spec.grid import make_grid
from scalewright.spec.model import ModelSpec
from scalewright.spec.run import RunSpec
from scalewright.train.run import PRELOAD

Look = Callable[[RunSpec, Mesh], Any]  # a module's function; its answer is JSON's


def on_every_rank(look: Look, run: RunSpec) -> list[Any]:
    """Each rank's answer. Axes have groups of their own, so that a watcher can tell them apart."""
    found: list[Any] = run_local(_enter, (look, run.dump()), run.layout.devices, preload=PRELOAD, threads=1)
    return found


def _enter(context: RankContext, look: Look, plain: dict[str, Any]) -> Any:
    run, cpu = RunSpec.parse(plain), torch.device("cpu")
    torch.set_num_threads(1)
    if not context.alone:
        join_world(context.rank, context.world, context.rendezvous, cpu)
    try:
        assert isinstance(run.model, ModelSpec)
        mesh = make_mesh(make_grid(run.layout, run.model.kv_heads), context.rank, cpu, share=False)
        return gather_json(look(run, mesh), mesh)
    finally:
        leave_world()

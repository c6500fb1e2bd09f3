"""What a session drives: a network under its layout, its optimizer step, and what a checkpoint keeps of both.

    engine: scalewright   torch's distributed engine under parallel/:  Network, RunState, Step
    engine: deepspeed     train/deepspeed/: the same three, around DeepSpeed's engine

Data, the loop, records, validation, the guard's reports and checkpoints are the same for both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from scalewright.parallel.execute import Loss
from scalewright.parallel.inputs import Micro
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.parallelize import Parallel
from scalewright.spec.errors import UserError
from scalewright.spec.model import ModelSpec
from scalewright.spec.run import RunSpec
from scalewright.train.balance import Balance
from scalewright.train.diloco import Islands
from scalewright.train.guard.decide import Guard
from scalewright.train.network import Network, build_network, load_python
from scalewright.train.optimizer import build_optimizer
from scalewright.train.state.run_state import RunState
from scalewright.train.step import Step


class Stepper(Protocol):
    """One optimizer step at a time."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Whose groups hold the learning rate."""

    @property
    def balance(self) -> Balance | None: ...

    def __call__(self, micros: Sequence[Micro], counted: Tensor, stop: float = 0, written: float = 0.0) -> Tensor:
        """Trains on this rank's micro-batches; returns the report of `train/columns.py`."""


@dataclass(frozen=True)
class Engine:
    """A rank's network and state, and the maker of its steps."""

    network: Network
    state: RunState
    make_step: Callable[[Loss, Guard], Stepper]
    # Whether weights, gradients and collectives are this tool's own: what ranks hold and send is counted then
    # (metrics/measured.py), and a bad step is run again to find where it began (guard/suspect.py).
    transparent: bool = True
    files: Mapping[str, str] = field(default_factory=dict)  # for the run's folder: an engine's own settings


def build_own(run: RunSpec, mesh: Mesh) -> Engine:
    """`engine: scalewright`, its weights allocated and not yet filled. All ranks call it."""
    half = run.layout.precision == "bf16"
    network = build_network(run, mesh, bf16=half)
    parallel = network.parallel
    optimizer = build_optimizer(run.optimizer, parallel.weights, load_python, mesh, half=half, seed=run.seed)
    islands = build_islands(run, parallel, mesh)

    def make_step(loss: Loss, guard: Guard) -> Step:
        clip = getattr(run.optimizer, "clip_norm", 0.0)
        balance = Balance.of(run.train.balance, mesh, parallel.model)
        return Step(parallel, optimizer, loss, mesh, clip, guard=guard, balance=balance, islands=islands)

    return Engine(network, RunState(run, network, optimizer, mesh, islands), make_step)


def build_islands(run: RunSpec, parallel: Parallel, mesh: Mesh) -> Islands | None:
    """The outer optimizer of a run with `diloco`; raises UserError for a module that islands can't train."""
    if run.diloco is None:
        return None
    if floating := [name for name, b in parallel.buffers.named().items() if b.is_floating_point()]:
        changes = f"buffer '{floating[0]}' of the model holds numbers that a step may change"
        how = "register it with persistent=False if it is a table, or train without diloco"
        raise UserError(f"{changes}, and diloco joins parameters alone", "diloco", how)
    return Islands(run.diloco, parallel.weights, mesh, by_layer=isinstance(run.model, ModelSpec))

"""A few steps of a tiny run on every rank of a layout, from samples that are a function of their number.

    samples 0-7, 8-15, ...    rank d of n takes [d 8/n, (d + 1) 8/n) of each step's
    network, Step             the trainer's own, with the run's first weights
    answer                    loss and gradient norm of every step; and the weights at the end

What changes the mathematics is simulated on one device from the same samples (`rank_micros`) and weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from runs import merge, run_data
from scalewright.parallel.inputs import Micro
from scalewright.parallel.mesh import Mesh, make_mesh
from scalewright.spec.grid import make_grid
from scalewright.spec.layout import Layout
from scalewright.spec.run import OptimizerSpec, RunSpec
from scalewright.train.columns import LOSS, NORM
from scalewright.train.loss import build_loss
from scalewright.train.network import Network, build_network, first_weights, load_python
from scalewright.train.optimizer import build_optimizer
from scalewright.train.step import Step
from worlds import CPU, plain

BATCH, TOKENS, WORDS = 8, 16, 67


def run_of(**changes: Any) -> dict[str, Any]:
    """A run as plain data; no data of its are read."""
    from pathlib import Path

    return merge(run_data(Path()), changes)


def sample(number: int) -> Tensor:
    """The tokens of one sample, [TOKENS + 1]."""
    generator = torch.Generator().manual_seed(1000 + number)
    start, stride = torch.randint(1, WORDS, (2,), generator=generator).tolist()
    noise = torch.randint(0, 3, (TOKENS + 1,), generator=generator)
    return (start + stride * torch.arange(TOKENS + 1) + noise) % WORDS


def rank_micros(step: int, rank: int, ranks: int, micro_batch: int) -> list[Micro]:
    """A data-parallel rank's micro-batches of a step."""
    each = BATCH // ranks
    first = step * BATCH + rank * each
    rows = torch.stack([sample(number) for number in range(first, first + each)])
    return [Micro(part[:, :-1], part[:, 1:], {}) for part in rows.split(micro_batch)]


@dataclass
class Built:
    """A run's network on one rank, with its weights."""

    run: RunSpec
    network: Network
    mesh: Mesh
    loss: Any


def build(mesh: Mesh, data: dict[str, Any]) -> Built:
    """The network of a run under its layout, filled."""
    run = RunSpec.parse(data)
    assert not isinstance(run.model, str)
    mesh = make_mesh(make_grid(run.layout, run.model.kv_heads), mesh.rank, CPU)  # type: ignore[union-attr]
    network = build_network(run, mesh, bf16=run.layout.precision == "bf16")
    first_weights(run, network, mesh)
    return Built(run, network, mesh, build_loss("cross_entropy", 0.0, load_python, mesh, WORDS))


Make = Callable[[Built], torch.optim.Optimizer]


def own_optimizer(built: Built) -> torch.optim.Optimizer:
    """The run's optimizer."""
    run = built.run
    return build_optimizer(run.optimizer, built.network.parallel.weights, load_python, built.mesh, seed=run.seed)


def train(built: Built, steps: int, make: Make = own_optimizer) -> dict[str, Any]:
    """{"steps": [[loss, norm], ...], "weights": {name: [offsets, numbers]}} of this rank."""
    run, mesh, parallel = built.run, built.mesh, built.network.parallel
    optimizer = make(built)
    clip = run.optimizer.clip_norm if isinstance(run.optimizer, OptimizerSpec) else 0.0
    step = Step(parallel, optimizer, built.loss, mesh, clip)
    reports = []
    for number in range(steps):
        micros = rank_micros(number, mesh.index("batch"), mesh.size("batch"), run.layout.micro_batch)
        report = step(micros, torch.tensor(sum(micro.targets.numel() for micro in micros)))
        reports.append([report[LOSS].item(), report[NORM].item()])
    weights = {weight.name: [list(weight.box[0]), plain(weight.true(weight.master))] for weight in parallel.weights}
    return {"steps": reports, "weights": weights}


def train_on_rank(mesh: Mesh, layout: Layout, data: dict[str, Any], steps: int) -> dict[str, Any]:
    """`train`, as a target of `run_world`."""
    return train(build(mesh, data), steps)


def assert_steps(mine: list[list[float]], wanted: list[list[float]], tolerance: float) -> None:
    """Losses and gradient norms, step by step, relative."""
    assert len(mine) == len(wanted)
    for number, (a, b) in enumerate(zip(mine, wanted, strict=True)):
        for name, x, y in zip(("loss", "norm"), a, b, strict=True):
            assert abs(x - y) <= tolerance * abs(y), f"step {number}: {name} {x} and {y}"


def assert_weights(
    ranks: list[dict[str, Any]], wanted: dict[str, Tensor], tolerance: float, *, of_norm: bool = False
) -> None:
    """Every rank's parts of the weights, against whole ones: relative to a tensor's largest number.

    `of_norm`: the norm of the difference to that of the part, where single numbers may be rounded otherwise.
    """
    for rank in ranks:
        for name, (offsets, numbers) in rank["weights"].items():
            part = torch.tensor(numbers)
            region = tuple(slice(o, o + n) for o, n in zip(offsets, part.shape, strict=True))
            whole = wanted[name][region]
            if not part.numel():
                continue
            if of_norm:
                assert (part - whole).norm() <= tolerance * whole.norm(), name
            else:
                assert (part - whole).abs().max() <= tolerance * wanted[name].abs().max(), name

"""DiLoCo in one process, as the papers write it: the control of `scalewright parity` for runs with islands.

    for step:  for island i:  its samples -> its network, its optimizer        one after the other
               outer gradients: differences of whole tensors, averaged here    nothing is sent, nothing is cut

What an island's ranks share, and how islands exchange, is tested against this: so it has a loop, an outer
step and a row of its own, and of train/diloco.py nothing. Narrow numbers (bf16, fp8, int8) are rounded as one
rank an island rounds them: blocks of a cut tensor have other scales.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scalewright.checkpoint.save import draft, save
from scalewright.data.batch import IGNORED, sample_ids_hash
from scalewright.data.dataset import open_data
from scalewright.launch.rank import RankContext
from scalewright.parallel.inputs import micro_batches, wanted_by
from scalewright.parallel.mesh import Mesh, make_mesh
from scalewright.parallel.parallelize import Parallel
from scalewright.parallel.weights import Weight
from scalewright.parallel.wire import pack, unpack
from scalewright.spec.diloco import BLOCK, DilocoSpec, WireDtype
from scalewright.spec.grid import make_grid
from scalewright.spec.model import ModelSpec
from scalewright.spec.run import RunSpec
from scalewright.train.batches import DataPosition, in_vocabulary, sample_ids
from scalewright.train.columns import AUX, LOSS, NORM, TOKENS
from scalewright.train.engine import Stepper, build_own
from scalewright.train.guard.decide import Guard
from scalewright.train.learning_rate import find_horizon
from scalewright.train.loss import build_loss
from scalewright.train.network import first_weights, load_python
from scalewright.train.optimizer import base_rate, set_rate
from scalewright.train.session import seed_step
from scalewright.train.start import Start
from scalewright.train.worker import own_device


def run_controls(context: RankContext, starts: Sequence[Start]) -> None:
    """One process's life: it simulates one run after another."""
    if context.threads:
        torch.set_num_threads(context.threads)
    for start in starts:
        run_control(start.resolved.run, start.resolved.seq_len, own_device(start.device, context))


def run_control(run: RunSpec, seq_len: int, device: torch.device) -> None:
    """Trains a resolved run with `diloco`, whose islands are one device each; writes its rows, and its model
    where the run saves one at its end."""
    assert run.diloco is not None
    islands = _islands(run, device)
    outer = Outer(run.diloco, [list(island.parallel.weights) for island in islands], run)
    vocabulary = run.model.vocab_size if isinstance(run.model, ModelSpec) else None
    data = in_vocabulary(open_data(run.data, "train", run.seed), vocabulary)
    batch, place = run.layout.global_batch, DataPosition()
    rows: list[dict[str, object]] = []
    horizon = find_horizon(place, run.train.steps or 0, None, batch * seq_len)
    for number in range(1, horizon.total + 1):
        samples = place.taken(number, batch)
        reports = []
        for index, island in enumerate(islands):
            base = base_rate(run.optimizer, island.step.optimizer)
            set_rate(island.step.optimizer, base, horizon.rate(run.lr_schedule, base, number))
            seed_step(run.seed, number, index, device)
            mine = [int(sample) for sample in samples.reshape(len(islands), -1)[index]]
            reports.append(island.train(data.batch(mine), run.layout.micro_batch))
        outer.after(number, horizon.total)
        ids = sample_ids_hash(sample_ids(data, samples))
        rows.append({"step": number, "samples": number * batch, "sample_ids_hash": ids, **_row(reports)})
    run.folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"kind": "train", **row}) + "\n" for row in rows]
    (run.folder / "metrics.jsonl").write_text("".join(lines))
    if run.checkpoint.at_end:
        outer.give(islands[0].parallel.weights)
        _save(run, islands[0], horizon.total)


@dataclass
class _Island:
    """A whole network of its own, on one device."""

    step: Stepper
    parallel: Parallel
    mesh: Mesh

    def train(self, batch: Any, micro_batch: int) -> list[float]:
        """An inner step; its report."""
        micros = micro_batches(batch, micro_batch, self.mesh.device, wanted_by(self.parallel.model, trains=True))
        counted = torch.tensor(int(np.count_nonzero(batch.targets != IGNORED)), device=self.mesh.device)
        report: list[float] = self.step(micros, counted).tolist()
        return report


def _islands(run: RunSpec, device: torch.device) -> list[_Island]:
    """Networks, each with its optimizer and guard, alike in the beginning."""
    count = run.layout.dp_replicate
    alone = run.layout.replace(devices=1, dp_replicate=1, zero_stage=0, global_batch=run.layout.global_batch // count)
    island = run.model_copy(update={"layout": alone, "diloco": None})
    mesh = make_mesh(make_grid(alone), 0, device)
    vocabulary = run.model.vocab_size if isinstance(run.model, ModelSpec) else None
    loss = build_loss(run.loss, run.train.z_loss, load_python, mesh, vocabulary, mtp_weight=run.train.mtp_weight)
    islands = []
    for _ in range(count):
        engine = build_own(island, mesh)
        first_weights(island, engine.network, mesh)
        guard = Guard(run.train.guard, device, fp16=run.layout.precision == "fp16")
        islands.append(_Island(engine.make_step(loss, guard), engine.network.parallel, mesh))
    return islands


def _row(reports: list[list[float]]) -> dict[str, object]:
    """Means over islands by their counted tokens."""
    total = sum(report[TOKENS] for report in reports)
    names = {"loss": LOSS, "aux_loss": AUX, "grad_norm": NORM}
    means = {name: sum(r[index] * r[TOKENS] for r in reports) / total for name, index in names.items()}
    return {"loss_tokens": int(total), **means}


def _save(run: RunSpec, island: _Island, step: int) -> None:
    drafted = draft(
        run.folder / "checkpoints",
        island.parallel.weights,
        {},
        island.mesh,
        step=step,
        samples=step * run.layout.global_batch,
        run_id="simulated",
        model=run.model.dump() if not isinstance(run.model, str) else {},
        layout=run.layout.dump(),
        state={"step": step},
    )
    save(drafted, island.mesh)


@dataclass
class _Part:
    """A fragment: whole tensors of all islands, [islands][N], and what outer steps keep of them."""

    members: list[int]  # numbers of its weights
    trained: int
    outer: Tensor
    momentum: Tensor
    rests: Tensor  # [islands, N]


@dataclass
class Outer:
    """The outer optimizer, by Douillard et al. 2023 (algorithm 1) and 2025 (algorithm 2)."""

    spec: DilocoSpec
    islands: list[list[Weight]]
    run: RunSpec
    parts: list[_Part] = field(default_factory=list)
    flying: list[tuple[int, int, Tensor]] = field(default_factory=list)  # fragment, due after, gradient

    @torch.no_grad()
    def __post_init__(self) -> None:
        weights = self.islands[0]
        moved = [i for i, w in enumerate(weights) if w.trained or w.name.endswith(".router.bias")]
        moved.sort(key=lambda i: not weights[i].trained)
        of_layer = isinstance(self.run.model, ModelSpec)
        parts = [weights[i].placement.tensor.layer + 1 if of_layer else order for order, i in enumerate(moved)]
        for number in range(self.spec.fragments):
            members = [i for i, part in zip(moved, parts, strict=True) if part % self.spec.fragments == number]
            trained = sum(weights[i].master.numel() for i in members if weights[i].trained)
            outer = self._rows(members)[0]
            rests = torch.zeros(len(self.islands), len(outer), device=outer.device)
            self.parts.append(_Part(members, trained, outer, torch.zeros_like(outer[:trained]), rests))

    @torch.no_grad()
    def after(self, step: int, last: int) -> None:
        """Every fragment that is due after a step; all of them after the last."""
        ends = step == last
        landed = [flight for flight in self.flying if flight[1] == step or ends]
        self.flying = [flight for flight in self.flying if flight[1] != step and not ends]
        alpha = self.spec.kept_share
        for number, _, gradient in landed:
            self._update(number, gradient, alpha)
        for number, part in enumerate(self.parts):
            offset = (number + 1) * self.spec.inner_steps // self.spec.fragments
            due = step >= offset and (step - offset) % self.spec.inner_steps == 0
            again = number not in {flight[0] for flight in landed} or alpha > 0
            if not (again if ends else due):
                continue
            gradient = self._mean(part.outer - self._rows(part.members), part, self.spec.outer_dtype)
            if ends or not self.spec.overlap:
                self._update(number, gradient, 0.0 if ends else alpha)
            else:
                self.flying.append((number, step + self.spec.overlap, gradient))
        for weight in chain(*self.islands):
            if weight.compute is not weight.master:
                weight.compute.copy_(weight.master)

    def _rows(self, members: Sequence[int]) -> Tensor:
        """The numbers of some weights on every island, [islands, N]."""
        rows = [[weights[i].master.reshape(-1) for i in members] for weights in self.islands]
        return torch.stack([torch.cat(row) if row else torch.zeros(0) for row in rows])

    def _update(self, number: int, gradient: Tensor, alpha: float) -> None:
        part, spec = self.parts[number], self.spec
        trained = gradient[: part.trained]
        part.momentum = spec.outer_momentum * part.momentum + trained
        outer = part.outer[: part.trained]
        outer.add_(trained, alpha=-spec.outer_lr)  # in this order: a bit more or less rounds to another int8
        outer.add_(part.momentum, alpha=-spec.outer_lr * spec.outer_momentum)
        part.outer[part.trained :] -= gradient[part.trained :]
        for row, weights in zip(self._rows(part.members), self.islands, strict=True):
            _scatter(part.members, torch.lerp(row, part.outer, 1 - alpha), weights)

    @torch.no_grad()
    def give(self, weights: Any) -> None:
        """Sets a network's weights to the outer ones."""
        for part in self.parts:
            _scatter(part.members, part.outer, list(weights))

    def _mean(self, gradients: Tensor, part: _Part, dtype: WireDtype) -> Tensor:
        """The mean over islands of gradients [islands, N], rounded on its way there and back."""
        count, numbers = gradients.shape
        if dtype == "fp32" or not numbers:
            return gradients.mean(dim=0)
        width = -(-numbers // (count * BLOCK)) * BLOCK  # of each island's chunk
        wanted = gradients.new_zeros(count, count * width)
        wanted[:, :numbers] = gradients + part.rests
        sent = torch.stack([_rounded(row.view(count, width), dtype).flatten() for row in wanted])
        means = sent.mean(dim=0).view(count, width)
        returned = _rounded(means, dtype)
        left = wanted - sent
        for owner in range(count):
            chunk = slice(owner * width, (owner + 1) * width)
            left[owner, chunk] += count * (means - returned)[owner]
        part.rests = left[:, :numbers].clone()
        return returned.flatten()[:numbers]


def _scatter(members: Sequence[int], flat: Tensor, weights: Sequence[Weight]) -> None:
    start = 0
    for i in members:
        master = weights[i].master
        master.copy_(flat[start : start + master.numel()].view_as(master))
        start += master.numel()


def _rounded(rows: Tensor, dtype: WireDtype) -> Tensor:
    return unpack(pack(rows, dtype), dtype)

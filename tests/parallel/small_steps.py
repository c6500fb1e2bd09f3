"""A few steps of a tiny decoder under any layout, and what they are compared by."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from loss_function import cross_entropy
from runs import MODEL
from scalewright.model.init import init_box
from scalewright.parallel.execute import Loss
from scalewright.parallel.inputs import Micro
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.parallelize import Parallel, fill, parallelize
from scalewright.parallel.stages import cut_stages
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import place
from scalewright.train.columns import LOSS, NORM
from scalewright.train.step import Step
from worlds import plain

SPEC = ModelSpec.parse(MODEL)
ROWS = 8


def zero(stage: int, devices: int = 2, **more: Any) -> dict[str, Any]:
    return {"devices": devices, "zero_stage": stage, "micro_batch": 1, "global_batch": ROWS, **more}


def build(
    mesh: Mesh,
    layout: Layout,
    bf16: bool = False,
    spec: ModelSpec = SPEC,
    backend: str | None = None,
    seq_len: int | None = None,
) -> Parallel:
    """A rank's part of a small decoder, with its first weights; compiled if a backend is named."""
    with torch.device("meta"):
        model = cut_stages(spec, layout, mesh.index("pp"))
    compiled = {"compile_blocks": True, "backend": backend} if backend else {}
    placements = place(spec, layout)
    parallel = parallelize(model, placements, layout, mesh, bf16=bf16, seq_len=seq_len, **compiled)
    fill(parallel.weights, lambda t, box: init_box(t, spec, 3, *box))
    return parallel


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Rows that count 15, 14, 13 ... targets."""
    tokens = torch.randint(0, 67, (ROWS, 16), generator=torch.Generator().manual_seed(step))
    targets = tokens.roll(-1, 1).clone()
    for row in range(ROWS):
        targets[row, 15 - row :] = -100
    return tokens, targets


def micros(step: int, rows: range, size: int) -> tuple[list[Micro], Tensor]:
    tokens, targets = batch(step)
    cuts = [slice(start, start + size) for start in range(rows.start, rows.stop, size)]
    counted = float((targets[rows.start : rows.stop] != -100).sum())
    return [Micro(tokens[cut], targets[cut], {}) for cut in cuts], torch.tensor(counted)


def own_rows(mesh: Mesh) -> range:
    """The rank's rows of the batch."""
    share = ROWS // mesh.size("batch")
    return range(mesh.index("batch") * share, (mesh.index("batch") + 1) * share)


def train(
    mesh: Mesh,
    layout: Layout,
    bf16: bool = False,
    changes: dict[str, Any] | None = None,
    steps: int = 3,
    loss: Loss = cross_entropy,
) -> dict[str, Any]:
    """Some clipped steps of SGD: reports, and every local weight with its box. `changes` are the model's."""
    spec = ModelSpec.parse({**MODEL, **(changes or {})})
    parallel = build(mesh, layout, bf16, spec)
    optimizer = torch.optim.SGD([w.master for w in parallel.weights], lr=0.5)
    step = Step(parallel, optimizer, loss, mesh, 1.0)
    rows = own_rows(mesh)
    reports = [plain(step(*micros(number, rows, layout.micro_batch))) for number in range(steps)]
    held = {w.name: [w.box, plain(w.true(w.master))] for w in parallel.weights}
    return {"reports": reports, "weights": held}


def assert_same(ranks: list[dict[str, Any]], control: dict[str, Any], rtol: float, wtol: float) -> None:
    """Losses and norms of every rank; weights from boxes, each relative to its tensor's largest number."""
    expected = torch.tensor(control["reports"])
    for rank in ranks:
        reports = torch.tensor(rank["reports"])
        torch.testing.assert_close(reports[:, LOSS], expected[:, LOSS], rtol=rtol, atol=0)
        torch.testing.assert_close(reports[:, NORM], expected[:, NORM], rtol=rtol, atol=0)
        for name, (box, values) in rank["weights"].items():
            offsets, sizes = box
            whole = torch.tensor(control["weights"][name][1])
            part = whole[tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))]
            difference = (torch.tensor(values).reshape(sizes) - part).abs()
            if difference.numel():
                assert difference.max() < wtol * whole.abs().max(), name

"""One step: normalised by the batch's counted tokens, clipped, and in bf16 with fp32 masters and sums."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from loss_function import cross_entropy
from runs import MODEL
from scalewright.model.decoder import Decoder
from scalewright.model.init import init_box
from scalewright.parallel.inputs import Micro
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.parallelize import Parallel, fill, parallelize
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import box, place
from scalewright.train.columns import AUX, LOSS, NORM, STOP, TOKENS, stop_reason, stop_request
from scalewright.train.step import Step
from worlds import one_rank, plain, run_world

SPEC = ModelSpec.parse(MODEL)
IGNORED = -100


def build(mesh: Mesh, layout: Layout, bf16: bool = False, spec: ModelSpec = SPEC) -> Parallel:
    """A small decoder under a layout, with its first weights."""
    with torch.device("meta"):
        decoder = Decoder(spec)
    parallel = parallelize(decoder, place(spec, layout), layout, mesh, bf16=bf16)
    fill(parallel.weights, lambda t, where: init_box(t, spec, 3, *where))
    return parallel


def batch(rows: int = 8) -> tuple[Tensor, Tensor]:
    """Tokens and targets; the rows count 15, 13, 11 ... targets."""
    tokens = torch.randint(0, 67, (rows, 16), generator=torch.Generator().manual_seed(1))
    targets = tokens.roll(-1, 1).clone()
    for row in range(rows):
        targets[row, 15 - 2 * row :] = IGNORED
    return tokens, targets


def micros(rows: range, size: int) -> tuple[list[Micro], Tensor]:
    tokens, targets = batch()
    found = [
        Micro(tokens[start : start + size], targets[start : start + size], {})
        for start in range(rows.start, rows.stop, size)
    ]
    return found, torch.tensor(float((targets[rows.start : rows.stop] != IGNORED).sum()))


def make_step(parallel: Parallel, mesh: Mesh, clip: float = 0.0, lr: float = 1.0) -> Step:
    optimizer = torch.optim.SGD([w.master for w in parallel.weights], lr=lr)
    return Step(parallel, optimizer, lambda lo, t: cross_entropy(lo, t, 1e-3), mesh, clip)


def whole_batch() -> tuple[Tensor, list[Tensor]]:
    """Loss and gradients of the whole batch at once, by plain autograd."""
    mesh, layout = one_rank()
    model = build(mesh, layout).model
    tokens, targets = batch()
    logits = model(tokens)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
    log_z = logits.logsumexp(-1)[targets != IGNORED]
    (loss + 1e-3 * log_z.square().mean()).backward()
    return loss.detach(), [p.grad for p in model.parameters()]


@pytest.mark.parametrize("size", [1, 2, 8])
def test_the_loss_is_that_of_the_whole_batch(size):
    """Uneven counts: a mean of the micro-batches' means would be another number."""
    mesh, layout = one_rank()
    step = make_step(build(mesh, layout), mesh)
    report = step(*micros(range(8), size))
    loss, gradients = whole_batch()
    norm = torch.stack([g.norm() for g in gradients]).norm()
    assert report[LOSS].item() == pytest.approx(loss.item(), rel=1e-6)
    assert report[NORM].item() == pytest.approx(norm.item(), rel=1e-6)
    assert report[TOKENS].item() == (batch()[1] != IGNORED).sum().item()
    assert report[STOP].item() == 0
    assert report[AUX].item() > 0
    tokens, targets = batch()
    means = [
        F.cross_entropy(build(mesh, layout).model(tokens[i : i + 1])[0], targets[i], ignore_index=IGNORED)
        for i in range(8)
    ]
    assert abs(torch.stack(means).mean() - loss) > 1e-4


@pytest.mark.parametrize(("clip", "clips"), [(0.0, False), (1e3, False), (0.05, True)])
def test_clipping_is_torchs(clip, clips):
    """An update at rate 1 is the gradient: it has the length that clipping leaves."""
    mesh, layout = one_rank()
    parallel = build(mesh, layout)
    before = [w.master.detach().clone() for w in parallel.weights]
    report = make_step(parallel, mesh, clip)(*micros(range(8), 2))
    moved = torch.stack([(b - w.master).norm() for b, w in zip(before, parallel.weights, strict=True)]).norm()
    _, gradients = whole_batch()
    holders = [torch.nn.Parameter(g) for g in gradients]
    for holder, gradient in zip(holders, gradients, strict=True):
        holder.grad = gradient.clone()
    total = torch.nn.utils.clip_grad_norm_(holders, clip) if clip else report[NORM]
    after = torch.stack([h.grad.norm() for h in holders]).norm()
    assert report[NORM].item() == pytest.approx(total.item(), rel=1e-5)  # the norm is that before clipping
    assert moved.item() == pytest.approx(after.item(), rel=1e-5)
    assert (moved.item() < 0.06) is clips


def test_a_batch_without_counted_tokens_changes_nothing():
    mesh, layout = one_rank()
    parallel = build(mesh, layout)
    before = [w.master.detach().clone() for w in parallel.weights]
    tokens, targets = batch()
    report = make_step(parallel, mesh)([Micro(tokens, torch.full_like(targets, IGNORED), {})], torch.tensor(0.0))
    assert report[:4].tolist() == [0.0, 0.0, 0.0, 0.0]
    assert all(torch.equal(b, w.master) for b, w in zip(before, parallel.weights, strict=True))


# -- on several ranks --------------------------------------------------------------------------------


def train_on_rank(mesh: Mesh, layout: Layout, stop_on: int) -> dict[str, Any]:
    """Three clipped steps; rank `stop_on` was asked to stop."""
    share = 8 // mesh.world
    step = make_step(build(mesh, layout), mesh, clip=0.05)
    rows = range(mesh.rank * share, (mesh.rank + 1) * share)
    reports = [step(*micros(rows, layout.micro_batch), mesh.rank == stop_on) for _ in range(3)]
    return {"reports": [plain(report) for report in reports]}


@pytest.mark.parametrize("zero", [0, 3])
def test_ranks_agree_and_clip_as_one(zero):
    """One rank counts 15 + 13 tokens, one 3 + 1; a stop that one rank heard of reaches all."""
    found = run_world(train_on_rank, {"devices": 4, "zero_stage": zero, "micro_batch": 1}, 2)
    mesh, layout = one_rank()
    step = make_step(build(mesh, layout), mesh, clip=0.05)
    for number in range(3):
        control = step(*micros(range(8), 4))
        for rank in found:
            report = torch.tensor(rank["reports"][number])
            torch.testing.assert_close(report[:4], control[:4], rtol=1e-6, atol=1e-7, check_dtype=False)
            assert stop_reason(float(report[STOP]), 2) == "signal"


@pytest.mark.parametrize("world", [1, 2, 5000])
def test_the_sum_of_stop_requests_gives_the_reason(world):
    """Signals of any number of ranks, a callback of rank 0, and both at once; sums of fp32 are exact here."""
    none = [stop_request(False, False, world)] * world
    assert stop_reason(sum(none), world) is None
    assert stop_reason(sum([*none[1:], stop_request(True, False, world)]), world) == "signal"
    assert stop_reason(sum([stop_request(True, False, world)] * world), world) == "signal"
    called = stop_request(False, True, world)
    assert stop_reason(sum([called, *none[1:]]), world) == "callback"
    both = [stop_request(True, True, world), *[stop_request(True, False, world)] * (world - 1)]
    assert stop_reason(float(torch.tensor(both, dtype=torch.float32).sum()), world) == "callback"


# -- bf16 --------------------------------------------------------------------------------------------


def look_at_bf16(mesh: Mesh, layout: Layout) -> dict[str, Any]:
    """What a bf16 run holds, seen from inside: dtypes at rest, in the forward, and of gradients."""
    parallel = build(mesh, layout, bf16=True)
    seen: dict[str, Any] = {"inputs": set(), "weights": set()}

    def look(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        seen["inputs"].add(str(inputs[0].dtype))
        seen["weights"].add(str(module.weight.dtype))

    for module in parallel.model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(look)
    step = make_step(parallel, mesh, lr=1e-2)
    before = [w.master.detach().clone() for w in parallel.weights]
    share = 8 // mesh.world
    step(*micros(range(mesh.rank * share, (mesh.rank + 1) * share), 1))
    pairs = list(zip(before, parallel.weights, strict=True))
    moved = [(b - w.master).abs().max().item() for b, w in pairs if b.dim() > 1]
    gradients = [w.gradient for w in parallel.weights]
    return {
        "inputs": sorted(seen["inputs"]),
        "weights": sorted(seen["weights"]),
        "masters": sorted({str(w.master.dtype) for w in parallel.weights}),
        "gradients": sorted({str(g.dtype) for g in gradients if g is not None}),
        "beyond bf16": any(g is not None and not torch.equal(g, g.to(torch.bfloat16).float()) for g in gradients),
        "masters beyond bf16": any(
            not torch.equal(w.master, w.master.to(torch.bfloat16).float()) for w in parallel.weights
        ),
        "moved": min(moved) > 0,
    }


BF16 = {
    "inputs": ["torch.bfloat16"],
    "weights": ["torch.bfloat16"],
    "masters": ["torch.float32"],
    "gradients": ["torch.float32"],
    "beyond bf16": True,  # sums of eight micro-batches that bf16 could not hold
    "masters beyond bf16": True,
    "moved": True,  # by less than half of bf16's steps: kept in fp32
}


def test_bf16_on_one_rank():
    mesh, layout = one_rank()
    assert look_at_bf16(mesh, layout) == BF16


@pytest.mark.parametrize("zero", [0, 3])
def test_bf16_on_two_ranks(zero):
    found = run_world(look_at_bf16, {"devices": 2, "zero_stage": zero, "global_batch": 8})
    assert found == [BF16, BF16]


def test_copies_follow_their_masters():
    """The bf16 copies are the masters, rounded, after every update."""
    mesh, layout = one_rank()
    parallel = build(mesh, layout, bf16=True)
    step = make_step(parallel, mesh)
    for _ in range(2):
        step(*micros(range(8), 2))
        for weight in parallel.weights:
            assert weight.compute.dtype == torch.bfloat16
            assert torch.equal(weight.compute, weight.master.to(torch.bfloat16))


# -- placement ---------------------------------------------------------------------------------------


def held(mesh: Mesh, layout: Layout) -> dict[str, Any]:
    """Every local tensor of this rank, with the box that the placement gives it."""
    parallel = build(mesh, layout)
    places = {p.tensor.name: box(p, mesh.coords, mesh.grid.size_of) for p in place(SPEC, layout)}
    return {
        w.name: {
            "shape": list(w.master.shape),
            "box": [list(part) for part in places[w.name]],
            "values": plain(w.master),
        }
        for w in parallel.weights
    }


@pytest.mark.parametrize(
    "layout",
    [{"devices": 2, "zero_stage": 0}, {"devices": 2, "zero_stage": 3}, {"devices": 4, "zero_stage": 3}],
    ids=["zero0", "zero3", "4-zero3"],
)
def test_first_weights_are_equal_on_every_layout(layout):
    """Bit for bit, and every local shape equals its box; 67 rows over 4 ranks are 17, 17, 17 and 16."""
    mesh, alone = one_rank()
    control = {w.name: w.master.detach() for w in build(mesh, alone).weights}
    ranks = run_world(held, layout)
    for name, whole in control.items():
        covered = torch.zeros(whole.shape)
        for rank in ranks:
            offsets, sizes = rank[name]["box"]
            assert rank[name]["shape"] == sizes
            part = tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))
            covered[part] += 1
            assert torch.equal(torch.tensor(rank[name]["values"]).reshape(sizes), whole[part]), name
        assert covered.unique().tolist() == [1.0 if layout["zero_stage"] == 3 else layout["devices"]]
    if layout["devices"] == 4:
        assert [rank["embed.weight"]["shape"][0] for rank in ranks] == [17, 17, 17, 16]


def test_tokens_are_counted_exactly_beyond_what_fp32_holds():
    """16,777,217 = 2^24 + 1 is the first whole number that fp32 lacks."""
    mesh, layout = one_rank()
    found, _ = micros(range(8), 4)
    count = 2**24 + 1
    report = make_step(build(mesh, layout), mesh)(found, torch.tensor(count))
    assert int(report[TOKENS]) == count
    assert int(report.tolist()[TOKENS]) == count


def count_on_ranks(mesh: Mesh, layout: Layout) -> int:
    found, _ = micros(range(4 * mesh.rank, 4 * mesh.rank + 4), 4)
    counted = torch.tensor(2**24 + mesh.rank)
    return int(make_step(build(mesh, layout), mesh)(found, counted)[TOKENS])


def test_tokens_of_all_ranks_add_up_exactly():
    assert run_world(count_on_ranks, {"devices": 2, "micro_batch": 4}) == [2**25 + 1] * 2

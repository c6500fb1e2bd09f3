"""One model under tensor and context parallelism against the same on one rank: what the tests of it share.

Every rank makes the whole model too (it is tiny) and compares its own part: logits, loss, and the gradient of
every tensor after the sums that its placement names.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from loss_function import cross_entropy
from parallel.spread import values, whole
from scalewright.model.decoder import Decoder
from scalewright.parallel.collectives import all_sum
from scalewright.parallel.context import apply_context
from scalewright.parallel.cross_entropy import make_columns
from scalewright.parallel.functions import gathered
from scalewright.parallel.mesh import Mesh, make_mesh
from scalewright.parallel.tensor import apply_tensor, cut_parameters
from scalewright.spec.grid import make_grid
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import Placement, box, place
from worlds import CPU

Z_LOSS = 1e-2
LENGTH = 24

# fp32 sums in another order: 1e-7 of the numbers summed, which cancel down to a tenth of that in some
# gradients; a few dozen operators one after the other. Measured worst over all cases: below 3e-6.
TOLERANCE = 2e-5


def inputs(spec: ModelSpec, documents: bool) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Tokens and targets [2, LENGTH], some not counted, and the arguments of packed rows."""
    random = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, spec.vocab_size, (2, LENGTH), generator=random)
    tokens[0, :2] = spec.vocab_size - 1  # the last row of an uneven vocabulary
    targets = torch.randint(0, spec.vocab_size, (2, LENGTH), generator=random)
    targets[0, 3:6], targets[1, -1] = -100, spec.vocab_size - 1
    if not documents:
        return tokens, targets, {}
    numbers = torch.tensor([[0] * 7 + [1] * 10 + [2] * 7, [0] * 13 + [1] * 11], dtype=torch.int32)
    positions = torch.tensor([[*range(7), *range(10), *range(7)], [*range(13), *range(11)]])
    return tokens, targets, {"documents": numbers, "positions": positions}


def parallel(spec: ModelSpec, layout: Layout, mesh: Mesh, **cut: Any) -> Decoder:
    """A decoder, or a cut of it, with this rank's weights."""
    placements = place(spec, layout)
    with torch.device("meta"):
        decoder = Decoder(spec, **cut)
    cut_parameters(decoder, placements, mesh)
    apply_tensor(decoder, layout, mesh)
    apply_context(decoder, layout, mesh)
    decoder.to_empty(device="cpu")
    placement_of = by_name(placements)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            parameter.fill_(0.0)
            value = values(placement_of[name].tensor, spec)
            part = slices(placement_of[name], mesh)
            parameter[tuple(slice(0, s.stop - s.start) for s in part)] = value[part]
    return decoder


def by_name(placements: tuple[Placement, ...]) -> dict[str, Placement]:
    """Placements by parameter name, a tied head's too."""
    placement_of = {p.tensor.name: p for p in placements}
    placement_of.update({p.tensor.tied_to: p for p in placements if p.tensor.tied_to})
    return placement_of


def slices(placement: Placement, mesh: Mesh) -> tuple[slice, ...]:
    """This rank's box as an index."""
    offsets, sizes = box(placement, mesh.coords, mesh.grid.size_of)
    return tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))


def mesh_of(spec: ModelSpec, layout: Layout, rank: int, meshes: dict[Any, Mesh]) -> Mesh:
    """A mesh that knows the model's KV heads; made once for each number of parts."""
    grid = make_grid(layout, spec.kv_heads)
    if grid not in meshes:
        meshes[grid] = make_mesh(grid, rank, CPU)
    return meshes[grid]


def away(actual: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest number."""
    return float((actual - expected).abs().max() / expected.abs().max().clamp(min=1e-12))


def gradients_away(
    module: nn.Module, spec: ModelSpec, layout: Layout, mesh: Mesh, control: dict[str, Tensor]
) -> dict[str, float]:
    """How far each gradient is from the control's, after the sums that the placement names."""
    placement_of, deviations = by_name(place(spec, layout)), {}
    # A key bias moves all scores of a query alike: without rotary positions its gradient is rounding alone.
    floor = 1e-2 * max(float(gradient.abs().max()) for gradient in control.values())
    for name, parameter in module.named_parameters():
        gradient, placement = parameter.grad, placement_of[name]
        if name not in control:  # a router's correction bias: the experts' load moves it
            assert not parameter.requires_grad, name
            assert gradient is None, name
            continue
        assert gradient is not None, name
        for axis in placement.grad_sum:
            if axis in ("tp", "kv"):
                dist.all_reduce(gradient, group=mesh.group(axis))
        # Each rank's experts saw its own tokens; data parallelism, which isn't applied here, would sum them.
        all_sum(gradient, mesh, "efsdp" if placement.tensor.role.startswith("expert") else "cp")
        part = slices(placement, mesh)
        inside = tuple(slice(0, s.stop - s.start) for s in part)
        expected = control[name]
        difference = (gradient[inside] - expected[part]).abs()
        if difference.numel():
            deviations[name] = float(difference.max() / expected.abs().max().clamp(min=floor))
        padding = gradient.clone()
        padding[inside] = 0.0
        assert not padding.any(), f"{name}: the padding has a gradient"
    return deviations


def rank_inputs(decoder: Decoder, documents: bool) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """Which tokens of the rows a rank has; its part of `inputs`."""
    tokens, targets, arguments = inputs(decoder.spec, documents)
    cut = decoder.sequence_cut
    if cut is None:
        return torch.arange(LENGTH), tokens, targets, arguments
    index = torch.from_numpy(cut.tokens(LENGTH))
    positions = arguments.get("positions", torch.arange(LENGTH)[None])
    return index, tokens[:, index], targets[:, index], {**arguments, "positions": positions[:, index]}


def control_run(spec: ModelSpec, documents: bool) -> tuple[Tensor, tuple[Tensor, Tensor], dict[str, Tensor]]:
    """Logits, losses and gradients of one rank alone."""
    tokens, targets, arguments = inputs(spec, documents)
    decoder = whole(spec)
    logits = decoder(tokens, **arguments)
    kept = logits.detach().clone()  # the loss puts its gradient in their place
    losses = cross_entropy(logits, targets, Z_LOSS)
    (sum(losses) / 40).backward()  # type: ignore[union-attr]
    gradients = {n: p.grad for n, p in decoder.named_parameters() if p.grad is not None}
    return kept, losses, gradients


def compare(spec: ModelSpec, layout: Layout, mesh: Mesh, documents: bool) -> dict[str, float]:
    """Deviations of one case, by what deviates; the same collectives on every rank."""
    expected, expected_losses, control = control_run(spec, documents)
    decoder = parallel(spec, layout, mesh)
    index, tokens, targets, arguments = rank_inputs(decoder, documents)
    logits = decoder(tokens, **arguments)
    joined = logits.detach().clone()
    if mesh.size("tp") == 1:
        losses = cross_entropy(logits, targets, Z_LOSS)
    else:
        columns = make_columns(mesh, spec.vocab_size)
        losses = cross_entropy(logits, targets, Z_LOSS, columns)
        joined = gathered(joined, 2, columns.group)[..., : spec.vocab_size]
    (sum(losses) / 40).backward()  # type: ignore[union-attr]
    deviations = {"logits": away(joined, expected[:, index])}
    for name, loss, expected_loss in zip(("loss", "z-loss"), losses, expected_losses, strict=True):
        deviations[name] = away(all_sum(loss.detach(), mesh, "cp"), expected_loss.detach())
    return deviations | gradients_away(decoder, spec, layout, mesh, control)

"""The part of each tensor that each rank holds.

    whole tensor --split over tp (or ep, etp)--> part of it --split over fsdp (at rest)--> the rank's box

    q.weight [8, 4], tp 2, fsdp 2:      rows 0-3 | tp 0: rows 0-1 fsdp 0, rows 2-3 fsdp 1
                                        rows 4-7 | tp 1: rows 4-5 fsdp 0, rows 6-7 fsdp 1

A pipeline puts whole layers on stages, and stages on pipeline ranks by its schedule (`holders`):

    1f1b, pp 2:   stage 0 -> rank 0, stage 1 -> rank 1        a tied head's ends: two copies, summed
    zbv, pp 2:    stages 0 3 -> rank 0, stages 1 2 -> rank 1  both ends on rank 0: one copy, no sum

A box is (offsets, sizes) in the true, unpadded tensor. The trainer's shards, the checkpoint's files, the
gradient norm's weights, the planner's memory and traffic are all computed from these boxes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import prod
from typing import NamedTuple

from scalewright.spec.layout import Layout
from scalewright.spec.memory import is_sharded
from scalewright.spec.model import ModelSpec
from scalewright.spec.schedules.kinds import find_kind, stage_ranks
from scalewright.spec.tensors import TensorSpec, tensors

Box = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Split:
    """One cut of a tensor along `dim`, over the ranks of `axis`, into `parts` of ceil(size / parts).

    With fewer parts than ranks, neighbouring ranks hold copies (KV heads under a larger tp). `even`: every rank's local
    tensor has the full ceil(size / parts), padded; else the last parts are smaller or empty, as `torch.chunk` cuts.
    """

    axis: str
    dim: int
    parts: int
    even: bool = True


@dataclass(frozen=True)
class Placement:
    """The stages that hold one tensor, its cuts, and the sums that its gradient still needs."""

    tensor: TensorSpec
    stages: tuple[int, ...]  # pipeline stages that hold it; two for a tied head, or lookups of mtp
    splits: tuple[Split, ...]  # in cutting order, FSDP last
    grad_sum: tuple[str, ...]  # axes over which gradients are still to be summed after the backward
    copies: tuple[str, ...]  # axes whose ranks hold the same box


def place(model: ModelSpec, layout: Layout, some: Iterable[TensorSpec] | None = None) -> tuple[Placement, ...]:
    """The placement of every tensor of a model, or of some, under a layout, in `tensors` order."""
    stage_of = _stage_of_layer(model, layout)
    placed = tensors(model, mtp=True) if some is None else some
    return tuple(_place(tensor, layout, model.kv_heads, stage_of) for tensor in placed)


def place_plain(specs: Iterable[TensorSpec], layout: Layout) -> tuple[Placement, ...]:
    """The placement of tensors that only data parallelism cuts (a user's own module)."""
    return tuple(_place(spec, layout, layout.tp, {}) for spec in specs)


def _place(tensor: TensorSpec, layout: Layout, kv_heads: int, stage_of: Mapping[int, int]) -> Placement:
    expert = tensor.role.startswith("expert")
    splits = list(_model_splits(tensor, layout, kv_heads))
    copies, grad_sum = ["dp_replicate"], []
    shard_axis = "efsdp" if expert else "fsdp"
    dense_shards = layout.dp_shard * layout.cp
    shard_size = dense_shards * layout.tp // (layout.ep * layout.etp) if expert else dense_shards
    if layout.zero_stage == 0:
        copies.append(shard_axis)
    elif shard_size > 1 and is_sharded(layout):
        splits.append(Split(shard_axis, 0, shard_size, even=False))
    elif shard_size > 1:
        copies.append(shard_axis)  # experts beside dense tensors that nothing shards
    if tensor.role == "expert_plain":
        copies.append("etp")
        if layout.etp > 1:
            grad_sum.append("etp")
    if not expert and not any(split.axis == "tp" for split in splits):
        copies.append("tp")
        if layout.tp > 1 and (layout.sp or tensor.role in ("head_norm", "router")):
            grad_sum.append("tp")
    if tensor.role == "kv" and layout.tp > kv_heads:
        copies.append("kv")
        grad_sum.append("kv")
    stages = _stages(tensor, layout, stage_of)
    if find_kind(layout.schedule).both_ways and layout.pp > 1:  # each stage is on two ranks
        grad_sum.append("mirror")
        copies.append("mirror")
    elif len(_pp_ranks(stages, layout)) > 1:
        grad_sum.append("tie")
        copies.append("tie")
    return Placement(tensor, stages, tuple(splits), tuple(grad_sum), tuple(copies))


def _model_splits(tensor: TensorSpec, layout: Layout, kv_heads: int) -> Iterable[Split]:
    """The cuts that tensor and expert parallelism make, by the tensor's role."""
    if tensor.role.startswith("expert"):
        if layout.ep > 1:
            yield Split("ep", 0, layout.ep)
        if layout.etp > 1 and tensor.role != "expert_plain":
            yield Split("etp", 1 if tensor.role == "expert_column" else 2, layout.etp)
    elif layout.tp > 1:
        if tensor.role in ("embedding", "head", "column"):
            yield Split("tp", 0, layout.tp)
        elif tensor.role == "row":
            yield Split("tp", 1, layout.tp)
        elif tensor.role == "kv":
            yield Split("tp", 0, min(layout.tp, kv_heads))


def _stages(tensor: TensorSpec, layout: Layout, stage_of: Mapping[int, int]) -> tuple[int, ...]:
    last = layout.stages - 1
    if tensor.layer < 0:
        return (0, last) if tensor.tied_to and last > 0 else (0,)
    return (stage_of.get(tensor.layer, last),)


def holders(placement: Placement, layout: Layout) -> tuple[int, ...]:
    """The pipeline ranks that hold a tensor, ascending: one, or two (tied ends apart; dualpipe)."""
    return _pp_ranks(placement.stages, layout)


def _pp_ranks(stages: Iterable[int], layout: Layout) -> tuple[int, ...]:
    rank_of = stage_ranks(layout.schedule, layout.pp, layout.virtual_stages)
    ranks = {rank_of[stage] for stage in stages}
    if find_kind(layout.schedule).both_ways:
        ranks |= {layout.pp - 1 - rank for rank in ranks}
    return tuple(sorted(ranks))


def box(placement: Placement, coords: Mapping[str, int], sizes: Mapping[str, int]) -> Box:
    """The rank's part of the true tensor: (offsets, sizes), clipped; a size of 0 means empty.

    `coords` and `sizes` are the rank's index and the number of ranks along every axis (`Grid.coords`, `Grid.size_of`).
    """
    offsets, ends, _ = _cut(placement, coords, sizes)
    return tuple(offsets), tuple(end - start for start, end in zip(offsets, ends, strict=True))


def local_shape(placement: Placement, coords: Mapping[str, int], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of the tensor that the rank allocates: its box plus the padding of even cuts."""
    return tuple(_cut(placement, coords, sizes)[2])


def _cut(placement: Placement, coords: Mapping[str, int], sizes: Mapping[str, int]) -> tuple[list[int], ...]:
    """A rank's offsets and ends in the true tensor, and its padded lengths, which each cut divides further."""
    offsets, ends = [0] * len(placement.tensor.shape), list(placement.tensor.shape)
    spans = list(placement.tensor.shape)
    for split in placement.splits:
        part = coords[split.axis] * split.parts // sizes[split.axis]
        length = -(-spans[split.dim] // split.parts)
        start = offsets[split.dim] + part * length
        offsets[split.dim] = min(start, ends[split.dim])
        ends[split.dim] = min(start + length, ends[split.dim])
        spans[split.dim] = length if split.even else max(0, min(length, spans[split.dim] - part * length))
    return offsets, ends, spans


def pad(placement: Placement, coords: Mapping[str, int], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Rows and columns of padding in the rank's tensor."""
    local, (_, true) = local_shape(placement, coords, sizes), box(placement, coords, sizes)
    return tuple(padded - size for padded, size in zip(local, true, strict=True))


def copies(placement: Placement, sizes: Mapping[str, int]) -> int:
    """The number of ranks in the world that hold the same box, both ends of a tied tensor counted.

    Under a pipeline only the ranks of `holders` hold it; `kv` copies are within tp.
    """
    return prod(sizes[axis] for axis in placement.copies)


def stage_layers(model: ModelSpec, layout: Layout) -> tuple[int, ...]:
    """Layers of every pipeline stage: `layout.stage_layers`, or a cut that balances weights per stage."""
    return balanced_layers(model, layout.stages) if layout.stage_layers is None else layout.stage_layers


@lru_cache(maxsize=1024)
def balanced_layers(model: ModelSpec, stages: int) -> tuple[int, ...]:
    """Layers of every stage of a cut that balances weights.

    The embedding is a lookup and costs a stage nothing; the head costs its matrix, once more for each
    prediction module beside that module's own weights.
    """
    if stages == 1:
        return (model.num_hidden_layers,)
    cost = [0.0] * model.num_hidden_layers
    for tensor in tensors(model, mtp=True):
        if 0 <= tensor.layer < model.num_hidden_layers or tensor.name.startswith("mtp."):
            active = model.moe.top_k / model.moe.num_experts if model.moe and tensor.role.startswith("expert") else 1.0
            cost[min(tensor.layer, model.num_hidden_layers - 1)] += tensor.size * active
    cost[-1] += (1 + model.mtp_layers) * model.vocab_size * model.hidden_size
    return balance(cost, stages)


def balance(cost: list[float], stages: int) -> tuple[int, ...]:
    """Cuts a row of costs into `stages` runs of at least one, so that the largest cost is minimal.

    Among equal cuts the most even one: early stages hold the most activations, and shouldn't hold the most layers too.

    best[s][n] = min over k of best[s-1][k] and items k..n, by (largest run, sum of the runs' squares)
    """
    items = tuple(cost)
    rows = [_best_cuts(items, stage) for stage in range(stages + 1)]  # each from the cached one before
    sizes, end = [], len(items)
    for stage in range(stages, 0, -1):
        start = rows[stage].cut[end]
        sizes.append(end - start)
        end = start
    return tuple(reversed(sizes))


class _Cuts(NamedTuple):
    """The best cuts into some stages, by number of items: their measure, and their last run's start."""

    best: tuple[tuple[float, float], ...]
    cut: tuple[int, ...]


@lru_cache(maxsize=4096)
def _best_cuts(cost: tuple[float, ...], stage: int) -> _Cuts:
    items, infinite = len(cost), (float("inf"), float("inf"))
    if stage == 0:
        return _Cuts(((0.0, 0.0), *[infinite] * items), (0,) * (items + 1))
    total = list(accumulate(cost, initial=0.0))
    before = _best_cuts(cost, stage - 1).best
    best, cut = [infinite] * (items + 1), [0] * (items + 1)
    for end in range(stage, items + 1):
        for start in range(end - 1, stage - 2, -1):
            run = total[end] - total[start]
            if run > best[end][0]:  # and longer ones are larger still
                break
            largest, squares = before[start]
            measure = (max(largest, run), squares + run * run)
            if measure <= best[end]:  # of equal ones the first start
                best[end], cut[end] = measure, start
    return _Cuts(tuple(best), tuple(cut))


def _stage_of_layer(model: ModelSpec, layout: Layout) -> dict[int, int]:
    """The stage of every layer; what is numbered after the last layer is on the last stage."""
    stages = [stage for stage, count in enumerate(stage_layers(model, layout)) for _ in range(count)]
    return dict(enumerate(stages)) | {model.num_hidden_layers: layout.stages - 1}

"""Bytes that one rank sends in an optimizer step, by axis and kind: exactly what the trainer does.

    axis           kind                      what                                           how often
    dp_shard       all_reduce                zero_stage 0: gradients, in fp32 buckets       once
                   all_gather                parameters of a block, or of a stage's root    by ZeRO stage
                   reduce_scatter            gradients of one, in fp32                      by ZeRO stage
    dp_replicate   all_reduce                the rank's own part of them (HSDP)             once
    tp             all_reduce, or            activations [B, T, D], where a tensor-parallel every micro-batch
                   gather and scatter (sp)   part begins or ends
                   all_gather                two numbers a token, for the loss              every micro-batch
    tp, kv, tie    all_reduce                gradients that are still partial               once
    pp             send                      activations and their gradients                every micro-batch

Bytes: all-reduce the tensor; all-gather its output; reduce-scatter its input; send what is sent. Control
traffic (loss and norm, some scalars) is left out. The papers' closed forms are in `traffic_papers.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from scalewright.spec.grid import Grid, make_grid
from scalewright.spec.layout import Layout, RecomputeBudget, RecomputeEvery
from scalewright.spec.memory import FP32, before_sharding, is_sharded, offloads_activations, padded_rows
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import Placement, holders, local_shape, place, stage_layers
from scalewright.spec.recompute import keep
from scalewright.spec.schedules.build import schedule
from scalewright.spec.schedules.kinds import find_kind, stage_ranks

BUCKET_BYTES = 25 * 2**20  # torch DDP's default: large enough for bandwidth, small enough to overlap
SUMMED_ALONE = 2**20  # of a partial gradient: to copy this much costs more than another call


@dataclass(frozen=True)
class Traffic:
    """What one rank sends over one axis in one kind of collective: calls, and bytes of all of them."""

    count: int
    bytes: int


Table = dict[tuple[str, str], Traffic]  # (axis, kind) ->
_Call = tuple[str, str, int, int]  # axis, kind, bytes of one call, calls


@dataclass(frozen=True)
class Rank:
    """Everything that the formulas below ask of one rank."""

    model: ModelSpec
    layout: Layout
    seq_len: int
    grid: Grid
    coords: Mapping[str, int]
    width: int  # bytes of an activation or a gathered parameter
    stages: tuple[int, ...]
    tensors: tuple[tuple[int, Placement], ...]  # what it holds: (stage, placement)

    @property
    def stream(self) -> int:
        """Bytes of the residual stream of one micro-batch, [B, T, D]."""
        return self.layout.micro_batch * self.seq_len * self.model.hidden_size * self.width

    def layers(self, stage: int) -> range:
        """The layers of a stage."""
        sizes = stage_layers(self.model, self.layout)
        return range(sum(sizes[:stage]), sum(sizes[: stage + 1]))

    def cut_shape(self, placement: Placement, *, sharded: bool) -> tuple[int, ...]:
        """A tensor's shape on this rank, padding included; without `sharded`, as FSDP gathers it."""
        cut = placement if sharded else before_sharding(placement)
        return local_shape(cut, self.coords, self.grid.size_of)


def step_traffic(
    model: ModelSpec, layout: Layout, seq_len: int, rank: int = 0, *, bf16: bool | None = None
) -> Table:
    """What a rank sends in one step; `bf16` is null for what the layout's precision says (auto: yes).

    Raises ValueError for axes that the trainer doesn't have yet (cp, ep), or a schedule that it never will.
    """
    if layout.cp > 1 or layout.ep > 1 or not find_kind(layout.schedule).trained:
        raise ValueError(f"nothing trains with cp {layout.cp}, ep {layout.ep}, {layout.schedule} yet")
    at = _rank(model, layout, seq_len, rank, bf16)
    calls = [*_data_parallel(at), *_tensor_parallel(at), *_partial_sums(at), *_pipeline(at)]
    count: Counter[tuple[str, str]] = Counter()
    total: Counter[tuple[str, str]] = Counter()
    for axis, kind, size, times in calls:
        count[axis, kind] += times
        total[axis, kind] += size * times
    return {key: Traffic(count[key], total[key]) for key in sorted(count) if count[key]}


def _rank(model: ModelSpec, layout: Layout, seq_len: int, rank: int, bf16: bool | None) -> Rank:
    grid = make_grid(layout, model.kv_heads)
    coords = grid.coords(rank)
    owners = stage_ranks(layout.schedule, layout.pp, layout.virtual_stages or 1)
    mine = tuple(stage for stage, owner in enumerate(owners) if owner == coords["pp"])
    held = tuple(
        (next(stage for stage in placement.stages if stage in mine), placement)
        for placement in place(model, layout)
        if coords["pp"] in holders(placement, layout)
    )
    low = layout.precision not in ("fp32", "tf32") if bf16 is None else bf16
    return Rank(model, layout, seq_len, grid, coords, 2 if low else FP32, mine, held)


# -- data parallel --------------------------------------------------------------------------------


def _data_parallel(at: Rank) -> Iterator[_Call]:
    if not is_sharded(at.layout):
        yield from _buckets(at)
        return
    for (stage, block), group in _gathered_together(at).items():
        yield from _sharded(at, stage, group, root=block is None)


def _buckets(at: Rank) -> Iterator[_Call]:
    """Replicas: gradients in flat buckets, last tensor first, each stage's own (Li et al. 2020 §3.2.3)."""
    if at.grid.size_of["gradient"] == 1:
        return
    axis = "dp_shard" if at.grid.size_of["fsdp"] > 1 else "dp_replicate"
    for stage in at.stages:
        filled = 0
        own = [placement for owner, placement in at.tensors if owner == stage]
        for placement in reversed(own):
            filled += prod(at.cut_shape(placement, sharded=True)) * FP32
            if filled >= BUCKET_BYTES or placement is own[0]:
                yield axis, "all_reduce", filled, 1
                filled = 0


def _gathered_together(at: Rank) -> dict[tuple[int, int | None], list[Placement]]:
    """FSDP's groups: each block, and all else of a stage (block None: the root)."""
    groups: dict[tuple[int, int | None], list[Placement]] = {}
    for stage, placement in at.tensors:
        inside = placement.tensor.name.startswith("layers.")
        groups.setdefault((stage, placement.tensor.layer if inside else None), []).append(placement)
    return groups


def _sharded(at: Rank, stage: int, group: Sequence[Placement], root: bool) -> Iterator[_Call]:
    """One of FSDP's groups in a step; its tensors are padded to a multiple of the ranks, each in its rows."""
    ranks, layout = at.grid.size_of["fsdp"], at.layout
    padded = sum(padded_rows(at.cut_shape(placement, sharded=False), ranks) for placement in group)
    # An embedding whose two ends are both here (a V) is reduced when both have given all.
    both_ends = any(
        len(placement.stages) > 1 and set(placement.stages) <= set(at.stages) for placement in group
    )
    once = layout.zero_stage == 1 or (both_ends and layout.pp > 1)
    if ranks > 1:
        yield "dp_shard", "all_gather", padded * at.width, _gathers(at, stage, root)
        yield "dp_shard", "reduce_scatter", padded * FP32, 1 if once else layout.accumulation
    if layout.dp_replicate > 1:
        yield "dp_replicate", "all_reduce", padded // ranks * FP32, 1


def _gathers(at: Rank, stage: int, root: bool) -> int:
    """How often a group's parameters are gathered in a step.

    ZeRO-3 frees a block after every forward and every backward, and after each part of one that is split. A
    root stays from forward to backward; in a pipeline, where micro-batches overlap, to the end of the step.
    """
    layout = at.layout
    if layout.zero_stage != 3 or (root and layout.pp > 1):
        return 1
    if root:
        return layout.accumulation
    if layout.pp == 1:
        return 2 * layout.accumulation
    plan = schedule(layout.schedule, layout.pp, layout.virtual_stages or 1, layout.accumulation)
    return sum(action.stage == stage for action in plan.compute(at.coords["pp"]))


# -- tensor parallel ------------------------------------------------------------------------------


def _tensor_parallel(at: Rank) -> Iterator[_Call]:
    """Activations of every micro-batch (Shoeybi et al. 2019 §3; Korthikanti et al. 2022 §4.2)."""
    if at.layout.tp == 1:
        return
    last = at.layout.stages - 1
    for stage in at.stages:
        if stage == 0:
            yield from _leave(at)
        for index, layer in enumerate(at.layers(stage)):
            again = _runs_again(at, layer, index)
            norm_follows = at.model.norm_position in ("post", "both")
            for part in ("attention", "mlp"):
                yield from _enter(at, again or regathers(at.layout))
                # Recomputation stops at the last tensor that the backward needs: what MLP's rows take.
                yield from _leave(at, again and (part == "attention" or norm_follows))
            yield from _head_norms(at, again)
        if stage == last:
            yield from _enter(at)
            tokens = at.layout.micro_batch * at.seq_len
            yield "tp", "all_gather", at.layout.tp * 2 * tokens * FP32, at.layout.accumulation


def regathers(layout: Layout) -> bool:
    """Whether a block keeps its part of the tokens and gathers the others' again in the backward.

    Korthikanti et al. 2022 §4.2.2. Recomputation gathers again anyway; offload takes what is kept.
    """
    return bool(layout.sp) and layout.recompute == "none" and not offloads_activations(layout)


def _enter(at: Rank, again: bool = False) -> Iterator[_Call]:
    """Into column-parallel layers: with sp the tokens are gathered, and their gradients reduce-scattered."""
    if at.layout.sp:
        yield from _there_and_back(at, "all_gather", "reduce_scatter", again)
    else:
        yield "tp", "all_reduce", at.stream, at.layout.accumulation  # in the backward


def _leave(at: Rank, again: bool = False) -> Iterator[_Call]:
    """Out of row-parallel layers (and the embedding): the mirror of `_enter`."""
    if at.layout.sp:
        yield from _there_and_back(at, "reduce_scatter", "all_gather", again)
    else:
        yield "tp", "all_reduce", at.stream, at.layout.accumulation * (2 if again else 1)


def _there_and_back(at: Rank, forward: str, backward: str, again: bool) -> Iterator[_Call]:
    """A collective of the forward, which may run again, and its mirror in the backward."""
    yield "tp", forward, at.stream, at.layout.accumulation * (2 if again else 1)
    yield "tp", backward, at.stream, at.layout.accumulation


def _head_norms(at: Rank, again: bool) -> Iterator[_Call]:
    """A norm over all heads sums its statistics, one number a token: of q and of k, forward and backward."""
    if at.model.qk_norm != "full":
        return
    statistics = 1 if at.model.norm_type.startswith("rmsnorm") else 2  # the mean too
    tokens = at.layout.micro_batch * at.seq_len
    times = 2 * statistics * at.layout.accumulation
    yield "tp", "all_reduce", tokens * FP32, times * (3 if again else 2)


def _runs_again(at: Rank, layer: int, index: int) -> bool:
    """Whether a block's forward runs a second time; `index` counts from its stage's first."""
    kind = at.layout.recompute
    if isinstance(kind, RecomputeEvery):
        return index % kind.every == 0
    if isinstance(kind, RecomputeBudget):
        return not keep(at.model, at.layout, at.seq_len, kind.budget, layer).whole
    return kind != "none"


# -- partial gradients, and the pipeline ----------------------------------------------------------


def _partial_sums(at: Rank) -> Iterator[_Call]:
    """The rank's own fp32 parts: large ones each on their own, all others of an axis in one all-reduce."""
    for axis in ("tp", "kv", "tie"):
        if at.grid.size_of[axis] == 1:
            continue
        own = (placement for _, placement in at.tensors if axis in placement.grad_sum)
        sizes = [prod(at.cut_shape(placement, sharded=True)) * FP32 for placement in own]
        for size in sizes:
            if size >= SUMMED_ALONE:
                yield axis, "all_reduce", size, 1
        if small := sum(size for size in sizes if size < SUMMED_ALONE):
            yield axis, "all_reduce", small, 1


def _pipeline(at: Rank) -> Iterator[_Call]:
    """Every boundary between ranks: activations go up, their gradients come down."""
    layout = at.layout
    owners = stage_ranks(layout.schedule, layout.pp, layout.virtual_stages or 1)
    own = at.stream // layout.tp if layout.sp else at.stream
    for stage in at.stages:
        for other in (stage - 1, stage + 1):
            if 0 <= other < layout.stages and owners[other] != owners[stage]:
                yield "pp", "send", own, layout.accumulation

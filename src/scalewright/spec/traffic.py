"""Bytes that one rank sends in an optimizer step, by axis and kind: exactly what the trainer does.

    placements of a rank's tensors  -->  Rank (volumes.py)  -->  transfers  -->  {(axis, kind): calls, bytes}

What is sent when, and what a byte counts as: `volumes.py`. The papers' closed forms: `learn/traffic.py`.
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
from scalewright.spec.volumes import BUCKET_BYTES, Exchanges, Group, Rank, transfers

SUMMED_ALONE = 2**20  # of a partial gradient: to copy this much costs more than another call


@dataclass(frozen=True)
class Traffic:
    """What one rank sends over one axis in one kind of collective: calls, and bytes of all of them."""

    count: int
    bytes: int


Table = dict[tuple[str, str], Traffic]  # (axis, kind) ->


def step_traffic(
    model: ModelSpec, layout: Layout, seq_len: int, rank: int = 0, *, bf16: bool | None = None
) -> Table:
    """What a rank sends in one step; `bf16` is null for what the layout's precision says (auto: yes).

    Raises ValueError for axes that the trainer doesn't have yet (cp, ep), or a schedule that it never will.
    """
    if layout.cp > 1 or layout.ep > 1 or not find_kind(layout.schedule).trained:
        raise ValueError(f"nothing trains with cp {layout.cp}, ep {layout.ep}, {layout.schedule} yet")
    low = layout.precision not in ("fp32", "tf32") if bf16 is None else bf16
    held = _held(model, layout, rank)
    count: Counter[tuple[str, str]] = Counter()
    total: Counter[tuple[str, str]] = Counter()
    for one in transfers(_rank(held, seq_len, 2 if low else FP32)):
        key = held.axis(one.axis), one.kind
        count[key] += int(one.calls)
        total[key] += int(one.total)
    return {key: Traffic(count[key], total[key]) for key in sorted(count) if count[key]}


@dataclass(frozen=True)
class _Held:
    """A rank, its stages, and the tensors that it holds: (stage, placement)."""

    model: ModelSpec
    layout: Layout
    grid: Grid
    coords: Mapping[str, int]
    stages: tuple[int, ...]
    tensors: tuple[tuple[int, Placement], ...]

    def layers(self, stage: int) -> range:
        """The layers of a stage."""
        sizes = stage_layers(self.model, self.layout)
        return range(sum(sizes[:stage]), sum(sizes[: stage + 1]))

    def size(self, placement: Placement) -> int:
        """A tensor's elements on this rank, padding included."""
        return prod(local_shape(placement, self.coords, self.grid.size_of))

    def axis(self, name: str) -> str:
        """The grid's name of an axis of `volumes.py`."""
        gradient = "dp_shard" if self.grid.size_of["fsdp"] > 1 else "dp_replicate"
        return {"fsdp": "dp_shard", "gradient": gradient}.get(name, name)


def _held(model: ModelSpec, layout: Layout, rank: int) -> _Held:
    grid = make_grid(layout, model.kv_heads)
    coords = grid.coords(rank)
    owners = stage_ranks(layout.schedule, layout.pp, layout.virtual_stages)
    mine = tuple(stage for stage, owner in enumerate(owners) if owner == coords["pp"])
    tensors = tuple(
        (next(stage for stage in placement.stages if stage in mine), placement)
        for placement in place(model, layout)
        if coords["pp"] in holders(placement, layout)
    )
    return _Held(model, layout, grid, coords, mine, tensors)


def _rank(held: _Held, seq_len: int, width: int) -> Rank:
    """The numbers of one rank that `volumes.py` asks for."""
    layout, sizes = held.layout, held.grid.size_of
    sharded, tokens = is_sharded(layout), layout.micro_batch * seq_len
    stream = tokens * held.model.hidden_size * width
    return Rank(
        zero_stage=layout.zero_stage,
        pp=layout.pp,
        tp=layout.tp,
        accumulation=layout.accumulation,
        fsdp=sizes["fsdp"] if sharded else 1,
        replicas=layout.dp_replicate,
        sharded=int(sharded),
        width=width,
        groups=tuple(_groups(held)) if sharded else (),
        buckets=() if sharded or sizes["gradient"] == 1 else tuple(_buckets(held)),
        partial=tuple(_partial(held)),
        exchanges=_exchanges(held, seq_len),
        stream=stream,
        tokens=tokens,
        message=stream // layout.tp if layout.sp else stream,
        borders=_borders(held),
    )


# -- tensors --------------------------------------------------------------------------------------


def _buckets(held: _Held) -> Iterator[tuple[int, int]]:
    """Gradients in flat buckets, last tensor first, each stage's own (Li et al. 2020 §3.2.3)."""
    for stage in held.stages:
        filled = 0
        own = [placement for owner, placement in held.tensors if owner == stage]
        for placement in reversed(own):
            filled += held.size(placement) * FP32
            if filled >= BUCKET_BYTES or placement is own[0]:
                yield filled, 1
                filled = 0


def _groups(held: _Held) -> Iterator[Group]:
    """FSDP's groups: each block, and all else of a stage (the root)."""
    groups: dict[tuple[int, int | None], list[Placement]] = {}
    for stage, placement in held.tensors:
        inside = placement.tensor.name.startswith("layers.")
        groups.setdefault((stage, placement.tensor.layer if inside else None), []).append(placement)
    ranks, mine = held.grid.size_of["fsdp"], set(held.stages)
    for (stage, block), group in groups.items():
        whole = [local_shape(before_sharding(one), held.coords, held.grid.size_of) for one in group]
        both_ends = any(len(one.stages) > 1 and set(one.stages) <= mine for one in group)
        size = sum(padded_rows(shape, ranks) for shape in whole)
        yield Group(size, 1, _computations(held, stage), block is None, both_ends)


def _partial(held: _Held) -> Iterator[tuple[str, int, int]]:
    """The rank's own fp32 parts: large ones each on their own, all others of an axis in one all-reduce."""
    for axis in ("tp", "kv", "tie"):
        if held.grid.size_of[axis] == 1:
            continue
        sizes = [held.size(one) * FP32 for _, one in held.tensors if axis in one.grad_sum]
        for size in sizes:
            if size >= SUMMED_ALONE:
                yield axis, size, 1
        if small := sum(size for size in sizes if size < SUMMED_ALONE):
            yield axis, small, 1


# -- blocks and stages ----------------------------------------------------------------------------


def _exchanges(held: _Held, seq_len: int) -> Exchanges:
    model, layout = held.model, held.layout
    layers = [(layer, index) for s in held.stages for index, layer in enumerate(held.layers(s))]
    statistics = 0
    if model.qk_norm == "full":  # squares, and of a LayerNorm the mean, too
        statistics = 1 if model.norm_type.startswith("rmsnorm") else 2
    return Exchanges(
        sp=int(layout.sp),
        blocks=len(layers),
        rerun=sum(_runs_again(held, seq_len, layer, index) for layer, index in layers),
        regathers=int(regathers(layout)),
        norm_follows=int(model.norm_position in ("post", "both")),
        statistics=statistics,
        first=int(0 in held.stages),
        last=int(layout.stages - 1 in held.stages),
    )


def regathers(layout: Layout) -> bool:
    """Whether a block keeps its part of the tokens and gathers the others' again in the backward.

    Korthikanti et al. 2022 §4.2.2. Recomputation gathers again anyway; offload takes what is kept.
    """
    return layout.sp and layout.recompute == "none" and not offloads_activations(layout)


def _runs_again(held: _Held, seq_len: int, layer: int, index: int) -> bool:
    """Whether a block's forward runs a second time; `index` counts from its stage's first."""
    kind = held.layout.recompute
    if isinstance(kind, RecomputeEvery):
        return index % kind.every == 0
    if isinstance(kind, RecomputeBudget):
        return not keep(held.model, held.layout, seq_len, kind.budget, layer).whole
    return kind != "none"


def _computations(held: _Held, stage: int) -> int:
    """Actions of a stage that compute."""
    layout = held.layout
    if layout.pp == 1:
        return 2 * layout.accumulation
    plan = schedule(layout.schedule, layout.pp, layout.virtual_stages, layout.accumulation)
    return sum(action.stage == stage for action in plan.compute(held.coords["pp"]))


def _borders(held: _Held) -> int:
    """Neighbours of the rank's stages that other ranks have."""
    layout = held.layout
    owners: Sequence[int] = stage_ranks(layout.schedule, layout.pp, layout.virtual_stages)
    return sum(
        0 <= other < layout.stages and owners[other] != owners[stage]
        for stage in held.stages
        for other in (stage - 1, stage + 1)
    )

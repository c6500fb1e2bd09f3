"""Bytes that one rank sends in an optimizer step, by `spec/volumes.py`'s formulas, tensor by tensor.

    placements of a rank's tensors  -->  Rank (volumes.py)  -->  transfers  -->  {(axis, kind): calls, bytes}

The planner fills `Rank` from sums over regions of the model, for all rows of a table at once; tests hold both
against this, and this against what a trainer and a dry run send.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tests.rank_states import before_sharding

from scalewright.learn.communication import PASSES
from scalewright.spec.compress import Compress, factors, half_bytes, half_part, rank_of
from scalewright.spec.expert_volumes import ExpertRank, capacity, expert_parallel, overlaps_shared
from scalewright.spec.grid import Grid, make_grid
from scalewright.spec.layout import Layout, RecomputeBudget, RecomputeEvery
from scalewright.spec.loss_chunks import chunk_tokens
from scalewright.spec.memory import FP32, is_sharded, padded_rows
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import Placement, holders, local_shape, place, stage_layers
from scalewright.spec.recompute_budget import keep
from scalewright.spec.run import BalanceSpec
from scalewright.spec.schedules.build import schedule
from scalewright.spec.schedules.kinds import find_kind, stage_ranks
from scalewright.spec.volumes import (
    BUCKET_BYTES,
    COUNT,
    SUMMED_ALONE,
    Activations,
    Collective,
    ContextRank,
    Exchanges,
    Group,
    Rank,
    Shards,
    SparseBlocks,
    context_parallel,
    data_parallel,
    latent_numbers,
    messages,
    partial_sums,
    regathers,
    repeats,
    tensor_parallel,
)


@dataclass(frozen=True)
class Traffic:
    """Traffic of one rank over one axis in one kind of collective: calls, and bytes of all calls."""

    count: int
    bytes: int


NO_BALANCE = BalanceSpec()
Table = dict[tuple[str, str], Traffic]  # (axis, kind) ->


def step_traffic(
    model: ModelSpec,
    layout: Layout,
    seq_len: int,
    rank: int = 0,
    *,
    bf16: bool | None = None,
    compress: Compress = "none",
    balance: BalanceSpec = NO_BALANCE,
) -> Table:
    """The traffic of a rank in one step; `bf16` is null for the layout's precision (auto: bf16).

    Raises ValueError for a schedule that is only planned.
    """
    if not find_kind(layout.schedule).trained:
        raise ValueError(f"nothing trains with {layout.schedule} yet")
    low = layout.precision not in ("fp32", "tf32") if bf16 is None else bf16
    local = _rank_tensors(model, layout, rank)
    local = replace(local, seq_len=seq_len, balance=balance, compress=compress)
    count: Counter[tuple[str, str]] = Counter()
    total: Counter[tuple[str, str]] = Counter()
    width = 2 if low else FP32
    held, sends = _rank(local, width), _activations(local, seq_len, width)
    over_cp = context_parallel(_context(local, sends))
    over_ep = expert_parallel(_expert(local, sends))
    for transfer in (
        *data_parallel(held), *tensor_parallel(sends), *over_cp, *over_ep, *partial_sums(held), messages(sends)
    ):  # fmt: skip
        key = local.axis(transfer.axis), transfer.kind
        count[key] += int(transfer.calls)
        total[key] += int(transfer.total)
    return {key: Traffic(count[key], total[key]) for key in sorted(count) if count[key]}


def wire_bytes(table: Mapping[tuple[str, str], Traffic], axis: str) -> int:
    """The traffic of `step_traffic` on one axis as the papers count it, without the share (n - 1) / n."""
    return sum(PASSES[kind] * traffic.bytes for (on, kind), traffic in table.items() if on == axis)


@dataclass(frozen=True)
class _RankTensors:
    """A rank, its stages, and the tensors that it holds: (stage, placement)."""

    model: ModelSpec
    layout: Layout
    grid: Grid
    coords: Mapping[str, int]
    stages: tuple[int, ...]
    tensors: tuple[tuple[int, Placement], ...]
    compress: Compress = "none"
    seq_len: int = 0
    balance: BalanceSpec = NO_BALANCE

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
        experts = dict.fromkeys(("efsdp", "expert"), "dp_shard")
        return {"fsdp": "dp_shard", "gradient": gradient, **experts}.get(name, name)


def _rank_tensors(model: ModelSpec, layout: Layout, rank: int) -> _RankTensors:
    grid = make_grid(layout, model.kv_heads)
    coords = grid.coords(rank)
    owners = stage_ranks(layout.schedule, layout.pp, layout.virtual_stages)
    stages = tuple(stage for stage, owner in enumerate(owners) if owner == coords["pp"])
    tensors = tuple(
        (next(stage for stage in placement.stages if stage in stages), placement)
        for placement in place(model, layout)
        if coords["pp"] in holders(placement, layout)
    )
    return _RankTensors(model, layout, grid, coords, stages, tensors)


def _rank(local: _RankTensors, width: int) -> Rank:
    """The numbers of one rank's weights and gradients that `volumes.py` needs."""
    layout, sizes = local.layout, local.grid.size_of
    sharded = is_sharded(layout)
    return Rank(
        zero_stage=layout.zero_stage,
        pp=layout.pp,
        accumulation=layout.accumulation,
        fsdp=sizes["fsdp"] if sharded else 1,
        replicas=layout.dp_replicate,
        sharded=int(sharded),
        width=width,
        groups=tuple(_groups(local, experts=False)) if sharded else (),
        buckets=() if sharded or sizes["gradient"] == 1 else tuple(_buckets(local, experts=False)),
        partial=tuple(_partial(local)),
        experts=Shards(
            sizes["efsdp"] if sharded else 1,
            tuple(_groups(local, experts=True)) if sharded else (),
            () if sharded or sizes["ehsdp"] == 1 else tuple(_buckets(local, experts=True)),
        ),
    )


def _activations(local: _RankTensors, seq_len: int, width: int) -> Activations:
    """The numbers of what its micro-batches send."""
    layout = local.layout
    tokens = layout.micro_batch * seq_len // layout.cp
    stream = tokens * local.model.hidden_size * width
    return Activations(
        tp=layout.tp,
        accumulation=layout.accumulation,
        exchanges=_exchanges(local, seq_len, tokens),
        width=width,
        stream=stream,
        tokens=tokens,
        message=stream // layout.tp if layout.sp else stream,
        borders=_borders(local),
    )


def _context(local: _RankTensors, rank: Activations) -> ContextRank:
    """What its blocks send over `cp`."""
    model, layout = local.model, local.layout
    query, key_value = (max(1, heads // layout.tp) for heads in (model.num_attention_heads, model.kv_heads))
    return ContextRank(
        cp=layout.cp,
        **{kind: int(layout.cp_kind == kind) for kind in ("ring", "allgather", "ulysses")},
        blocks=rank.exchanges.blocks,
        rerun=rank.exchanges.rerun,
        accumulation=layout.accumulation,
        key_value=rank.tokens * key_value * (model.dim_per_head + model.dim_per_value) * rank.width,
        apart=rank.tokens * key_value * rank.width * _values_apart(model),
        query=rank.tokens * query * model.dim_per_head * rank.width,
        output=rank.tokens * query * model.dim_per_value * rank.width,
        repeats=repeats(query, key_value, layout.cp),
    )


def _expert(local: _RankTensors, rank: Activations) -> ExpertRank:
    """What its blocks of experts send over `ep` and `etp`; rows as a capacity leaves them at even loads."""
    layout, moe, sparse = local.layout, local.model.moe, rank.exchanges.sparse
    factor, parts = local.balance.capacity_factor, layout.cp * layout.tp
    rows = rank.tokens // layout.tp * moe.top_k if moe else 0
    if moe and factor is not None:
        taken = capacity(factor, moe, local.seq_len) * moe.num_experts
        rows = min(rows, layout.micro_batch * taken // parts)
    choices = 4 * layout.micro_batch * local.seq_len * moe.top_k if moe else 0
    return ExpertRank(
        ep=layout.ep,
        etp=layout.etp,
        experts=sparse.experts,
        blocks=sparse.blocks,
        rerun=sparse.rerun,
        accumulation=layout.accumulation,
        rows=rows * local.model.hidden_size * rank.width,
        tp=layout.tp,
        cp=layout.cp,
        balanced=COUNT * layout.micro_batch * sparse.experts if local.balance.loss else 0,
        chosen=choices if factor is not None else 0,
    )


def _values_apart(model: ModelSpec) -> int:
    """Dimensions of a value where a key has others."""
    return model.dim_per_value if model.dim_per_value != model.dim_per_head else 0


# -- tensors --------------------------------------------------------------------------------------


def _buckets(local: _RankTensors, *, experts: bool) -> Iterator[tuple[Collective, int, int]]:
    """Messages of each stage's flat gradient buckets, last tensor first (Li et al. 2020 §3.2.3); experts'
    apart."""
    for stage in local.stages:
        bucket: list[Placement] = []
        placements = [p for owner, p in local.tensors if owner == stage and _is_expert(p) == experts]
        for placement in reversed(placements):
            bucket.append(placement)
            if FP32 * sum(map(local.size, bucket)) >= BUCKET_BYTES or placement is placements[0]:
                yield from _messages(local, bucket)
                bucket = []


def _messages(local: _RankTensors, bucket: Sequence[Placement]) -> Iterator[tuple[Collective, int, int]]:
    """What is sent of one bucket (spec/compress.py)."""
    experts = _is_expert(bucket[0])
    size, ranks = sum(map(local.size, bucket)), local.grid.size_of["ehsdp" if experts else "gradient"]
    if local.compress in ("bf16", "fp16"):
        sent = half_bytes(ranks * half_part(size, ranks), ranks, local.compress == "fp16")
        yield "all_to_all", sent, 1
        yield "all_gather", sent, 1
        return
    rank = rank_of(local.compress)
    first, second = 0, 0
    for placement in bucket:
        shape = local_shape(placement, local.coords, local.grid.size_of)
        p, q = factors(shape, rank, stacked=experts, partial=bool(placement.grad_sum))
        first, second = first + (p or prod(shape)), second + q
    yield "all_reduce", FP32 * first, 1
    if second:
        yield "all_reduce", FP32 * second, 1


def _groups(local: _RankTensors, *, experts: bool) -> Iterator[Group]:
    """FSDP's units: each block, those of prediction modules too; without a pipeline a head that isn't tied
    and that such modules don't use; a stage's other tensors (the root). Or those of a block's experts."""
    units: dict[tuple[int, int | str], list[Placement]] = {}
    unit: int | str
    for stage, placement in local.tensors:
        if _is_expert(placement) != experts:
            continue
        name = placement.tensor.name
        unit = "root"
        if name.startswith("layers.") or ".block." in name:
            unit = placement.tensor.layer
        elif (
            local.layout.pp == 1
            and not (local.model.tie_word_embeddings or local.model.mtp_layers)
            and name.startswith(("norm.", "head."))
        ):
            unit = "head"
        units.setdefault((stage, unit), []).append(placement)
    ranks, stages = local.grid.size_of["efsdp" if experts else "fsdp"], set(local.stages)
    for (stage, unit), group in units.items():
        whole = [local_shape(before_sharding(p), local.coords, local.grid.size_of) for p in group]
        both_ends = any(len(p.stages) > 1 and set(p.stages) <= stages for p in group)
        size = sum(padded_rows(shape, ranks) for shape in whole)
        stays = unit in ("head", "root")
        yield Group(size, 1, _computations(local, stage), stays, unit == "root", both_ends)


def _is_expert(placement: Placement) -> bool:
    return placement.tensor.role.startswith("expert")


def _partial(local: _RankTensors) -> Iterator[tuple[str, int, int]]:
    """All-reduces of partial fp32 gradients: large ones alone, all others of an axis in one."""
    for axis in ("tp", "kv", "etp", "tie"):
        if local.grid.size_of[axis] == 1:
            continue
        sizes = [local.size(placement) * FP32 for _, placement in local.tensors if axis in placement.grad_sum]
        for size in sizes:
            if size >= SUMMED_ALONE:
                yield axis, size, 1
        if small := sum(size for size in sizes if size < SUMMED_ALONE):
            yield axis, small, 1


# -- blocks and stages ----------------------------------------------------------------------------


def _exchanges(local: _RankTensors, seq_len: int, tokens: int) -> Exchanges:
    model, layout = local.model, local.layout
    columns = -(-model.vocab_size // layout.tp)
    layers = [(layer, index) for s in local.stages for index, layer in enumerate(local.layers(s))]
    last = layout.stages - 1
    modules = model.mtp_layers if last in local.stages else 0
    behind = len(local.layers(last))  # a prediction module's block is as the last of the model's
    layers += [(model.num_hidden_layers - 1, behind + index) for index in range(modules)]
    statistics = 0
    if model.qk_norm == "full":  # squares; for a LayerNorm the mean too
        statistics = 1 if model.norm_type.startswith("rmsnorm") else 2
    return Exchanges(
        sp=int(layout.sp),
        blocks=len(layers),
        rerun=sum(_runs_again(local, seq_len, layer, index) for layer, index in layers),
        regathers=int(regathers(layout)),
        norm_follows=int(model.norm_position in ("post", "both")),
        statistics=statistics,
        latents=latent_numbers(model),
        first=int(0 in local.stages) + modules,
        last=int(last in local.stages) + modules,
        loss_chunks=-(-tokens // chunk_tokens(columns)),
        sparse=_sparse(local, seq_len, layers),
    )


def _sparse(local: _RankTensors, seq_len: int, layers: Sequence[tuple[int, int]]) -> SparseBlocks:
    """The blocks of experts among (layer, number within its stage)."""
    model, moe = local.model, local.model.moe
    if moe is None:
        return SparseBlocks()
    layers = [(layer, index) for layer, index in layers if model.is_moe(layer)]
    beside, follows = overlaps_shared(model, local.layout), model.norm_position in ("post", "both")
    shared = moe.shared_size > 0
    return SparseBlocks(
        blocks=len(layers),
        rerun=sum(_runs_again(local, seq_len, layer, index) for layer, index in layers),
        experts=moe.num_experts,
        shared=int(shared),
        # what comes last in the block isn't needed again: shared experts, or the routed tokens
        exit_again=int(follows or beside or moe.shared_gate),
        gather_again=int(follows or (shared and not beside)),
    )


def _runs_again(local: _RankTensors, seq_len: int, layer: int, index: int) -> bool:
    """Whether a block's forward runs a second time; `index` is its number within the stage."""
    kind = local.layout.recompute
    if isinstance(kind, RecomputeEvery):
        return index % kind.every == 0
    if isinstance(kind, RecomputeBudget):
        return not keep(local.model, local.layout, seq_len, kind.budget, layer).whole
    return kind != "none"


def _computations(local: _RankTensors, stage: int) -> int:
    """The number of a stage's computations in a step."""
    layout = local.layout
    if layout.pp == 1:
        return 2 * layout.accumulation
    plan = schedule(layout.schedule, layout.pp, layout.virtual_stages, layout.accumulation)
    return sum(action.stage == stage for action in plan.compute(local.coords["pp"]))


def _borders(local: _RankTensors) -> int:
    """The number of neighbours of the rank's stages that are on other ranks."""
    layout = local.layout
    owners: Sequence[int] = stage_ranks(layout.schedule, layout.pp, layout.virtual_stages)
    return sum(
        0 <= other < layout.stages and owners[other] != owners[stage]
        for stage in local.stages
        for other in (stage - 1, stage + 1)
    )

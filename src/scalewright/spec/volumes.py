"""The transfers of a rank in an optimizer step, each with the computation that may hide it.

    axis          kind                    bytes of a call              calls a step        during
    gradient      all_reduce; all_to_all  gradients, in buckets        once (zero 0)       backward
                  and all_gather          (compress.py)
    fsdp          all_gather              a block's parameters         once, or each use   forward (3: all)
                  all_gather              those of a head              once, or m          forward (3: all)
                  all_gather              those of a stage's root      once, or m          nothing
                  reduce_scatter          fp32 gradients of a block    once, or m          backward (3: all)
                                          or a head
                  reduce_scatter          those of a stage's root      the same            nothing
    dp_replicate  all_reduce              the rank's own part (HSDP)   once                nothing
    islands       all_reduce; narrow: an  a fragment's outer gradients  n / inner_steps     nothing, or
                  all_to_all and gather   of the rank's own part       (spec/diloco.py)    `overlap` steps
    tp            all_reduce, or gather   activations [B, T, D] where  m                   the pass that waits
                  and scatter (sp)        a sharded part begins or ends
                  all_gather              two numbers a token: loss    m * chunks          forward
    tp            all_reduce              tokens of every expert       once                nothing
    tp, kv, tie,  all_reduce              gradients still partial      once                nothing
    etp
    cp            all_to_all, or gather   keys and values, or heads    m                   the pass that waits
                  and scatter             (below)
    ep, etp       all_to_all, all_gather  rows of tokens, their counts m                   the pass that waits
                                          (expert_volumes.py)
    pp            send                    activations, gradients       m                   all

Experts are units of FSDP by themselves, over `efsdp`; their replicas sum over `expert`, not `gradient`.

m: micro-batches. Bytes: all-reduce the tensor; all-gather its output; reduce-scatter its input; all-to-all and send
what is sent. Control traffic (loss and norm, some scalars) is left out. Every number is one rank's, or a column of
many: the planner fills `Rank` from sums over regions of the model, for all rows of a table at once.

    cp kind      forward, and what runs again      backward
    ring         c-1 messages of keys and values   c-1 of them, c-1 of gradients    Liu et al. 2023 §3
    allgather    a gather of all ranks'            a gather, a reduce-scatter       Dubey et al. 2024 §3.3.2
    ulysses      two all-to-alls of heads          two all-to-alls                  Jacobs et al. 2023 §3
                 (in latent attention three: values by themselves)

A ring's message is an all-to-all in which each rank sends to one; papers count it in keys and values alone, whatever
the query heads are. Ulysses moves q, k, v and the output: 4 / c of a rank's tokens with as many key-value heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from scalewright.spec.diloco import BLOCK
from scalewright.spec.layout import Layout
from scalewright.spec.memory import FP32, offloads_activations
from scalewright.spec.model import ModelSpec

Number = Any  # an int, a float, or an array of them
Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]
During = Literal["forward", "recompute", "backward", "all", "nothing"]
Phases = tuple[tuple[During, Number], ...]  # how often something happens in each

BUCKET_BYTES = 25 * 2**20  # torch DDP's default: large enough for bandwidth, small enough to overlap
SUMMED_ALONE = 2**20  # bytes of a partial gradient: copying more costs more than another call
COUNT = 8  # bytes of a number of tokens: int64


@dataclass(frozen=True)
class Transfer:
    """One collective: bytes per call, calls per step, and what it overlaps with in `rounds` micro-batches."""

    axis: str
    kind: Collective
    bytes: Number
    calls: Number
    during: During
    rounds: Number = 1

    @property
    def total(self) -> Number:
        """Bytes of a step."""
        return self.bytes * self.calls


@dataclass(frozen=True)
class Group:
    """FSDP units of one kind: blocks, a head, or a stage's root (all other tensors)."""

    elements: Number  # padded to a multiple of the ranks, each tensor in its rows
    count: Number
    computations: Number = 0  # forwards and backwards of their stage in a step, parts of split ones counted
    stays: bool = False  # gathered from forward to backward: head and root
    root: bool = False
    both_ends: Number = False  # an embedding that another stage of this rank uses, too


@dataclass(frozen=True)
class Shards:
    """Tensors that the same ranks share: experts, which fewer share, or the others."""

    ranks: Number = 1  # of FSDP, that share a tensor
    groups: tuple[Group, ...] = ()
    buckets: tuple[tuple[Collective, Number, Number], ...] = ()  # of unsharded gradients: bytes, how many


@dataclass(frozen=True)
class SparseBlocks:
    """Those of a rank's blocks that have experts in place of an MLP."""

    blocks: Number = 0
    rerun: Number = 0  # of these, whose forward runs again
    experts: Number = 0  # of a block, on all ranks
    shared: Number = 0  # whether there are shared experts, which are cut as an MLP is
    exit_again: Number = 0  # whether their end runs again, with the forward
    gather_again: Number = 0  # without sp: whether the gather of all ranks' routed tokens does


@dataclass(frozen=True)
class Exchanges:
    """The numbers of a rank's blocks that tensor parallelism needs."""

    sp: Number
    blocks: Number
    rerun: Number  # blocks whose forward runs again
    regathers: Number  # whether inputs are gathered again in the backward, without recomputation
    norm_follows: Number  # whether a norm follows a row-parallel layer, inside the block
    statistics: Number  # numbers a token that a norm over all heads sums
    latents: tuple[Number, Number]  # numbers a token that enter latent attention: for queries, for keys
    first: Number  # lookups of the embedding: the first stage's, and those of prediction modules in the last
    last: Number  # heads: in the last stage one, and one more for each prediction module
    loss_chunks: Number  # of a micro-batch: spec/loss_chunks.py
    sparse: SparseBlocks = SparseBlocks()


@dataclass(frozen=True)
class Rank:
    """One rank's numbers of weights and gradients; scalars or columns."""

    zero_stage: Number
    pp: Number
    accumulation: Number
    fsdp: Number  # ranks that share a tensor
    replicas: Number  # of shards
    sharded: Number  # whether parameters are FSDP's
    width: Number  # bytes of a gathered parameter
    groups: tuple[Group, ...]
    buckets: tuple[tuple[Collective, Number, Number], ...]  # of unsharded gradients: bytes, how many
    partial: tuple[tuple[str, Number, Number], ...]  # axis, bytes, how many
    experts: Shards = Shards()


@dataclass(frozen=True)
class Activations:
    """One rank's numbers of what its micro-batches send; scalars or columns."""

    tp: Number
    accumulation: Number
    exchanges: Exchanges
    width: Number  # bytes of an activation
    stream: Number  # bytes of the residual stream of a micro-batch, [B, T, D]
    tokens: Number  # of a micro-batch, [B, T]
    message: Number  # bytes of an activation that goes to another pipeline rank
    borders: Number  # of its stages with other ranks' stages


def data_parallel(rank: Rank) -> Iterator[Transfer]:
    """Gradients of replicas; or FSDP's gathers and reductions, and the sums between replicas of shards."""
    dense, experts = Shards(rank.fsdp, rank.groups, rank.buckets), rank.experts
    for shards, replicas, sharing in ((dense, "gradient", "fsdp"), (experts, "expert", "efsdp")):
        for kind, size, count in shards.buckets:
            yield Transfer(replicas, kind, size, count, "backward")
        for group in shards.groups:
            yield from _sharded(rank, group, sharing, shards.ranks)


def _sharded(rank: Rank, group: Group, axis: str, ranks: Number) -> Iterator[Transfer]:
    """The gathers and reductions of FSDP groups of one kind, over an axis of so many ranks."""
    m, three = rank.accumulation, rank.zero_stage == 3
    count, shared = group.count * rank.sharded, ranks > 1
    if group.stays:  # kept until the backward, in a pipeline to the step's end
        gathers = shared * count * np.where(three & (rank.pp == 1), m, 1)
    else:  # ZeRO-3 frees a block after every forward and backward, and after each part of one that is split
        gathers = shared * count * np.where(three, group.computations, 1)
    rounds = np.where((rank.zero_stage == 1) | (group.both_ends & (rank.pp > 1)), 1, m)
    reductions = shared * count * rounds
    weights, gradients = group.elements * rank.width, group.elements * FP32
    if group.root:
        yield Transfer(axis, "all_gather", weights, gathers, "nothing")
        yield Transfer(axis, "reduce_scatter", gradients, reductions, "nothing")
    else:
        yield Transfer(axis, "all_gather", weights, gathers * (1 - three), "forward")
        yield Transfer(axis, "all_gather", weights, gathers * three, "all", m)
        yield Transfer(axis, "reduce_scatter", gradients, reductions * (1 - three), "backward", rounds)
        yield Transfer(axis, "reduce_scatter", gradients, reductions * three, "all", m)
    part = group.elements // ranks * FP32
    yield Transfer("dp_replicate", "all_reduce", part, count * (rank.replicas > 1), "nothing")


def outer_steps(
    numbers: Number, islands: Number, inner_steps: Number, wire_bytes: Number, narrow: Number
) -> Iterator[Transfer]:
    """One fragment of `numbers` (a rank's own) of islands that meet every `inner_steps` steps: a step's share.

    Replicas that are islands have nothing of `data_parallel` over dp_replicate.
    """
    padded = -(-numbers // (islands * BLOCK)) * islands * BLOCK  # parallel/wire.py: whole blocks of a chunk
    share = (islands > 1) * (numbers > 0) / inner_steps
    yield Transfer("islands", "all_reduce", numbers * FP32, share * (1 - narrow), "nothing")
    yield Transfer("islands", "all_to_all", padded * wire_bytes, share * narrow, "nothing")
    yield Transfer("islands", "all_gather", padded * wire_bytes, share * narrow, "nothing")


def tensor_parallel(rank: Activations) -> Iterator[Transfer]:
    """Activations of every micro-batch (Shoeybi et al. 2019 §3; Korthikanti et al. 2022 §4.2).

    Each block has two entries into column-parallel layers and two exits out of row-parallel ones (one
    of each, where it has experts and none is shared); the embedding ends in an exit, the head begins with an
    entry. With sp an entry gathers the tokens (its gradient is scattered), an exit scatters them; without,
    an exit sums, and an entry's gradient. Latent attention has two entries in place of one, of small vectors.
    """
    e, plain = rank.exchanges, 1 - (rank.exchanges.latents[1] > 0)
    n, rerun, sparse = e.blocks, e.rerun, e.sparse
    without = 1 - sparse.shared  # blocks of experts alone have no MLP that is entered and left
    mlps, mlps_rerun = n - sparse.blocks * without, rerun - sparse.rerun * without
    # recomputation stops at the last tensor that the backward needs: the input of the MLP's row layer
    ends_rerun = e.norm_follows * (rerun - sparse.rerun) + sparse.exit_again * sparse.shared * sparse.rerun
    gathers: Phases = (
        ("forward", plain * n + mlps + e.last),
        ("recompute", plain * rerun + mlps_rerun),
        ("backward", n + mlps + e.first + (plain * (n - rerun) + mlps - mlps_rerun) * e.regathers),
    )
    sums: Phases = (  # scatters, with sp
        ("forward", n + mlps + e.first),
        ("recompute", rerun + ends_rerun),
        ("backward", plain * n + mlps + e.last),
    )
    yield from _over_tp(rank, "all_gather", rank.stream, e.sp, gathers)
    yield from _over_tp(rank, "reduce_scatter", rank.stream, e.sp, sums)
    yield from _over_tp(rank, "all_reduce", rank.stream, 1 - e.sp, sums)
    yield from _latents(rank)
    yield from _routers(rank)
    loss = rank.tp * 2 * rank.tokens * FP32 / e.loss_chunks
    yield from _over_tp(rank, "all_gather", loss, e.loss_chunks, (("forward", e.last),))
    norms: Phases = (("forward", n), ("recompute", rerun), ("backward", n))  # of q and of k
    yield from _over_tp(rank, "all_reduce", rank.tokens * FP32, 2 * e.statistics, norms)


def _over_tp(rank: Activations, kind: Collective, size: Number, calls: Number, phases: Phases) -> Iterator[Transfer]:
    """So many calls in every micro-batch, times those of each phase; nothing where there are none."""
    m = rank.accumulation
    each = m * calls * (rank.tp > 1)
    for during, times in phases if np.any(each) else ():
        yield Transfer("tp", kind, size, times * each, during, m)


def _routers(rank: Activations) -> Iterator[Transfer]:
    """Without sp each rank routes its part of the tokens, and gathers all of them; with it it has no others.

    Once a step the tokens of every expert are summed, for the report and the biases (train/balance.py).
    """
    sparse, without_sp = rank.exchanges.sparse, 1 - rank.exchanges.sp
    if not np.any(sparse.blocks):
        return
    gathers: Phases = (("forward", sparse.blocks), ("recompute", sparse.rerun * sparse.gather_again))
    yield from _over_tp(rank, "all_gather", rank.stream, without_sp, gathers)
    yield from _over_tp(rank, "all_reduce", rank.stream, without_sp, (("backward", sparse.blocks),))
    loads = COUNT * sparse.experts * sparse.blocks
    yield Transfer("tp", "all_reduce", loads, (rank.tp > 1) * (sparse.blocks > 0), "nothing")


def _latents(rank: Activations) -> Iterator[Transfer]:
    """What enters latent attention (parallel/tensor.py); only the queries' is gathered again."""
    e = rank.exchanges
    for numbers, again in zip(e.latents, (e.regathers, 0), strict=True):
        if not np.any(numbers):
            continue
        sp, without, size = (numbers > 0) * e.sp, (numbers > 0) * (1 - e.sp), rank.tokens * rank.width * numbers
        gathers: Phases = (("forward", e.blocks), ("recompute", e.rerun), ("backward", (e.blocks - e.rerun) * again))
        yield from _over_tp(rank, "all_gather", size, sp, gathers)
        yield from _over_tp(rank, "reduce_scatter", size, sp, (("backward", e.blocks),))
        yield from _over_tp(rank, "all_reduce", size, without, (("backward", e.blocks),))


def latent_numbers(model: ModelSpec) -> tuple[int, int]:
    """Numbers a token that enter latent attention's parts of heads, for queries and for keys; else 0."""
    if (mla := model.mla) is None:
        return 0, 0
    return mla.q_lora_rank or model.hidden_size, mla.kv_lora_rank + mla.qk_rope_head_dim


def regathers(layout: Layout) -> bool:
    """Whether a block keeps only its part of the tokens, and gathers them again in the backward.

    Korthikanti et al. 2022 §4.2.2. Recomputation gathers again anyway; offload saves them on the host.
    """
    return layout.sp and layout.recompute == "none" and not offloads_activations(layout)


def partial_sums(rank: Rank) -> Iterator[Transfer]:
    """Sums of partial gradients: of tensors that tp ranks hold copies of, and of an embedding's ends."""
    for axis, size, count in rank.partial:
        yield Transfer(axis, "all_reduce", size, count, "nothing")


def messages(rank: Activations) -> Transfer:
    """Pipeline messages: over every border of a rank's stages, activations up and gradients down."""
    m = rank.accumulation
    return Transfer("pp", "send", rank.message, rank.borders * m, "all", m)


@dataclass(frozen=True)
class ContextRank:
    """One rank's numbers; scalars or columns. Bytes are of a micro-batch and a block."""

    cp: Number
    ring: Number  # which kind it is: 1 or 0
    allgather: Number
    ulysses: Number
    blocks: Number
    rerun: Number  # blocks whose forward runs again
    accumulation: Number
    key_value: Number  # keys and values of this rank's tokens
    apart: Number  # of these, values of another width than keys: Ulysses sends them by themselves
    query: Number  # its queries
    output: Number  # what it attended to
    repeats: Number  # of key-value heads, before Ulysses cuts them: `repeats`


def repeats(query_heads: Number, key_value_heads: Number, cp: Number) -> Number:
    """How often Ulysses repeats a rank's key-value heads, so that cp divides them: to cp, or to all."""
    fewer = np.where(np.mod(cp, key_value_heads) == 0, cp, query_heads) / key_value_heads
    return np.where(np.mod(key_value_heads, cp) == 0, 1, fewer)


def context_parallel(rank: ContextRank) -> Iterator[Transfer]:
    """Keys and values, or heads, of all micro-batches."""
    m, n, on = rank.accumulation, rank.blocks, rank.cp > 1
    phases: Phases = (("forward", n), ("recompute", rank.rerun), ("backward", n))
    for during, times in phases:
        calls = times * m * on
        ring = calls * (rank.cp - 1) * rank.ring
        both = 2 if during == "backward" else 1
        yield Transfer("cp", "all_to_all", rank.key_value, ring * both, during, m)
        whole = rank.key_value * rank.cp
        yield Transfer("cp", "all_gather", whole, calls * rank.allgather, during, m)
        if during == "backward":
            yield Transfer("cp", "reduce_scatter", whole, calls * rank.allgather, during, m)
        heads = rank.query + rank.repeats * (rank.key_value - rank.apart)
        yield Transfer("cp", "all_to_all", heads, calls * rank.ulysses, during, m)
        values = rank.repeats * rank.apart
        yield Transfer("cp", "all_to_all", values, calls * rank.ulysses * (rank.apart > 0), during, m)
        yield Transfer("cp", "all_to_all", rank.output, calls * rank.ulysses, during, m)

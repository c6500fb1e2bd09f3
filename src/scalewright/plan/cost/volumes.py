"""What a pipeline rank of every row sends in a step, as transfers (spec/volumes.py).

    this package's own     the spec's list, from a rank's sums over regions of the model
    trainers in general    usual_volumes.py; tokens on their way to experts: exchange.py

A row has no calls in the other kind's list.

Bytes by axis, as users and the trainer's dry run count them:

    dp   gradients, and parameters where they are sharded (dp_shard and dp_replicate); a step's share of
         islands' outer steps
    tp   activations; of experts too (etp)       cp   keys and values       ep   routed tokens, there and back
    pp   activations and their gradients, each boundary, way and micro-batch; the sum of a tied head's ends

An all-reduce counts its tensor, an all-gather its output, a reduce-scatter its input, a send what is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from itertools import chain

import numpy as np

from scalewright.plan.cost import usual_volumes
from scalewright.plan.cost.columns import Columns, PipelineRank, places
from scalewright.plan.cost.exchange import beside_experts, context_rank, expert_bytes, expert_rank
from scalewright.plan.cost.habits import COMPRESSED
from scalewright.plan.cost.links import message_bytes
from scalewright.plan.cost.padded import TIED
from scalewright.plan.cost.states import shrunk
from scalewright.plan.cost.table import RECOMPUTE
from scalewright.plan.cost.work import AFTER, BEFORE, BLOCK, EXTRA
from scalewright.spec import volumes
from scalewright.spec.compress import half_bytes
from scalewright.spec.expert_volumes import expert_parallel
from scalewright.spec.loss_chunks import chunk_tokens
from scalewright.spec.memory import FP32
from scalewright.spec.volumes import Activations, Collective, Exchanges, Group, Rank, Shards, SparseBlocks, Transfer

Listing = Callable[[], Iterable[Transfer]]
Message = tuple[Collective, np.ndarray, np.ndarray]  # kind, bytes, calls
Compressed = Callable[[], Iterable[np.ndarray]]  # numbers that PowerSGD shrinks, those of P, those of Q


class Volumes:
    """The transfers of any pipeline rank of a table's rows."""

    def __init__(self, at: Columns) -> None:
        self.at, t = at, at.table
        trained = (t.pp == 1) | t.schedules("trained")
        heads = at.region(at.facts.works.expert, EXTRA) > 0  # of experts in prediction heads nothing is counted
        # of this package's own trainer what it can't run yet is an estimate by its habits
        self.own = np.asarray(at.own & trained & ~heads)
        self.all_own, self.any_own = bool(self.own.all()), bool(self.own.any())
        self._held: dict[int, tuple[PipelineRank, Activations]] = {}

    def data_parallel(self, place: PipelineRank) -> list[Transfer]:
        """Gradients and parameters, and the sums of gradients that other axes wait for."""

        def own() -> Iterator[Transfer]:
            rank = self._weights(place.with_predictions(self.at.work.mtp))
            numbers = sum(group.elements * group.count for group in rank.groups) / rank.fsdp
            yield from (*volumes.data_parallel(rank), *volumes.partial_sums(rank), *self._outer(np.asarray(numbers)))

        return self._listed(own, lambda: self._usual_data_parallel)

    def tensor_parallel(self, place: PipelineRank) -> list[Transfer]:
        """Activations of all micro-batches."""
        if not (self.at.table.tp > 1).any():
            return []
        return self._listed(
            lambda: volumes.tensor_parallel(self._activations(place)),
            lambda: usual_volumes.tensor_parallel(self.at, place),
        )

    def pipeline(self, place: PipelineRank) -> list[Transfer]:
        """Messages to other pipeline ranks."""
        if not (self.at.table.pp > 1).any():
            return []
        return self._listed(
            lambda: [volumes.messages(self._activations(place))], lambda: usual_volumes.pipeline(self.at, place)
        )

    def _listed(self, own: Listing, usual: Listing) -> list[Transfer]:
        """This package's own list in its rows, and the one of trainers in general in the others."""
        transfers = _only(self.own, own()) if self.any_own else []
        return transfers if self.all_own else transfers + _only(~self.own, usual())

    def context_parallel(self, place: PipelineRank) -> list[Transfer]:
        """Keys and values, or heads, of all micro-batches; the papers' for every trainer."""
        if not (self.at.table.cp > 1).any():
            return []
        blocks = self._exchanges(place.with_predictions(self.at.work.mtp))
        return list(volumes.context_parallel(context_rank(self.at, blocks.blocks, blocks.rerun)))

    def expert_parallel(self, place: PipelineRank) -> list[Transfer]:
        """Tokens to their experts and back, of this package's own trainer."""
        t = self.at.table
        if not (self.any_own and (t.ep * t.etp > 1).any()):
            return []
        return _only(self.own, expert_parallel(expert_rank(self.at, self._exchanges(place).sparse)))

    # -- this package's own -----------------------------------------------------------------------

    def _activations(self, place: PipelineRank) -> Activations:
        """What a pipeline rank's micro-batches send, counted once a place."""
        if id(place) not in self._held:
            at, t = self.at, self.at.table
            counted = Activations(
                tp=t.tp,
                accumulation=t.accumulation,
                exchanges=self._exchanges(place.with_predictions(at.work.mtp)),
                width=at.trainer.weight_bytes,
                stream=at.work.stream,
                tokens=t.micro_batch * t.seq_len / t.cp,
                message=message_bytes(at),
                borders=usual_volumes.borders(at, place),
            )
            self._held[id(place)] = place, counted
        return self._held[id(place)][1]

    def _weights(self, place: PipelineRank) -> Rank:
        """The weights and gradients of a pipeline rank."""
        at, t = self.at, self.at.table
        padded, groups = at.padded, self._groups(place)
        whole = sum(group.elements * group.count for group in groups)
        plain = np.where(~padded.sharded & (at.summing > 1), FP32 * whole, 0.0)

        def compressed() -> Iterator[np.ndarray]:
            for sums in (padded.regions.shrunk, padded.regions.sent_p, padded.regions.sent_q):
                yield shrunk(at, place, sums, at.work.mtp)

        return Rank(
            **{name: getattr(t, name) for name in ("zero_stage", "pp", "accumulation")},
            fsdp=padded.ranks,
            replicas=np.where(at.islands, 1.0, t.dp_replicate),
            sharded=padded.sharded.astype(float),
            width=at.trainer.weight_bytes,
            groups=groups,
            buckets=self._messages(plain, at.summing, compressed),
            partial=tuple(self._partial(place)),
            experts=self._experts(place),
        )

    def _messages(self, plain: np.ndarray, ranks: np.ndarray, compressed: Compressed) -> tuple[Message, ...]:
        """Messages of `ranks` replicas' gradients, `plain` bytes in fp32, as they are sent (spec/compress.py)."""
        kind = self.at.trainer.compress
        count = np.maximum(np.ceil(plain / volumes.BUCKET_BYTES), 1.0)
        sent = np.where(plain > 0, count, 0.0)
        whole: Message = ("all_reduce", plain / count, sent * (kind == COMPRESSED.index("none")))
        if not kind.any():
            return (whole,)
        fp16, powers = kind == COMPRESSED.index("fp16"), kind == COMPRESSED.index("powersgd")
        half = half_bytes(plain / FP32 / count, ranks, fp16)
        narrow = sent * (fp16 | (kind == COMPRESSED.index("bf16")))
        numbers, p, q = compressed()
        first = np.maximum(plain - FP32 * (numbers - p), 0.0)
        return (
            whole,
            ("all_to_all", half, narrow),
            ("all_gather", half, narrow),
            ("all_reduce", first / count, sent * powers),
            ("all_reduce", FP32 * q / count, sent * powers * (q > 0)),
        )

    def _outer(self, numbers: np.ndarray) -> list[Transfer]:
        """What joins islands: a rank's own numbers, in fragments as good as alike."""
        if not self.at.islands.any():
            return []
        at, trainer, fragments = self.at, self.at.trainer, self.at.trainer.fragments
        sizes = np.ceil(numbers / fragments), at.table.dp_replicate, np.maximum(trainer.inner_steps, 1.0)
        steps = volumes.outer_steps(*sizes, trainer.wire_bytes, trainer.narrow_wire)
        return [replace(x, calls=np.where(at.islands, x.calls * fragments, 0.0)) for x in steps]

    def _experts(self, place: PipelineRank) -> Shards:
        """Experts of an average block: a unit of FSDP, or a part of the gradients that their replicas sum."""
        if not self.at.work.sparse.any():
            return Shards()
        t, padded, experts = self.at.table, self.at.padded, self.at.padded.experts
        elements = np.rint(experts.elements / np.maximum(self.at.work.sparse, 1e-9))  # all blocks of experts are alike
        share = place.blocks * self.at.work.sparse
        group = Group(elements, share, self._computations(place))
        replicas = np.maximum(t.dp * t.cp * t.tp / (t.ep * t.etp), 1.0)
        plain = np.where(~padded.sharded & (replicas > 1), FP32 * elements * share, 0.0)

        def compressed() -> Iterator[np.ndarray]:
            yield from (place.blocks * sums for sums in (experts.shrunk, experts.sent_p, experts.sent_q))

        return Shards(padded.expert_ranks, (group,), self._messages(plain, replicas, compressed))

    def _computations(self, place: PipelineRank) -> np.ndarray:
        """Forwards and backwards of a stage in a step, parts of split ones counted."""
        t = self.at.table
        # DualPipeV splits 2 p - 1 - r of the backwards of rank r, over both of its stages
        halves = np.where(t.schedules("paired"), (2 * t.pp - 1 - place.rank) / 2, 0.0)
        return np.where(t.schedules("split_all"), 3 * t.accumulation, 2 * t.accumulation + halves)

    def _groups(self, place: PipelineRank) -> tuple[Group, ...]:
        """Blocks, and what is held outside of them: a root at either end of a pipeline; otherwise a root and
        a head, or one root where they are tied, or prediction modules use both."""
        t, tied = self.at.table, self.at.work.tied > 0
        elements = self.at.padded.regions.elements
        start, end = self._roots(place, elements)
        both, head = np.where((t.pp == 1) & tied, end, 0.0), np.where((t.pp == 1) & ~tied, end, 0.0)
        apart = end - both - head
        both_ends = tied & t.schedules("folded")
        return (
            Group(elements[BLOCK], place.blocks, self._computations(place)),
            Group(head, 1.0 * (head > 0), stays=True),
            Group(start + both, 1.0 * (start + both > 0), stays=True, root=True, both_ends=both_ends),
            Group(apart, 1.0 * (apart > 0), stays=True, root=True),
        )

    def _roots(self, place: PipelineRank, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What a rank's stages hold outside of blocks: at the model's start, at its end."""
        first, last = place.first > 0, place.last > 0
        apart = last & ~first & (self.at.work.tied > 0)
        start = first * sums[BEFORE]
        # a prediction module less its block, which is a unit as all blocks are
        modules = sums[EXTRA] - self.at.work.mtp * sums[BLOCK]
        return start, last * (sums[AFTER] + modules) + apart * sums[TIED]

    def _partial(self, place: PipelineRank) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """The rank's own fp32 parts of what tp ranks hold alike, and of a tied head's two ends."""
        t, padded = self.at.table, self.at.padded
        for axis, sums in (("tp", padded.regions.sum_tp), ("kv", padded.regions.sum_kv)):
            start, end = self._roots(place, sums)
            part = FP32 * (place.blocks * sums[BLOCK] + start + end) / padded.ranks
            yield axis, part, 1.0 * (t.tp > 1) * (part > 0)
        if (t.etp > 1).any():
            part = FP32 * place.blocks * padded.experts.sum_tp / padded.expert_ranks
            yield "etp", part, 1.0 * (part > 0)
        ends = (t.pp > 1) & ~t.schedules("folded") & ((place.first > 0) | (place.last > 0))
        part = FP32 * padded.regions.elements[TIED] / padded.ranks
        yield "tie", part, 1.0 * ends * (self.at.work.tied > 0) * (part > 0)

    def _exchanges(self, place: PipelineRank) -> Exchanges:
        at, t, n = self.at, self.at.table, place.blocks
        stages, tokens = np.maximum(t.virtual_stages, 1.0), t.micro_batch * t.seq_len / t.cp
        none = t.recompute == RECOMPUTE.index("none")
        some = stages * np.ceil(n / stages * t.share - 1e-9)  # every k-th of a stage; under a budget all
        again = np.where(t.recompute == RECOMPUTE.index("share"), some, n)
        return Exchanges(
            sp=1.0 * (t.sp > 0),
            blocks=n,
            rerun=np.where(none, 0.0, again),
            regathers=1.0 * (none & ~t.offloads("activations")),
            norm_follows=at.work.post_norm,
            statistics=at.work.statistics,
            latents=(at.work.query_latent, at.work.latent),
            first=1.0 * (place.first > 0) + at.work.mtp * (place.last > 0),
            last=(1.0 + at.work.mtp) * (place.last > 0),
            loss_chunks=np.ceil(tokens / chunk_tokens(at.work.logits / tokens)),
            sparse=self._sparse(n, np.where(none, 0.0, again)),
        )

    def _sparse(self, blocks: np.ndarray, rerun: np.ndarray) -> SparseBlocks:
        """Of so many average blocks, the part that has experts."""
        works, beside = self.at.work, beside_experts(self.at)
        return SparseBlocks(
            blocks=blocks * works.sparse,
            rerun=rerun * works.sparse,
            experts=works.experts,
            shared=works.shared_experts,
            # what comes last in the block isn't needed again: shared experts, or the routed tokens
            exit_again=np.maximum(np.maximum(works.post_norm, beside), works.shared_gate),
            gather_again=np.maximum(works.post_norm, works.shared_experts * (1 - beside)),
        )

    # -- trainers in general ----------------------------------------------------------------------

    @cached_property
    def _usual_data_parallel(self) -> list[Transfer]:
        """Of the fullest rank, whichever is asked for."""
        return [*usual_volumes.data_parallel(self.at), *self._outer(usual_volumes.numbers(self.at))]


def _only(rows: np.ndarray, transfers: Iterable[Transfer]) -> list[Transfer]:
    if rows.all():
        return list(transfers)
    return [replace(x, calls=np.where(rows, x.calls, 0.0)) for x in transfers]


AXES = ("tp", "dp", "cp", "ep", "pp")
# Axes of transfers (spec/volumes.py) -> what users call them
_AXIS = {
    **dict.fromkeys(("gradient", "fsdp", "expert", "efsdp", "dp_replicate", "islands"), "dp"),
    **dict.fromkeys(("kv", "etp"), "tp"),
    "tie": "pp",
}


def bytes_by_axis(at: Columns) -> dict[str, np.ndarray]:
    """Of the busiest pipeline rank on each axis."""
    between, first, last = places(at.table)
    second = replace(between, rank=np.minimum(1.0, at.table.pp - 1), blocks=at.table.stages[:, 3])
    listed, inner = Volumes(at), at.table.pp > 2
    ranks: list[tuple[PipelineRank, np.ndarray | bool]]
    ranks = [(between, inner), (second, inner), (first, True), (last, True)]
    beside = (listed.context_parallel, listed.expert_parallel, listed.pipeline)
    kinds = (listed.data_parallel, listed.tensor_parallel, *beside)
    sizes = {axis: np.zeros(len(at.table)) for axis in AXES}
    for place, there in ranks:
        sent = {axis: np.zeros(len(at.table)) for axis in AXES}
        for transfer in chain.from_iterable(listing(place) for listing in kinds):
            axis = _AXIS.get(transfer.axis, transfer.axis)
            sent[axis] = sent[axis] + np.asarray(transfer.total, dtype=float)
        sizes = {axis: np.maximum(sizes[axis], np.where(there, sent[axis], 0.0)) for axis in AXES}
    blocks, whole = at.fullest * at.table.accumulation, at.rerun
    sizes["ep"] = np.where(listed.own, sizes["ep"], blocks * (2 + whole) * expert_bytes(at))
    return sizes

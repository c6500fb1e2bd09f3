"""Bytes that this package's own trainer holds on a pipeline rank, at the moments when they may be highest.

    moment     activations                       beside the states
    loss       all under way, a chunk in fp32    what is gathered, gradients not yet reduced
    head       all under way                     the same; gradients of the head and its input (or in `loss`)
    weights    all under way; a V: fewer         the same; ZeRO-3: a stage; gradients of outputs that wait
    block      all under way, one block rebuilt  the same; the block's weights and its neighbour's; once more
                                                 a block later, while the first is reduced
    last       one block's                       ZeRO-3: root and block; all other gradients, reduced
    reduce     all but one block's               the same; the block's gradients, and the copy that is sent;
                                                 before the blocks, those of a head that is a unit of its own
    root       all but one micro-batch's         the same of the root; ZeRO-1: beside its sum
    shared     none, or of predictions: most     gradients of a weight that is used twice, and their sum
    gather     the next micro-batch's input      ZeRO-3: root and block gathered, the last reduction's input
    update     none                              all gradients; what the optimizer makes and frees (Lion)
    outer      none                              all gradients; a fragment's outer gradient (DiLoCo)

FSDP2 gathers into one flat tensor and copies parameters out of it, copies gradients into one fp32 tensor that is
reduced, and keeps that until the next reduction starts. ZeRO-1 sums gradients whole, in fp32, over the micro-batches. A
split backward keeps all activations until its weight part, and the gradients of outputs that its input part made. The
dry run plays the program itself: tests/plan/cost/test_own_memory.py compares. Of experts, which are units by
themselves, and of dualpipe, which is only planned, this is an estimate.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from scalewright.plan.cost.activations import Kept
from scalewright.plan.cost.columns import Columns, PipelineRank
from scalewright.plan.cost.padded import TIED
from scalewright.plan.cost.states import States
from scalewright.plan.cost.work import AFTER, BEFORE, BLOCK, EXTRA
from scalewright.plan.request import SCHEDULES
from scalewright.spec.loss_chunks import LOGITS_AT_ONCE, head_tokens
from scalewright.spec.memory import FP32

GPIPE = SCHEDULES.index("gpipe")


@dataclass(frozen=True)
class Moment:
    """Bytes beside parameters and optimizer states, a number a row."""

    activations: np.ndarray
    buffers: np.ndarray
    gradients: np.ndarray
    other: np.ndarray

    @property
    def total(self) -> np.ndarray:
        """Their sum."""
        return np.asarray(self.activations + self.buffers + self.gradients + self.other)


def own_memory(
    at: Columns, place: PipelineRank, held: States, kept: Kept, alive: np.ndarray, few: bool
) -> dict[str, np.ndarray]:
    """Bytes by kind at the highest moment, or of a `few` that are often the highest: they are at least so many.

    `alive`: micro-batches under way on the rank.
    """
    moments = with_outer(at, held, own_moments(at, place, held, kept, alive, few))
    highest = np.stack([moment.total for moment in moments]).argmax(0)
    kinds = [kind.name for kind in fields(Moment)]
    beside = {kind: np.choose(highest, [getattr(moment, kind) for moment in moments]) for kind in kinds}
    beside["buffers"] = beside["buffers"] + held.errors
    return {"parameters": held.parameters, "optimizer": held.optimizer, **beside}


def own_moments(
    at: Columns, place: PipelineRank, held: States, kept: Kept, alive: np.ndarray, few: bool = False
) -> tuple[Moment, ...]:
    """The moments of a step when a rank may hold the most."""
    rank = _Rank(at, place, held, kept, alive)
    block = rank.backward_of_block()
    if few:
        return block, rank.loss()
    moments = [rank.loss(), rank.backward_of_head(), rank.reduction_of_head()]
    moments += [rank.weight_parts()] if rank.split.any() else []
    moments += [block, rank.backward_of_next_block(block), rank.reduction_of_block()]
    moments += [rank.backward_of_last_block(), rank.reduction_of_last_block()]
    moments += [rank.reduction_of_root(sent=False), rank.reduction_of_root(sent=True), rank.sum_of_root()]
    moments += [rank.sum_of_shared()] if rank.shared.any() else []
    return (*moments, rank.gather(), *([rank.update()] if rank.scratch.any() else []))


def with_outer(at: Columns, held: States, moments: tuple[Moment, ...]) -> tuple[Moment, ...]:
    """The moments of a rank of an island: an outer step's own beside them, and what overlapped ones add.

    train/diloco.py: a fragment's difference to the outer weights, in fp32. Where less than fp32 travels,
    `Mean` (parallel/wire.py) has a padded sum, its packed form, and that unpacked, beside it.
    """
    trainer, there = at.trainer, at.islands
    if not there.any():
        return moments
    narrow, wire = trainer.narrow_wire, trainer.wire_bytes
    part = np.where(there, held.gradients / FP32 / trainer.fragments, 0.0)  # numbers: gradients are fp32
    made = narrow * part * (2 * FP32 + 2 * wire)
    way = trainer.outer_under_way * part * (FP32 + narrow * 2 * wire)
    outer = Moment(np.zeros(len(part)), part * FP32 + narrow * part * wire, held.gradients * there, made)
    return (*(replace(moment, buffers=moment.buffers + way) for moment in moments), outer)


class _Rank:
    """Sizes of one pipeline rank of every row, and its moments."""

    def __init__(self, at: Columns, place: PipelineRank, held: States, kept: Kept, alive: np.ndarray) -> None:
        works, t = at.work, at.table
        self.t, self.kept, self.alive, self.shard_gradients = t, kept, alive, held.gradients
        self.ranks = at.padded.ranks
        here = held.optimizer > 0  # the update of offloaded states is the host's
        self.scratch = here * held.scratch
        self.stage = np.where(at.padded.sharded, t.zero_stage, 0)  # 0: whole replicas
        self.piped = t.pp > 1
        self.split, self.split_all, self.rank = t.schedules("splits"), t.schedules("split_all"), place.rank
        self.virtual_stages = np.maximum(t.virtual_stages, 1.0)
        self.several = t.accumulation > np.where(self.piped, alive, 1.0)  # earlier ones have left gradients
        self.width = np.where(at.trainer.copies > 0, 2.0, FP32)  # bytes of a number in compute
        # elements, padded as FSDP cuts them: of all blocks, and of a stage's root at either end of the model
        size, last = at.padded.regions.elements, place.last > 0
        self.last, self.blocks = last, place.blocks
        self.experts = at.region(at.facts.works.expert, BLOCK)  # a unit by themselves
        self.block = size[BLOCK] + self.experts
        self.unit = np.where(self.experts > 0, size[BLOCK], self.block)  # the block's own
        self.start = (place.first > 0) * size[BEFORE]
        apart = last & (place.first == 0) & (works.tied > 0)
        self.tied = (works.tied_head > 0) & (t.pp == 1)
        # prediction modules: their blocks are among the last rank's, the rest in its root
        self.modules = modules = works.mtp
        self.shared = self.tied | (last & (modules > 0))  # a weight is used twice
        extra = size[EXTRA] + at.region(at.facts.works.expert, EXTRA) - modules * self.block
        extra = np.where(modules > 0, np.maximum(extra, 0.0), 0.0)
        self.end = last * (size[AFTER] + extra) + apart * size[TIED]
        self.last_made = np.where(works.beside_embedding > 0, 0.0, self.start)
        # one rank's head is a unit beside its root, unless it is tied to the embedding, or modules use it
        unit = (self.stage > 0) & (t.pp == 1) & (works.tied == 0)
        self.head_unit, end = np.where(unit, self.end, 0.0), np.where(unit, 0.0, self.end)
        self.roots, self.larger_root = self.start + end, np.maximum(self.start, end)
        self.elements = self.blocks * self.block + self.roots + self.head_unit
        # bytes of a micro-batch
        kept_extra = np.where(modules > 0, at.kept(EXTRA) - modules * at.kept(BLOCK), 0.0)
        self.after, self.stream = at.kept(AFTER) + kept_extra, works.stream
        self.widest = at.kept(BLOCK, "widest")
        self.logits = last * works.logits  # numbers
        self.in_chunks = last & (works.head_in_chunks > 0)
        # probabilities of a chunk in fp32: log_softmax makes them from an fp32 copy, a cut vocabulary from none
        chunk = np.where((self.width < FP32) & (t.tp == 1), 2.0, 1.0) * FP32
        # or the slope of the logits' cap lies beside them
        chunk = np.maximum(chunk, FP32 + works.capped * self.width) * np.minimum(self.logits, last * LOGITS_AT_ONCE)
        # a head in chunks has its chunk's logits, too, and its own input
        tokens = np.maximum(t.micro_batch * t.seq_len / t.cp, 1.0)
        columns = np.maximum(works.logits / tokens, 1.0)
        chunk_logits = columns * self.width * head_tokens(columns)
        self.chunk = chunk + self.in_chunks * (chunk_logits + self.stream)
        self.head = last * at.kept(AFTER, "weight")
        self.weight = at.kept(BLOCK, "weight")
        self.gradients_kept = np.where(works.gated > 0, 3.0, 2.0)
        each = kept.block * self.blocks
        self.under_way = alive * (each + (place.first > 0) * at.kept(BEFORE))
        self.lowest = self.under_way - alive * kept.block * np.maximum(self.blocks - 1.0, 0.0)
        # offloaded ones have left by the time that the head is done
        self.beside_head = np.where(t.offloads("activations"), 0.0, self.under_way)
        losses = np.where((t.schedule == GPIPE) & self.piped, t.accumulation, 1.0)
        self.losses = np.where(last, losses, 0.0)  # whose backward hasn't begun
        # gradients of a stage's outputs, which wait for a weight part
        self.outputs = np.where(self.split, at.kept(BLOCK, "products") * self.blocks / self.virtual_stages, 0.0)
        # the gradient of the head's weight, where the backward makes it, or rounds the forward's sum to it
        self.head_made = np.where(self.in_chunks & (self.width == FP32), 0.0, self.width * self.head)
        # other heads' lie in their place; or the sum of the head's weight is its gradient
        late = np.where(self.in_chunks, self.width * self.head - self.head_made, self.logits * self.width)
        self.late_logits = np.where(self.split, (1.0 + modules) * late, 0.0)  # of each head
        self.rounded = np.where(self.in_chunks, self.head_made, 0.0)
        # micro-batches of a stage that wait, when the most activations are alive
        waiting = np.where(t.schedules("folded"), 0.0, np.minimum(place.rank, t.accumulation))
        self.waiting = waiting * (self.outputs + np.where(self.split, self.rounded, 0.0))
        self.waiting_logits = waiting * self.late_logits
        # gathered parameters that stay for the whole pass: all in ZeRO 1 and 2, the roots in 3, a head until
        # its backward
        self.gathered = self.width * np.select([self.stage == 3, self.stage >= 1], [self.roots, self.elements], 0.0)
        freed = self.stage == 3
        self.gathered_head = np.where(freed, self.width * self.head_unit, 0.0)
        # the last block, for its backward
        self.prefetched = np.where(freed & ~self.piped, self.width * self.block, 0.0)

    @cached_property
    def reduces_each(self) -> np.ndarray:
        """Whether this backward reduces block by block: in ZeRO-1 that of the last micro-batch."""
        return np.asarray((self.stage >= 2) | ((self.stage == 1) & ~self.several))

    @cached_property
    def gathered_then(self) -> np.ndarray:
        """What is gathered once a head that is a unit is done: an only micro-batch frees one unit after another."""
        frees = (self.stage > 0) & (self.stage < 3) & ~self.several & ~self.piped
        return np.asarray(self.gathered - np.where(frees, self.width * self.head_unit, 0.0))

    @cached_property
    def reducing(self) -> np.ndarray:
        """The input of the last reduction, which earlier micro-batches left; in a V of both its stages."""
        folded = self.t.schedules("folded")
        root = np.where(self.piped & (self.start > 0) & ~folded, self.start, self.roots)
        size = np.where(self.roots > 0, root, self.block * (1.0 + folded))
        return np.where((self.stage >= 2) & self.several, FP32 * size, 0.0)

    @cached_property
    def sending(self) -> np.ndarray:
        """The input of the reduction that is under way beside the first block's backward."""
        return np.where((self.head_unit > 0) & self.reduces_each, FP32 * self.head_unit, self.reducing)

    @cached_property
    def gradients(self) -> np.ndarray:
        """The rank's own, or what ZeRO-1 sums whole until the last micro-batch; none before the first's."""
        whole = FP32 * self.elements
        replicas = (self.width < FP32) | self.several  # bf16 has its fp32 sums from the start
        mine = np.select([self.stage == 0, self.stage == 1], [replicas, False], self.several)
        return np.asarray(np.where((self.stage == 1) & self.several, whole, mine * self.shard_gradients))

    @cached_property
    def without_one(self) -> np.ndarray:
        """Activations of all but one stage's micro-batch."""
        return np.asarray((1.0 - 1.0 / np.maximum(self.alive * self.virtual_stages, 1.0)) * self.under_way)

    @cached_property
    def head_gradient(self) -> np.ndarray:
        """The head's waits for the root's reduction; its own unit sends it at once, a replica sums it.

        A tied one waits for the embedding's in any case, and so do those of prediction modules' lookups.
        """
        waits = (self.stage > 0) & ((self.head_unit == 0) | ~self.reduces_each)
        return np.asarray(self.width * self.head * np.where(self.tied, 1.0, 1.0 * waits + (self.modules > 0)))

    @cached_property
    def first_gradient(self) -> np.ndarray:
        """The rank's part of the head's gradient, which a first micro-batch has before the blocks'."""
        made = (self.head_unit > 0) & self.reduces_each & ~self.several
        return np.where(made, self.shard_gradients * self.head_unit / np.maximum(self.elements, 1.0), 0.0)

    def loss(self) -> Moment:
        """The logits, in whose place their gradient is made, and a chunk's probabilities, or the chunk's gradients."""
        acts = self.beside_head + self.waiting_logits + self.losses * self.after + self.chunk
        return Moment(acts, self.gathered + self.gathered_head + self.reducing, self.gradients, self.waiting)

    def backward_of_head(self) -> Moment:
        """Gradients of the head's weight and input are made, or scaled if the forward has made them."""
        acts = self.beside_head + self.waiting_logits + self.losses * self.after
        made = np.where(self.in_chunks, self.rounded, self.width * self.head + self.last * self.stream)
        # the last block is gathered for its backward when the logits have gone
        buffers = self.gathered + self.gathered_head + self.reducing + np.maximum(self.prefetched - self.after, 0.0)
        return Moment(acts, buffers, self.gradients, self.waiting + made)

    def reduction_of_head(self) -> Moment:
        """The gradients of a head that is a unit, their copy that is sent, and the part that comes back."""
        here = (self.head_unit > 0) & self.reduces_each
        acts = self.beside_head + np.maximum(self.losses - 1.0, 0.0) * self.after
        made = self.width * self.head_unit + self.stream
        part, sums = FP32 * self.head_unit / self.ranks, self.several  # which are there, and it is added to
        buffers = self.gathered_then + self.prefetched + FP32 * self.head_unit + np.where(sums, part, 0.0)
        return Moment(here * acts, here * buffers, here * (self.gradients + np.where(sums, 0.0, part)), here * made)

    def backward_of_block(self) -> Moment:
        """The block rebuilt; the widest gradients of its MLP, and one weight's.

        A split backward frees nothing, and keeps the gradients of all outputs of the micro-batch. Where only
        some are split, this one is whole.
        """
        acts = self.under_way + np.maximum(self.losses - 1.0, 0.0) * self.after
        acts = acts + self.kept.rebuilt - np.where(self.split_all, 0.0, self.widest)
        acts = acts + np.where(self.split_all, self.late_logits, 0.0) + self.waiting_logits
        made = self.gradients_kept * self.widest + self.width * self.weight + self.head_gradient
        made = np.where(self.split_all, self.outputs + self.head_made + self.stream, made)
        whole = self.split & ~self.split_all  # gathers the stage, as a weight part does
        blocks = np.where(whole, self.blocks / self.virtual_stages, np.minimum(self.blocks, 2.0))
        blocks = np.where(self.stage == 3, blocks, 0.0)
        # of two blocks with experts the second's are gathered when its own backward begins
        ahead = np.where(whole | (self.stage < 3), 0.0, self.experts) * np.maximum(blocks - 1.0, 0.0)
        buffers = self.gathered_then + self.sending + self.width * (self.block * blocks - ahead)
        return Moment(acts, buffers, self.gradients + self.first_gradient, self.waiting + made)

    def weight_parts(self) -> Moment:
        """The most wait for their weight part, for which ZeRO-3 gathers a stage, and a block's flat tensor.

        On a V's ranks fewer stages' micro-batches are alive then: of 2 p on rank r of zbv p + r are, and
        2 r + 1 of these wait; of dualpipev's 2 p + 1, p and r + 1.
        """
        p, r, folded = self.t.pp, self.rank, self.t.schedules("folded")
        left = np.where(self.split_all, (p + r) / (2 * p), p / (2 * p + 1))
        most = np.minimum(np.where(self.split_all, 2 * r, r), self.virtual_stages * self.t.accumulation - 1)
        made = np.where(folded, most * self.outputs, self.waiting) + self.outputs + self.head_made + self.stream
        acts = np.where(folded, left, 1.0) * self.under_way + self.late_logits + self.waiting_logits
        blocks = np.where(self.stage == 3, self.blocks / self.virtual_stages + 1.0, 0.0)
        buffers = self.gathered + self.reducing + self.width * self.block * blocks
        return Moment(self.split * acts, self.split * buffers, self.split * self.gradients, self.split * made)

    def backward_of_next_block(self, first: Moment) -> Moment:
        """The same one block later, while the reduction of the `first` is under way."""
        here = self.reduces_each & ~self.split & (self.blocks > 1)
        shard = self.shard_gradients * self.block / np.maximum(self.elements, 1.0)
        buffers = first.buffers - self.sending + FP32 * self.unit
        gradients = np.where(self.several, self.gradients, shard + self.first_gradient)
        return Moment(here * (first.activations - self.kept.last), here * buffers, here * gradients, here * first.other)

    def reduction_of_block(self) -> Moment:
        """The block's gradients whole, and their fp32 copy; in a split backward, of a stage at once."""
        late, now = self.split & (self.stage >= 2), self.reduces_each
        made = now * self.width * self.block + self.head_gradient + self.stream
        # whole backwards among them have summed theirs in fp32 by then
        each = np.where(self.t.schedules("split_all"), self.width, FP32) * self.block
        made = np.where(late, self.blocks * each + self.width * self.larger_root, made)
        sent = np.where(late, FP32 * (self.roots + self.larger_root / self.ranks), now * FP32 * self.block)
        blocks = np.where(late, self.blocks / self.virtual_stages, self.blocks > 1) * (self.stage == 3)
        buffers = self.gathered + self.width * self.block * blocks + sent
        done = np.where(late, self.blocks / self.virtual_stages * self.kept.block, self.kept.last)
        acts = self.under_way + self.waiting_logits - done
        return Moment(acts, buffers, self.gradients + self.first_gradient, self.waiting + made)

    def backward_of_last_block(self) -> Moment:
        """An only micro-batch's last: others' activations have gone, their gradients have come.

        Of ZeRO-3 the last but one, while the last one's weights come.
        """
        ahead = (self.stage == 3) & (self.blocks > 1)
        acts = self.lowest + ahead * self.kept.block + self.kept.rebuilt - self.widest
        made = self.gradients_kept * self.widest + self.width * self.weight
        buffers = self.width * (self.block + ahead * self.unit) + FP32 * self.unit
        return self._late(1.0 + ahead, acts, buffers, made)

    def reduction_of_last_block(self) -> Moment:
        """The gradients of it, or of its experts, which come first: whole, and their fp32 copy."""
        unit = np.where(self.experts > 0, self.experts, self.block)
        acts = self.lowest - self.kept.last * (self.experts == 0)
        return self._late(1.0, acts, self.width * (self.block - unit) + FP32 * unit, self.width * unit + self.stream)

    def _late(self, blocks: np.ndarray | float, acts: np.ndarray, buffers: np.ndarray, made: np.ndarray) -> Moment:
        """A moment when these blocks and the root have yet to be reduced."""
        here = self.reduces_each & ~self.several & ~self.piped
        left = (self.roots + blocks * self.block) / np.maximum(self.elements, 1.0)
        buffers = self.width * self.roots + buffers
        return Moment(here * acts, here * buffers, here * self.shard_gradients * (1.0 - left), here * made)

    def reduction_of_root(self, sent: bool) -> Moment:
        """Embedding and head, once their blocks are done; in ZeRO-1 after the last micro-batch.

        `sent`: their copy is on its way, into a sum beside it; autograd still holds the embedding's own
        gradient where the root has no other (learned positions, a norm).
        """
        copies = 1.0 + sent / self.ranks
        folded, several = self.t.schedules("folded"), self.t.accumulation > 1
        size = np.where(folded, self.larger_root, self.roots)
        left = np.where(self.stage == 1, 0.0, self.without_one)
        made = np.where((self.stage == 1) & several, FP32, self.width) * size
        if sent:
            made = np.where((self.stage == 1) & several, 0.0, self.width * self.last_made)
        made = np.where(self.stage == 0, self.width * self.larger_root + self.stream, made)
        stays = ((self.stage == 2) & several) | ((self.stage == 3) & self.piped)
        buffers = np.where(stays, self.gathered, 0.0) + np.where(self.stage > 0, FP32 * size * copies, 0.0)
        first = self.elements - np.where(self.stage > 0, self.roots, self.larger_root)
        first = first / np.maximum(self.elements, 1.0)
        first = np.where((self.stage == 0) & (self.width < FP32), 1.0, first)
        return Moment(left, buffers, self.shard_gradients * np.where(several, 1.0, first), made)

    def sum_of_root(self) -> Moment:
        """ZeRO-1 before its last micro-batch: a root's gradient beside the sums that it is added to."""
        zero_1, made = self.stage == 1, self.width * self.larger_root + self.stream
        return Moment(zero_1 * self.without_one, zero_1 * self.gathered, zero_1 * self.gradients, zero_1 * made)

    def sum_of_shared(self) -> Moment:
        """Two gradients of one weight, and their sum: the head's and the embedding's after the blocks.

        Or, with prediction modules, those of two heads; those of the modules' lookups then wait beside them.
        """
        shared, predicts = self.shared, self.last & (self.modules > 0)
        forward = self.width * self.head - self.head_made  # the forward has made this one
        acts = np.maximum(self.beside_head - self.modules * self.kept.block, 0.0) * predicts + forward
        made = self.width * self.head * (3.0 + (predicts & ~self.tied)) + self.stream - forward
        buffers = self.gathered + np.where(self.reduces_each, FP32 * self.block, 0.0)
        blocks = self.shard_gradients * (1.0 - self.roots / np.maximum(self.elements, 1.0))
        gradients = np.where(predicts, self.gradients, np.maximum(self.gradients, blocks))
        return Moment(shared * acts, shared * buffers, shared * gradients, shared * made)

    def gather(self) -> Moment:
        """A forward's first blocks under ZeRO-3: flat tensors, and the parameters copied out of them."""
        three = (self.stage == 3) & ~self.piped
        buffers = 2 * self.width * (self.roots + self.block) + self.reducing
        nothing = np.zeros(len(self.t))
        return Moment(three * self.stream, three * buffers, np.where(self.several, self.shard_gradients, 0.0), nothing)

    def update(self) -> Moment:
        """An optimizer that makes a tensor beside every weight; others make none, and peak elsewhere."""
        nothing, here = np.zeros(len(self.t)), self.scratch > 0
        return Moment(nothing, nothing, here * self.shard_gradients, self.scratch)

"""Which samples a step takes, who reads them, and how they reach the model."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from parts import Counting
from scalewright.data.batch import Batch, sample_ids_hash
from scalewright.data.custom import CustomDataset
from scalewright.model.decoder import Decoder
from scalewright.parallel.inputs import Wanted, micro_batches, packing_of, wanted_by
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.zigzag import SequenceCut
from scalewright.train.batches import DataPosition, StepBatches, in_vocabulary, rank_samples
from worlds import one_rank


def test_the_picture_of_the_docstring():
    layout = Layout(devices=2, zero_stage=3, micro_batch=2, global_batch=8)
    assert rank_samples(np.arange(24, 32), layout, 0) == [24, 25, 28, 29]
    assert rank_samples(np.arange(24, 32), layout, 1) == [26, 27, 30, 31]


@pytest.mark.parametrize(("devices", "micro"), [*itertools.product([1, 2, 4], [1, 2, 4])])
def test_ranks_together_take_every_sample_once(devices, micro):
    layout = Layout(devices=devices, zero_stage=3, micro_batch=micro, global_batch=16)
    taken = [rank_samples(np.arange(48, 64), layout, rank) for rank in range(devices)]
    assert sorted(itertools.chain(*taken)) == list(range(48, 64))
    assert {len(samples) for samples in taken} == {16 // devices}


@pytest.mark.parametrize(("devices", "micro"), [(2, 1), (2, 4), (4, 2), (8, 1)])
def test_an_island_takes_the_same_samples_however_it_is_split(devices, micro):
    layout = Layout(devices=devices, dp_replicate=2, micro_batch=micro, global_batch=16)
    ranks = devices // 2
    for island, part in ((0, range(48, 56)), (1, range(56, 64))):
        taken = [rank_samples(np.arange(48, 64), layout, island * ranks + rank, islands=2) for rank in range(ranks)]
        assert sorted(itertools.chain(*taken)) == list(part)


def test_a_place_goes_on_from_where_it_is():
    place = DataPosition(8, 64, 64 * 16)
    assert place.after(8, 16, 32) == place
    assert place.after(10, 16, 32) == DataPosition(10, 96, 64 * 16 + 32 * 32)


def make_batches(place: DataPosition, last: int, micro: int = 2) -> StepBatches:
    mesh, _ = one_rank()
    layout = Layout(micro_batch=micro, global_batch=4)
    model = torch.nn.Embedding(67, 4)
    return StepBatches(CustomDataset(Counting("train", 0)), layout, mesh, model, place, last)


def test_steps_come_in_order_and_end():
    batches = make_batches(DataPosition(), 3)
    steps = list(batches)
    assert [[micro.tokens[:, 0].tolist() for micro in micros] for micros, _ in steps] == [
        [[0, 1], [2, 3]],
        [[4, 5], [6, 7]],
        [[8, 9], [10, 11]],
    ]
    for micros, counted in steps:
        assert counted.item() == sum((micro.targets != -100).sum().item() for micro in micros)
    assert batches.hash_of(2) == sample_ids_hash(range(4, 8))
    batches.close()


def test_steps_begin_at_a_place():
    """Sample numbers follow what was consumed, not the number of the step."""
    batches = make_batches(DataPosition(10, 30, 0), 11, micro=4)
    ((micros, _),) = list(batches)
    assert micros[0].tokens[:, 0].tolist() == [30, 31, 32, 33]
    assert batches.hash_of(11) == sample_ids_hash(range(30, 34))
    batches.close()


def test_closing_early_stops_the_thread():
    batches = make_batches(DataPosition(), 10_000)
    next(iter(batches))
    batches.close()
    assert not batches._ahead._thread.is_alive()


# -- to the model ------------------------------------------------------------------------------------


def make_batch(documents: list[list[int]] | None) -> Batch:
    rows = len(documents) if documents else 2
    tokens = np.arange(rows * 4).reshape(rows, 4)
    return Batch(
        tokens,
        tokens + 1,
        np.tile(np.arange(4), (rows, 1)),
        None if documents is None else np.array(documents, np.int32),
        np.arange(rows),
    )


def test_a_mask_only_where_it_is_needed():
    """A micro-batch of rows that are one document each is plainly causal, and takes the fast path."""
    batch = make_batch([[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0]])
    everything = Wanted(frozenset({"positions", "documents"}))
    plain, masked = micro_batches(batch, 2, torch.device("cpu"), everything)
    assert plain.arguments == {}
    assert set(masked.arguments) == everything.arguments
    assert masked.arguments["documents"].tolist() == [[0, 0, 1, 1], [0, 0, 0, 0]]
    assert micro_batches(batch, 2, torch.device("cpu"), Wanted())[1].arguments == {}
    assert micro_batches(make_batch(None), 2, torch.device("cpu"), everything)[0].arguments == {}


def test_a_rank_of_context_parallelism_gets_its_tokens_and_whose_the_others_are():
    """Rank 1 of 2 in a ring has the middle of a row: chunks 1 and 2 of 4."""
    batch = make_batch([[0, 0, 0, 0], [0, 1, 1, 1]])
    everything = frozenset({"positions", "documents"})
    wanted = Wanted(everything, SequenceCut("ring", ranks=2, rank=1))
    plain, packed = micro_batches(batch, 1, torch.device("cpu"), wanted)
    assert plain.tokens.tolist() == [[1, 2]]
    assert plain.targets.tolist() == [[2, 3]]
    assert {name: values.tolist() for name, values in plain.arguments.items()} == {"positions": [[1, 2]]}
    assert packed.arguments["positions"].tolist() == [[1, 2]]  # as the data have them
    assert packed.arguments["documents"].tolist() == [[0, 1, 1, 1]]


def test_documents_for_a_gpu_come_with_what_its_kernels_need():
    """Where each begins in all rows one after the other, padded to a power of two, and the longest."""
    documents = np.array([[0, 0, 1, 1], [0, 0, 0, 0], [5, 6, 7, 8]], np.int32)
    packing = packing_of(documents, torch.device("cpu"))
    assert packing.segments.bounds.tolist() == [0, 2, 4, 8, 9, 10, 11, 12, 12]
    assert packing.segments.bounds.dtype == torch.int32
    assert packing.segments.longest == 4
    assert packing.documents is documents
    spec = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    assert wanted_by(Decoder(ModelSpec.parse(spec))).packing


def test_what_a_models_forward_takes():
    class Both(torch.nn.Module):
        def forward(self, tokens, positions=None, documents=None):
            return tokens

    class Any(torch.nn.Module):
        def forward(self, tokens, **more):
            return tokens

    assert wanted_by(Both()) == wanted_by(Any()) == Wanted(frozenset({"positions", "documents"}))
    assert wanted_by(torch.nn.Embedding(3, 3)) == Wanted()


# -- vocabulary --------------------------------------------------------------------------------------


def test_tokens_are_checked_where_nothing_says_that_they_fit():
    data = CustomDataset(Counting("train", 0, vocab=67))
    assert in_vocabulary(data, None) is data
    checked = in_vocabulary(data, 67)
    assert checked.batch(range(60, 64)).tokens.max() == 66
    assert len(checked) == len(data)
    with pytest.raises(UserError, match="the data has token 66, but the model's vocab_size is 60"):
        in_vocabulary(data, 60).batch(range(60, 64))
    data.vocab_size = 67
    assert in_vocabulary(data, 67) is data


def test_targets_below_zero_are_refused_but_for_those_that_are_not_counted():
    class Marked(CustomDataset):
        mark = -100

        def batch(self, indices):
            batch = super().batch(indices)
            batch.targets[0, 0] = self.mark
            return batch

    data = Marked(Counting("train", 0, vocab=67))
    in_vocabulary(data, 67).batch(range(4))
    data.mark = -1
    with pytest.raises(UserError, match=r"the data has target -1, and the vocabulary begins at 0.*use -100"):
        in_vocabulary(data, 67).batch(range(4))

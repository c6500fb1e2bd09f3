"""Context parallelism gives one rank's logits, losses and gradients, whatever the decoder has."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from parallel.spread import whole
from parallel.tensor_cases import TOLERANCE, compare, parallel, rank_inputs
from parallel.test_tensor import MODELS, Case, assert_near, on_rank
from scalewright.dry_run.no_numbers import use_stand_ins
from scalewright.model.visible import first_keys
from scalewright.parallel import context
from scalewright.parallel.mesh import Mesh
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.zigzag import SequenceCut
from worlds import CPU, run_world

KINDS = ("ring", "allgather", "ulysses")


@pytest.mark.parametrize(
    ("kind", "cp", "ways"),
    [("ring", 2, 1), *(pytest.param(kind, cp, 2, marks=pytest.mark.slow) for kind in KINDS for cp in (2, 4))],
)
def test_every_part_of_the_decoder(kind, cp, ways):
    """On packed documents, and on whole rows, by default in turns: causal, windows, ALiBi, caps, all kinds of heads."""
    cases: list[Case] = [
        (f"{name}, documents {documents}", spec.dump(), {"cp_kind": kind}, documents)
        for index, (name, spec) in enumerate(MODELS.items())
        for documents in (index % 2 == 0, index % 2 == 1)[:ways]
    ]
    assert_near(run_world(on_rank, {"devices": cp, "cp": cp, "zero_stage": 0}, cases))


@pytest.mark.parametrize(
    ("kind", "ways"), [("ring", 1), *(pytest.param(kind, 2, marks=pytest.mark.slow) for kind in KINDS)]
)
def test_beside_tensor_parallelism(kind, ways):
    names = ("llama", "bloom", "gemma2", "qwen3", "olmo2")
    cases: list[Case] = [
        (f"{name}, sp {sp}", MODELS[name].dump(), {"cp_kind": kind, "sp": sp}, sp)
        for index, name in enumerate(names)
        for sp in (index % 2 == 0, index % 2 == 1)[:ways]
    ]
    assert_near(run_world(on_rank, {"devices": 4, "cp": 2, "tp": 2, "zero_stage": 0}, cases))


# -- planted errors ----------------------------------------------------------------------------------


def faulty_rank(mesh: Mesh, layout: Layout, keys: dict[str, Any], fault: str) -> float:
    """The largest deviation on this rank with a fault planted; `none` for none."""
    spec, plain = ModelSpec.parse(keys), rank_inputs

    def positions_from_zero(decoder: Any, documents: bool) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        index, tokens, targets, arguments = plain(decoder, documents)
        return index, tokens, targets, {**arguments, "positions": torch.arange(tokens.shape[1])[None]}

    patch = pytest.MonkeyPatch()
    if fault == "positions":
        patch.setattr("parallel.tensor_cases.rank_inputs", positions_from_zero)
    if fault == "leak":
        patch.setattr(context, "first_keys", lambda index, _, *more: first_keys(index, None, *more))
    if fault == "turn":  # keys taken for those of the rank before
        patch.setattr(SequenceCut, "tokens", shifted(SequenceCut.tokens))
    try:
        return max(compare(spec, layout, mesh, documents=True).values())
    finally:
        patch.undo()


def shifted(tokens: Any) -> Any:
    """`SequenceCut.tokens` with another rank's indices one rank further on."""

    def wrong(cut: SequenceCut, length: int, rank: int | None = None) -> Any:
        return tokens(cut, length, None if rank is None else (rank + 1) % cut.ranks)

    return wrong


@pytest.mark.parametrize(
    ("fault", "kind"),
    [("none", "ring"), ("positions", "ring"), ("positions", "ulysses"), ("leak", "ring"), ("turn", "allgather")],
)
def test_a_planted_error_shows(fault, kind):
    """Positions that begin at 0 on every rank, documents that see each other, and a mask for other keys."""
    world = {"devices": 2, "cp": 2, "cp_kind": kind, "zero_stage": 0}
    worst = max(run_world(faulty_rank, world, MODELS["llama"].dump(), fault))
    assert (worst < TOLERANCE) == (fault == "none")
    assert fault == "none" or worst > 100 * TOLERANCE


@pytest.mark.parametrize("name", ["llama", "gemma2", "bloom"])
def test_parts_hold_numbers_of_a_rows_length_alone(name):
    """No mask of queries by keys, whatever hides keys."""
    decoder, length = whole(MODELS[name]), 256
    documents = (torch.arange(length) // 100)[None].expand(2, -1)
    parts = context._Parts(decoder, SequenceCut("ring", 2, 1), length, CPU, documents, None)
    for window in (None, 5):
        for part in parts.make(window):
            if part is not None:
                held = part.visible.query, part.visible.key, part.visible.first
                assert sum(x.numel() for x in held) <= 4 * length // 2


def test_a_dry_run_skips_the_parts_that_a_run_skips():
    """Under fake tensors, too, the first visible keys are numbers, and not memory that nobody wrote."""
    decoder, length = whole(MODELS["llama"]), 256
    parts = context._Parts(decoder, SequenceCut("ring", 4, 3), length, CPU, None, None)
    expected = [part is None for part in parts.make(5)]
    assert expected == [False, False, True, True]  # rank 3 sees its own keys, and those before them
    junk = [torch.full((length,), -(1 << 40)) for _ in range(64)]  # what such memory would have
    del junk
    use_stand_ins()
    with FakeTensorMode(), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [part is None for part in parts.make(5)] == expected


def probed_rank(mesh: Mesh, layout: Layout, keys: dict[str, Any]) -> list[bool]:
    """Which of this rank's tokens of row 0 have other logits when its token 8 is another."""
    decoder = parallel(ModelSpec.parse(keys), layout, mesh)
    index, tokens, _, arguments = rank_inputs(decoder, True)
    other = torch.where(index == 8, (tokens + 1) % 67, tokens)
    with torch.no_grad():
        before, after = decoder(tokens, **arguments), decoder(other, **arguments)
    return [bool(moved) for moved in (before != after).any(-1)[0]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_moves_its_own_document_alone(kind):
    """Token 8 is the second of row 0's second document, tokens 7 to 16: those from it on move, exactly."""
    ranks = run_world(probed_rank, {"devices": 2, "cp": 2, "cp_kind": kind}, MODELS["llama"].dump())
    for rank, moved in enumerate(ranks):
        index = SequenceCut(kind, 2, rank).tokens(24)
        assert moved == [8 <= token <= 16 for token in index]

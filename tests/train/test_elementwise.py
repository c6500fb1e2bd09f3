"""Who may get parts of tensors, and where a layout makes parts of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import parts
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.run import OptimizerSpec, PythonRef
from scalewright.train.elementwise import OF_TORCH, check_made, check_named, says_elementwise
from scalewright.train.optimizer import Lion


def test_torchs_own_are_known():
    """Every one of them is in the list, or left out on purpose."""
    classes = {name for name, kind in vars(torch.optim).items() if isinstance(kind, type)}
    assert classes - OF_TORCH <= {"Optimizer", "Adafactor", "LBFGS", "Muon", "SparseAdam"}
    assert all(says_elementwise(getattr(torch.optim, name)) for name in OF_TORCH)
    assert not says_elementwise(torch.optim.Adafactor)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (Lion, True),
        (parts.ByNumber, True),
        (parts.ByTensor, False),  # though torch's SGD is
        (parts.momentum, False),
        (parts.momentum([torch.zeros(2, requires_grad=True)], lr=0.1), True),
        (parts.by_tensor([torch.zeros(2, requires_grad=True)], lr=0.1), False),
    ],
)
def test_others_say_it(what: Any, says: bool):
    assert says_elementwise(what) == says


def test_a_function_may_say_it_for_what_it_returns(monkeypatch):
    made = parts.by_tensor([torch.zeros(2, requires_grad=True)], lr=0.1)
    ref = PythonRef(python="parts:by_tensor")
    with pytest.raises(UserError, match=r"set elementwise = True on it, .*zero_stage=0"):
        check_made(ref, made)
    monkeypatch.setattr(parts.by_tensor, "elementwise", True, raising=False)
    check_made(ref, made)


@pytest.mark.parametrize(
    "layout", [{"devices": 2, "tp": 2}, *({"devices": 2, "zero_stage": stage} for stage in (1, 2, 3))]
)
def test_the_door_refuses_a_class_where_tensors_are_cut(layout: dict[str, Any]):
    with pytest.raises(UserError, match="parts:ByTensor doesn't say that it is elementwise"):
        check_named(PythonRef(python="parts:ByTensor"), Layout.parse(layout))
    for name in ("parts:ByNumber", "parts:by_tensor", "torch.optim:NAdam"):
        check_named(PythonRef(python=name), Layout.parse(layout))
    check_named(OptimizerSpec(), Layout.parse(layout))


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"devices": 2, "zero_stage": 0},
        {"devices": 2, "pp": 2, "zero_stage": 0},
        {"devices": 2, "dp_replicate": 2, "zero_stage": 3},
        {"zero_stage": 3, "offload": "parameters"},
    ],
)
def test_whole_tensors_are_anybodys(layout: dict[str, Any]):
    check_named(PythonRef(python="parts:ByTensor"), Layout.parse(layout))


CUT = [{"devices": 2, "tp": 2}, *({"devices": 2, "zero_stage": stage} for stage in (1, 2, 3))]
CUT += [{"devices": 2, "ep": 2, "zero_stage": 0}]
PIPELINE = {"devices": 2, "pp": 2, "zero_stage": 0, "micro_batch": 1, "global_batch": 4}


def check(name: str, layout: dict[str, Any], **arguments: Any) -> None:
    check_named(PythonRef.parse({"python": name, **arguments}), Layout.parse(layout))


@pytest.mark.parametrize("layout", CUT)
@pytest.mark.parametrize("kind", ["muon", "shampoo", "lamb", "rows", "columns", "prodigy"])
def test_a_wrong_word_is_found_out(kind: str, layout: dict[str, Any]):
    with pytest.raises(UserError, match=r"SaysSo gives other updates to parts of tensors than whole ones") as caught:
        check("parts:SaysSo", layout, kind=kind)
    assert "layout.zero_stage=0" in str(caught.value.how)


@pytest.mark.parametrize("layout", CUT)
def test_a_function_is_asked_before_a_process_starts(layout: dict[str, Any]):
    for name, arguments in (("parts:by_matrix", {"kind": "muon"}), ("torch.optim:Adafactor", {})):
        with pytest.raises(UserError, match="doesn't say that it is elementwise"):
            check(name, layout, **arguments)
    check("parts:momentum", layout, lr=0.1)


@pytest.mark.parametrize("kind", ["muon", "shampoo", "lamb", "rows"])
def test_a_pipeline_takes_what_needs_one_tensor_whole(kind: str):
    check("parts:ByMatrix", PIPELINE, kind=kind)


def test_a_pipeline_refuses_what_needs_all_tensors():
    with pytest.raises(UserError, match="other updates to some of the tensors than all of them"):
        check("parts:by_matrix", PIPELINE, kind="prodigy")
    check("parts:by_matrix", {"devices": 2, "zero_stage": 0}, kind="prodigy")


@pytest.mark.parametrize("kind", ["chance", "group", "elementwise"])
def test_what_can_not_be_tried_is_taken_at_its_word(kind: str):
    state = torch.random.get_rng_state()
    check("parts:SaysSo", CUT[-2], kind=kind)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_one_that_sums_over_ranks_by_itself_is_taken_at_its_word():
    check("parts:SumsItself", CUT[0], kind="prodigy")

"""What an edit did to a checkpoint whose checksums were made anew: it is found by its form.

Boxes that overlap are seen, those of any sharding pass, and many cost little.
"""

from __future__ import annotations

import json
import math
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalewright.checkpoint.boxes import are_disjoint
from scalewright.checkpoint.format import checkpoints_at, committed, read_state
from scalewright.checkpoint.verify import verify_heads
from scalewright.checkpoint.write import commit
from scalewright.spec.errors import UserError
from scalewright.spec.run import RunSpec
from scalewright.train.state.changes import keep_choices

STATE: dict[str, Any] = {
    "step": 8,
    "samples": 64,
    "tokens": 512,
    "optimizer": {"step": {"*": 8.0, "w": {"tensor": "float64", "shape": [], "data": [8.0]}}},
    "run": {"layout": {"precision": "bf16"}, "train": {}, "data": {"train": []}},
    "data": {"tokenizer": None, "segments": [{"from": 0, "weights": {"0": 1}}], "samples": [64]},
    "guard": {"streak": 0},
    "left_out": [[3, 5]],
    "schedule_unit": None,
}


def save(root: Path, state: dict[str, Any], step: int = 8, name: str | None = None) -> Path:
    """A checkpoint without tensors, signed."""
    partial, final = root / "made.tmp", root / (name or f"step-{step:08d}")
    partial.mkdir(parents=True)
    commit(partial, final, [], state, step=step, samples=64, run_id="id", model={}, layout={})
    return final


def test_a_whole_one(tmp_path):
    """Also of an older release, which had fewer keys, and of a newer one."""
    states = {1: STATE, 2: {"step": 2, "samples": 64}, 3: {}, 4: {**STATE, "step": 4, "run": None, "new": [1]}}
    for step, state in states.items():
        assert verify_heads(save(tmp_path, {**state, "step": step} if state else state, step)) == []
    assert verify_heads(save(tmp_path, STATE, name="best")) == []


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan, 1e-45, 1e-300, 1e300, -0.0, 2**70])
@pytest.mark.parametrize("name", ["", " ", "a\0b"])
def test_any_number_and_any_text_of_a_state(tmp_path, number, name):
    """What a run computed is no mistake of a person's: a product underflows, a schedule waits for ever."""
    state: dict[str, Any] = {
        **STATE,
        "optimizer": {"mu_product": {"*": number}, name: {name: {"python": name}}},
        "optimizer_groups": {"groups": [{"d": {"first": number, "now": {"python": number}}}]},
        "run": {"layout": {name: name}, "train": {"until": number}, "data": {name: []}},
        "data": {**STATE["data"], "paths": {name: name}, "segments": [{"from": 0, name: number}]},
        "guard": {"limit": number, name: name},
        name: {"limit": number},
    }
    folder = save(tmp_path, state)
    assert verify_heads(folder) == []
    assert repr(read_state(folder)) == repr(state)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("step", -1), ("step", True), ("step", 8.5), ("step", "8"), ("samples", float("nan")),
        ("tokens", 10**30), ("tokens", [1]), ("optimizer", 5), ("optimizer.step", 4),
        ("optimizer.step.*", "x"), ("run", 3), ("run.layout", 3), ("run.train", []), ("run.data", 8),
        ("data", 8), ("data.paths", 5), ("data.segments", []), ("data.segments", "x"), ("guard", 5),
        ("left_out", 5), ("left_out", [["a", 1]]), ("left_out", [[1]]), ("schedule_unit", -5),
    ],
)  # fmt: skip
def test_a_value_of_another_kind(tmp_path, place, value):
    state = json.loads(json.dumps(STATE))
    *outer, last = place.split(".")
    part = state
    for key in outer:
        part = part[int(key) if key.isdigit() else key]
    part[last] = value
    folder = save(tmp_path, state)
    with pytest.raises(UserError, match=r"damaged state.json: ") as error:
        read_state(folder)
    assert place.split(".")[0] in error.value.what
    assert len(verify_heads(folder)) == 1


@pytest.mark.parametrize("state", [[1], None, 12, "text"])
def test_no_object(tmp_path, state):
    with pytest.raises(UserError, match=r"damaged state.json"):
        read_state(save(tmp_path, state))


@pytest.mark.parametrize(
    ("changes", "name", "problem"),
    [
        ({"step": 4}, None, "state.json is of another step"),
        ({"samples": 7}, None, "state.json is of another step"),
        ({}, "step-00000012", "step-00000012 holds step 8"),
    ],
)
def test_parts_of_two_checkpoints(tmp_path, changes, name, problem):
    """A state beside another's manifest; a folder that was renamed, or is a link to another's."""
    (found,) = verify_heads(save(tmp_path, {**STATE, **changes}, name=name))
    assert problem in found


def test_only_folders_that_a_run_names(tmp_path):
    whole = save(tmp_path, STATE)
    for name in (
        "step-\u0661\u0661\u0661\u0661\u0661\u0661\u0661\u0661",
        "step-00000009\n",
        "step-9",
        "step-00000009.tmp",
    ):
        save(tmp_path, STATE, name=name)
    assert committed(tmp_path) == checkpoints_at(tmp_path) == [whole]


@pytest.mark.parametrize("damage", ["state.json", "COMMIT", "nothing"])
def test_choices_come_from_the_newest_whole_one(tmp_path, damage):
    """A damaged newest save is passed by the resume; `auto` means what it meant in the one that is taken."""
    saves = tmp_path / "out" / "checkpoints"
    save(saves, {**STATE, "step": 4}, 4)
    newest = save(saves, STATE)
    if damage != "nothing":
        (newest / damage).write_text("{")
    run = RunSpec.parse({"model": "tiny", "data": "tokens", "out_dir": str(tmp_path / "out")})
    assert keep_choices(run).layout.precision == "bf16"


def grid(*cuts: list[int]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The boxes between the cuts of each dimension."""
    boxes = product(*(list(pairwise(cut)) for cut in cuts))
    return [(tuple(a for a, _ in box), tuple(b - a for a, b in box)) for box in boxes]


@pytest.mark.parametrize(
    "boxes",
    [
        [],
        [((), ())],
        grid([0, 4, 8]),
        grid([0, 1, 3, 8], [0, 2, 6]),
        grid([0, 2, 4], [0, 3, 6], [0, 5, 9]),
        [((0, 0), (8, 3)), *[((row, 3), (2, 3)) for row in range(0, 8, 2)]],  # columns, cut in other rows
        [((0, 0), (4, 4)), ((1, 1), (0, 2))],  # an empty one in another
    ],
)
def test_boxes_of_shardings_are_disjoint(boxes):
    assert are_disjoint(boxes)
    assert are_disjoint(boxes[::-1])


@pytest.mark.parametrize(
    "boxes",
    [
        [((), ()), ((), ())],
        [((0,), (4,)), ((0,), (4,))],
        [((0,), (4,)), ((3,), (5,))],
        [((0,), (8,)), ((1,), (2,)), ((5,), (2,))],  # two in one that begins before
        [*grid([0, 4, 8], [0, 4, 8]), ((3, 3), (2, 2))],
    ],
)
def test_boxes_that_overlap(boxes):
    assert not are_disjoint(boxes)
    assert not are_disjoint(boxes[::-1])


def test_any_two_boxes():
    """Two boxes are disjoint exactly when no element is in both."""
    random = np.random.default_rng(0)
    for _ in range(300):
        taken, boxes = np.zeros((6, 6), int), []
        for _ in range(2):
            offset, size = random.integers(0, 4, 2), random.integers(0, 3, 2)
            taken[tuple(slice(o, o + s) for o, s in zip(offset, size, strict=True))] += 1
            boxes.append((tuple(offset.tolist()), tuple(size.tolist())))
        assert are_disjoint(boxes) == (taken.max() < 2)


def test_many_boxes_are_not_compared_in_pairs():
    """The reads of the boxes' offsets grow with n log n, where all pairs of 4096 would be 8 million."""

    class Counted(tuple[int, ...]):
        reads = 0

        def __getitem__(self, index):
            Counted.reads += 1
            return super().__getitem__(index)

    boxes = [(Counted(offset), size) for offset, size in grid(list(range(65)), list(range(65)))]
    assert are_disjoint(boxes)
    assert Counted.reads < 100 * len(boxes)
    same = [(Counted((0, 0)), (4, 4))] * 4096
    assert not are_disjoint(same)
    assert Counted.reads < 400 * len(boxes)

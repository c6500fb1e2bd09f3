"""Many tensors in few words: they come back as they were; what no save writes is refused, and at little cost."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest

from checkpoint.ranks import SPEC, WORLD, held
from scalewright.checkpoint.boxes import StoredTensor, pack, uncovered, unpack
from scalewright.checkpoint.write import boxes_of, chunks_of

NAMES = [
    "norm.weight", "layers.0.q.weight", "layers.1.q.weight", "layers.7.q.weight", "layers.10.q.weight", "0.weight",
    "optimizer/exp_avg/0.weight", "a.3", "layers.007.x", "rank/00003/compress/layers.2.q", "island/1/layers.2.q",
    "layers.*.q.weight", "layers.*.4.q", "h.1.experts.2.w", "h.1.experts.3.w", "h.12.experts.2.w", "x.1234567890.y",
    "é.5.ü",
]  # fmt: skip


def entry(boxes: Any, size: int = 10**6) -> dict[str, Any]:
    return {"bytes": size, "checksum": "", "boxes": boxes}


def row(names: list[Any], shape: Any = (4,), offset: Any = (0,), size: Any = (4,), dtype: str = "float32") -> Any:
    return {"names": names, "dtype": dtype, "shape": list(shape), "offset": list(offset), "size": list(size)}


def test_names_come_back():
    """In any order, with gaps, with numbers that are none, and with the sign that stands for one."""
    for seed in range(20):
        draw = random.Random(seed)
        names = draw.sample(NAMES, draw.randrange(1, len(NAMES)))
        names += [f"blocks.{number}.w" for number in draw.sample(range(50), draw.randrange(30))]
        text = json.dumps(pack([(name, "float32", (4,), ((0,), (4,))) for name in names]))
        tensors = unpack({"file": entry(json.loads(text))})
        assert sorted(tensors) == sorted(names)
        assert uncovered(tensors) == []


def test_layers_that_are_cut_alike_share_an_entry():
    """And an object, of all ranks' boxes: it is checked once for all of them."""
    files = {}
    for rank in range(WORLD):
        weights, states, mesh = held(8, 0, rank)
        files[f"model-{rank}"] = entry(json.loads(json.dumps(boxes_of(chunks_of(weights, states, mesh)))))
    tensors = unpack(files)
    assert uncovered(tensors) == []
    first, second = (tensors[f"layers.{layer}.attention.q.weight"] for layer in range(2))
    assert first is second
    assert len(first.boxes) == WORLD
    assert len(tensors) == 3 * len(list(held(8, 0, 0)[0]))
    assert max(len(file["boxes"]) for file in files.values()) <= len({t.shape for t in tensors.values()}) + 2
    assert SPEC.num_hidden_layers == 2


def test_layers_of_other_ranks_are_apart():
    """Two files with a half of each layer, and a third with one layer alone."""
    files = {
        "a": entry([row([["l.*.w", [0, 3, 1]]], size=(2,))]),
        "b": entry([row([["l.*.w", [0, 3, 1]]], offset=(2,), size=(2,))]),
        "c": entry([row([["l.*.w", [3, 1, 1]]])]),
    }
    tensors = unpack(files)
    assert [len(tensors[f"l.{layer}.w"].boxes) for layer in range(4)] == [2, 2, 2, 1]
    assert tensors["l.0.w"] is tensors["l.2.w"] is not tensors["l.3.w"]
    assert uncovered(tensors) == []
    del files["b"]["boxes"][0]["names"][0][1:]
    files["b"]["boxes"][0]["names"][0].append([1, 2, 1])
    assert uncovered(unpack(files)) == ["tensor 'l.0.w' is not covered by the files"]


@pytest.mark.parametrize(
    ("boxes", "problem"),
    [
        ([row([["l.*.w", [0, 1 << 62, 1]]])], "names more than"),
        ([row([["l.*.w", [0, 3, 0]]])], "overlap"),
        ([row([["l.*.w", [0, 3, 1], [2, 1, 1]]])], "'l.2.w' has boxes that overlap"),
        ([row(["a"]), row(["a"])], "'a' has boxes that overlap"),
        ([row(["l.1.w", ["l.*.w", [1, 1, 1]]])], "'l.1.w' is listed twice"),
        ([row(["a"], size=(2,)), row(["a"], shape=(5,), offset=(2,), size=(2,))], "two shapes or types"),
        ([row(["a"], size=(2,)), row(["a"], offset=(2,), size=(2,), dtype="int32")], "two shapes or types"),
        ([row(["a"], offset=(1,))], "a box outside of it"),
        ([row(["a"], offset=(0, 0))], "another number of dimensions"),
        ([row(["a"], dtype="complex64")], "the dtype 'complex64'"),
        ([row(["a"], shape=(1 << 40,), size=(1 << 40,))], "larger than its files"),
        ([row(["a"], size=(-4,))], "a size is -4"),
        ([row(["a"], size=(True,))], "a size is True"),
        ([row([["l.*.w", [0, 1.5, 1]]])], "a count is 1.5"),
        ([row([["l.*.w", [0, 1]]])], "not enough values"),
    ],
)
def test_what_no_save_writes(boxes, problem):
    began = time.process_time()
    with pytest.raises(ValueError, match=problem):
        unpack({"file": entry(boxes)})
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize(
    "boxes", [5, [5], [{}], [{**row(["a"]), "names": 5}], [{**row(["a"]), "shape": 4}], [row([[]])]]
)
def test_something_else(boxes):
    with pytest.raises((ValueError, TypeError, LookupError)):  # which the manifest's reader puts into words
        unpack({"file": entry(boxes)})


def test_one_object_for_many_is_what_it_says():
    tensor = StoredTensor((4,), "float32", ())
    assert uncovered({"a": tensor, "b": tensor}) == ["tensor 'a' is not covered by the files, nor are 1 others"]

"""Two finished runs compared: training rows in order, and the worst tensor by its largest number."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from runs import run, run_data
from scalewright.checkpoint.pieces import describe_file
from scalewright.checkpoint.read import find_checkpoint
from scalewright.checkpoint.verify import commit_text
from scalewright.parity.compare import FLOOR, training_rows, weights_deviation


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two runs of one step, the same in all but their folder."""
    folder = tmp_path_factory.mktemp("saved")
    changes = {"train": {"steps": 1, "valid_every": 1, "valid_batches": 1}, "checkpoint": {"at_end": True}}
    return [run(run_data(folder, out_dir=str(folder / name), **changes)).out_dir for name in ("a", "b")]


def change(out, name, index, value):
    """Sets one number of a saved tensor."""
    folder = find_checkpoint(out)
    file = next(folder.glob("model-*.safetensors"))
    tensors = load_file(file)
    before = float(tensors[name].view(-1)[index])
    tensors[name].view(-1)[index] = value
    save_file(tensors, file)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][file.name] |= asdict(describe_file(file))
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "COMMIT").write_text(commit_text(folder, manifest["step"]))
    return before


def test_rows_are_those_of_training(two):
    assert [row["step"] for row in training_rows(Path(two[0]))] == [1]
    assert training_rows(Path(two[0]))[0]["kind"] == "train"


def test_equal_runs_do_not_deviate(two):
    assert weights_deviation(*two)[0] == 0.0


def test_the_worst_tensor_is_named(two):
    name = "layers.1.mlp.down.weight"
    before = change(two[0], name, 7, 0.5)
    other = load_file(next(find_checkpoint(two[1]).glob("model-*.safetensors")))
    largest = max(float(other[name].abs().max()), FLOOR)
    deviation, tensor = weights_deviation(*two)
    assert tensor == name
    assert deviation == pytest.approx(abs(0.5 - before) / largest)
    change(two[0], name, 7, float("nan"))
    assert weights_deviation(*two)[0] == math.inf
    assert weights_deviation(two[1], two[0])[0] == math.inf
    change(two[0], name, 7, before)
    assert weights_deviation(*two)[0] == 0.0


def test_other_tensors_are_no_match(two, tmp_path):
    model = {"tie_word_embeddings": True}
    tied = run(run_data(tmp_path, model=model, train={"steps": 1}, checkpoint={"at_end": True})).out_dir
    assert weights_deviation(tied, two[0]) == (math.inf, "head.weight")

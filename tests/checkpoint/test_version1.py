"""A checkpoint of version 1 is read for ever: one that release 0.2.0 wrote, on two ranks under ZeRO-3 with AdamW."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from runs import make_data, run, run_data
from scalewright.checkpoint.compare import tensors
from scalewright.checkpoint.format import read_manifest
from scalewright.checkpoint.read import CheckpointReader, find_checkpoint
from scalewright.checkpoint.verify import verify

OLD = Path(__file__).parent / "version1" / "step-00000003"


def test_it_is_read():
    """Each tensor is its two halves, as its own manifest says where they lie."""
    assert verify(OLD) == []
    reader, files = CheckpointReader(OLD), {path.name: load_file(path) for path in OLD.glob("*.safetensors")}
    entries = json.loads((OLD / "manifest.json").read_text())["tensors"]
    assert reader.manifest.version == 1
    assert len(entries) == len(reader.manifest.tensors) == 63
    for name, entry in entries.items():
        halves = [files[box["file"]][box["key"]] for box in entry["boxes"]]
        assert torch.equal(reader.read(name), torch.cat(halves)), name


@pytest.fixture
def resumed(tmp_path, monkeypatch):
    """The same run, gone on with by today's code on one rank: its data are where they were, relatively."""
    monkeypatch.chdir(tmp_path)
    make_data(Path("data"))
    shutil.copytree(OLD, "out/checkpoints/step-00000003")
    small = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    data = run_data(
        Path(), model={**small, **heads}, optimizer={"name": "adamw", "lr": 0.01}, train={"steps": 6},
        checkpoint={"every": 3, "at_end": True},
    )  # fmt: skip
    return data, run(data)


def test_it_is_resumed(resumed):
    """And what is saved then is of version 2; both remain in the folder, and are compared."""
    data, result = resumed
    assert (result.resumed_from, result.step) == (3, 6)
    newest = find_checkpoint(data["out_dir"])
    assert read_manifest(newest).version == 2
    assert {row["name"] for row in tensors(OLD, newest)} == set(read_manifest(OLD).tensors)
    straight = run({**data, "out_dir": "straight"})
    # one rank adds up what two did: see runs.py
    assert result.loss == pytest.approx(straight.loss, rel=1e-5)

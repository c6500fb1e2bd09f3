"""A checkpoint that ranks wrote in parts becomes a Hugging Face folder of several files, one file at a time.

    read a tensor from all ranks' parts --> put it into the file's dict --> file full: write it, forget it

What is alive meanwhile is counted by the dry run's meter of live tensors: storages that operators made, and
apart from them those mapped from files, which take no memory of their own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from runs import assert_same_bits, run, run_data, weights
from scalewright.checkpoint.convert import convert
from scalewright.checkpoint.read import CheckpointReader, find_checkpoint
from scalewright.dry_run.live_bytes import LiveBytes
from scalewright.model.huggingface import write_huggingface
from scalewright.model.load import open_huggingface
from scalewright.spec.model import ModelSpec

LIMIT = 8_000  # bytes of a file: more than any tensor, an eighth of the model
LAYOUT = {"devices": 8, "pp": 2, "tp": 2, "zero_stage": 3, "global_batch": 8}


class Alive(TorchDispatchMode):
    """Most bytes alive at once: of tensors in memory, and of those mapped from a file."""

    def __init__(self) -> None:
        super().__init__()
        self.live = LiveBytes()
        self.window = self.live.open()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        # safetensors gives a tensor by setting an empty one to a piece of the mapped file
        kind = "buffers" if func is torch.ops.aten.set_.source_Storage else "other"
        for tensor in tree_leaves(found):
            if isinstance(tensor, Tensor):
                self.live.count(tensor, kind)
        return found

    @property
    def most(self) -> tuple[int, int]:
        return self.window.most["other"], self.window.most["buffers"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a run of one step on eight ranks, every one with its own parts of the tensors."""
    folder = tmp_path_factory.mktemp("saved")
    changes = {"train": {"steps": 1}, "checkpoint": {"at_end": True}, "optimizer": {"name": "adamw"}}
    run(run_data(folder, layout=LAYOUT, **changes))
    return find_checkpoint(folder / "out")


def sizes(source: Path) -> list[int]:
    """Bytes of every tensor of the model."""
    reader = CheckpointReader(source)
    return [reader.read(name).nbytes for name in reader.names()]


def test_several_files_hold_what_one_holds(saved: Path, tmp_path: Path) -> None:
    convert(saved, tmp_path / "one")
    convert(saved, tmp_path / "several", max_shard_bytes=LIMIT)
    expected = load_file(tmp_path / "one" / "model.safetensors")
    files = sorted((tmp_path / "several").glob("model-*"))
    names = [f"model-{n:05d}-of-{len(files):05d}.safetensors" for n in range(1, len(files) + 1)]
    assert len(files) > 3
    assert [file.name for file in files] == names
    found = {file.name: load_file(file) for file in files}
    index = json.loads((tmp_path / "several" / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {key: name for name, held in found.items() for key in held}
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in expected.values())
    assert max(sum(tensor.nbytes for tensor in held.values()) for held in found.values()) <= LIMIT
    assert_same_bits({key: tensor for held in found.values() for key, tensor in held.items()}, expected)
    back, whole = open_huggingface(tmp_path / "several"), weights(saved.parent.parent)
    assert_same_bits({name: back.read(name) for name in whole}, whole)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_file_and_one_tensor_are_held_at_a_time(saved: Path, tmp_path: Path, dtype: str) -> None:
    tensors = sizes(saved)
    with Alive() as alive:
        convert(saved, tmp_path / "out", dtype, max_shard_bytes=LIMIT)
    own, mapped = alive.most
    assert LIMIT / 2 < own <= LIMIT + max(tensors) < sum(tensors) / 4
    assert mapped <= 2 * max(tensors)  # a rank's part, and when it is checked what was written of it


def test_the_meter_sees_an_export_that_reads_everything_first(saved: Path, tmp_path: Path) -> None:
    """The bound above can fail: the same writer, fed from tensors that were all read before."""
    reader = CheckpointReader(saved)
    spec = ModelSpec.parse(reader.manifest.model)
    with Alive() as alive:
        whole = {name: reader.read(name) for name in reader.names()}
        write_huggingface(tmp_path / "out", spec, whole.__getitem__, max_shard_bytes=LIMIT)
    assert alive.most[0] > sum(sizes(saved))


def test_the_meter_sees_files_that_are_kept(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And when what was written isn't let go."""
    kept: list[Any] = []

    def keep(tensors: dict[str, Tensor], *arguments: Any, **keywords: Any) -> None:
        kept.append(tensors)
        save_file(tensors, *arguments, **keywords)

    monkeypatch.setattr("scalewright.model.huggingface.save_file", keep)
    with Alive() as alive:
        convert(saved, tmp_path / "out", max_shard_bytes=LIMIT)
    assert alive.most[0] >= sum(sizes(saved))

"""Files that we write are safetensors files for its own library; each piece has its checksum, and damage a place."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from scalewright.checkpoint import pieces, sums
from scalewright.checkpoint.boxes import DTYPES
from scalewright.checkpoint.format import StoredFile
from scalewright.checkpoint.pieces import describe_file, first_damage, write_tensors


def items(tensors):
    return [(name, value.dtype, tuple(value.shape), lambda value=value: value) for name, value in tensors.items()]


def of_all_types() -> dict[str, torch.Tensor]:
    """Scalars, nothing, odd lengths, and views that don't lie in one run."""
    tensors = {}
    for name in DTYPES:
        dtype = getattr(torch, name)
        for shape in ((), (0,), (3,), (2, 5)):
            tensors[f"{name}{shape}"] = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    tensors["turned"] = torch.randn(5, 4).T
    tensors["a parameter"] = torch.nn.Parameter(torch.randn(3))
    return tensors


@pytest.mark.parametrize("size", [64, 1000, pieces.PIECE])
def test_the_library_reads_what_we_write(tmp_path, monkeypatch, size):
    for module in (pieces, sums):
        monkeypatch.setattr(module, "PIECE", size)
    tensors, path = of_all_types(), tmp_path / "file"
    stored = write_tensors(path, items(tensors))
    read = load_file(path)
    assert set(read) == set(tensors)
    for name, value in tensors.items():
        assert read[name].dtype == value.dtype, name
        assert read[name].shape == value.shape, name
        assert torch.equal(*(side.detach().contiguous().flatten().view(torch.uint8) for side in (read[name], value)))
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert stored == describe_file(path)
    assert first_damage(path, stored) is None
    kind, _, text = stored.checksum.partition(":")
    data = path.read_bytes()
    assert stored.bytes == len(data)
    wanted = [f"{zlib.crc32(data[start : start + size]):08x}" for start in range(0, len(data), size)]
    assert text == "".join(wanted)
    assert kind == ("crc32" if len(wanted) == 1 else f"crc32/{size}")


def test_damage_has_a_place(tmp_path, monkeypatch):
    for module in (pieces, sums):
        monkeypatch.setattr(module, "PIECE", 100)
    path = tmp_path / "file"
    stored = write_tensors(path, items({"a": torch.arange(100.0)}))
    data = bytearray(path.read_bytes())
    for place in (0, 99, 100, 250, len(data) - 1):
        changed = bytearray(data)
        changed[place] ^= 4
        path.write_bytes(changed)
        start, end = first_damage(path, stored) or (0, 0)
        assert start <= place < end <= len(data)
        assert start % 100 == 0


@pytest.mark.parametrize("text", ["", "crc32", "md5:00", "crc32/:0", "crc32/0:0", "crc32/-1:00", "crc32/9:1"])
def test_a_checksum_that_is_none(tmp_path, text):
    path = tmp_path / "file"
    path.write_bytes(b"something")
    assert first_damage(path, StoredFile(9, text)) == (0, 9)


def test_a_tensor_that_is_not_what_was_said(tmp_path):
    with pytest.raises(ValueError, match=r"'a' is torch.float32 \[3\] instead of torch.float32 \[4\]"):
        write_tensors(tmp_path / "file", [("a", torch.float32, (4,), lambda: torch.zeros(3))])
    with pytest.raises(ValueError, match="which a safetensors file can't hold"):
        write_tensors(tmp_path / "other", [("a", torch.complex64, (4,), lambda: torch.zeros(4))])


def test_a_disk_that_takes_little_at_a_time(tmp_path, monkeypatch):
    """A write may take less than it is given."""

    class Slow:
        def __init__(self, path: Path) -> None:
            self.file = open(path, "xb", buffering=0)  # noqa: SIM115

        def __enter__(self):
            return self

        def __exit__(self, *of_it):
            self.file.close()

        def fileno(self) -> int:
            return self.file.fileno()

        def write(self, data: memoryview) -> int:
            return self.file.write(data[:7])

    tensors, path = of_all_types(), tmp_path / "file"
    monkeypatch.setattr(sums, "open", lambda path, mode, buffering: Slow(path), raising=False)
    stored = write_tensors(path, items(tensors))
    assert first_damage(path, stored) is None
    assert set(load_file(path)) == set(tensors)

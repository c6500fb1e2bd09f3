"""The samples of an emitted script: those that `train` takes, in its order, from every format."""

from __future__ import annotations

import importlib.util
import json
import struct
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from scalewright.data import packing
from scalewright.data.dataset import open_data
from scalewright.emit.scripts.model import SAMPLES
from scalewright.spec.run import DataSpec

SEQ_LEN = 16
SHAPES = [(True, True), (True, False), (False, True), (False, False)]  # packing, document_mask


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    path = tmp_path_factory.mktemp("emitted") / "samples.py"
    path.write_text(SAMPLES, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("samples", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tokens(documents: int, seed: int) -> list[np.ndarray[Any, Any]]:
    random = np.random.default_rng(seed)
    return [np.append(random.integers(1, 99, random.integers(1, 60)), 0) for _ in range(documents)]


def sources(folder: Path) -> dict[str, dict[str, Any]]:
    """A source of every format."""
    ours, raw, pair = folder / "ours" / "train", folder / "raw", folder / "pair"
    for entry in (ours, raw, pair):
        entry.mkdir(parents=True)
    np.save(folder / "stream.npy", np.concatenate(tokens(40, 1)).astype(np.uint16))
    np.save(folder / "rows.npy", np.random.default_rng(2).integers(0, 99, (12, 21)).astype(np.int32))
    np.concatenate(tokens(30, 3)).astype("<u2").tofile(raw / "train.bin")
    np.concatenate(tokens(9, 4)).astype("<u2").tofile(raw / "val.bin")
    shards = [tokens(25, 5), tokens(10, 6)]
    entries = []
    for number, shard in enumerate(shards):
        flat = np.concatenate(shard).astype("<u2")
        flat.tofile(ours / f"tokens-{number:05d}.bin")
        entries.append({"file": f"tokens-{number:05d}.bin", "tokens": len(flat), "bytes": flat.nbytes, "sha256": ""})
    lengths = [len(document) for shard in shards for document in shard]
    np.cumsum([0, *lengths]).astype("<i8").tofile(ours / "documents.bin")
    index = {"file": "documents.bin", "bytes": 8 * (len(lengths) + 1), "sha256": ""}
    (ours / "metadata.json").write_text(json.dumps({"dtype": "uint16", "shards": entries, "index": index, "eod": 0}))
    document = tokens(20, 7)
    np.concatenate(document).astype("<i4").tofile(pair / "a.b.bin")
    sizes = np.array([len(d) for d in document], "<i4")
    places = np.append(0, np.cumsum(sizes)[:-1] * 4).astype("<i8")
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, len(sizes), len(sizes))
    (pair / "a.b.idx").write_bytes(
        head + sizes.tobytes() + places.tobytes() + np.arange(len(sizes)).astype("<i8").tobytes()
    )
    return {
        "stream": {"path": str(folder / "stream.npy"), "eod": 0},
        "rows": {"path": str(folder / "rows.npy")},
        "raw": {"path": str(raw), "format": "uint16", "eod": 0},
        "pair": {"path": str(pair / "a.b")},
        "ours": {"path": str(folder / "ours")},
    }


def compare(samples: ModuleType, data: DataSpec, split: str, count: int) -> None:
    given = data.train if split == "train" else data.valid
    foreign = samples.Samples(
        [(s.path, s.weight, s.format, s.eod) for s in given], data.seq_len, 11, split, data.packing, data.document_mask
    )
    ours = open_data(data, split, seed=11)
    assert len(ours) == foreign.count
    batch = ours.batch(range(count))
    for index in range(count):
        row = foreign[index]
        for mine, other in zip((batch.tokens, batch.targets, batch.positions), row, strict=True):
            assert (mine[index] == other).all(), index


@pytest.mark.parametrize(("packed", "masked"), SHAPES)
def test_every_format_gives_the_samples_of_train(
    samples: ModuleType, tmp_path: Path, packed: bool, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scalewright.data.readers.open_shards", lambda folder: _unchecked(folder))
    for source in sources(tmp_path).values():
        data = DataSpec.parse(
            {"train": source, "valid": source, "seq_len": SEQ_LEN, "packing": packed, "document_mask": masked}
        )
        compare(samples, data, "train", 200)  # more than an epoch
        if "ours" not in source["path"]:
            compare(samples, data, "valid", 30)


def test_mixtures_and_runs_of_documents(samples: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalewright.data.readers.open_shards", lambda folder: _unchecked(folder))
    every = sources(tmp_path)
    weighted = [{**every["stream"], "weight": 3}, {**every["raw"], "weight": 0.7}, {**every["pair"], "weight": 1.3}]
    data = DataSpec.parse({"train": weighted, "valid": weighted, "seq_len": SEQ_LEN})
    compare(samples, data, "train", 300)
    compare(samples, data, "valid", 60)
    monkeypatch.setattr(packing, "MAX_UNITS", 7)  # documents are shuffled in runs of six
    monkeypatch.setattr(samples, "UNITS", 7)
    compare(samples, data, "train", 100)


def _unchecked(folder: Path) -> Any:
    """A split as its metadata has it, whose checksums nobody wrote."""
    from scalewright.data.tokens import TokenFile, TokenStore

    data = json.loads((folder / "metadata.json").read_text())
    files = tuple(TokenFile(folder / e["file"], np.dtype("<u2"), e["tokens"]) for e in data["shards"])
    return TokenStore(files, np.fromfile(folder / "documents.bin", "<i8"), data["eod"])

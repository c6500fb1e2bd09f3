"""A checkpoint in an S3 store, read on another layout: what comes are the pieces that the boxes lie in."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from object_store import BUCKET, s3, server  # noqa: F401 - fixtures
from scalewright.checkpoint import sums
from scalewright.checkpoint.read import CheckpointReader
from scalewright.checkpoint.save import draft, save
from scalewright.checkpoint.store import bring as bring_module
from scalewright.checkpoint.store.bring import bring
from scalewright.parallel.weights import Weight, Weights
from scalewright.spec.errors import UserError
from scalewright.spec.placement import Placement
from scalewright.spec.tensors import TensorSpec
from scalewright.storage.objects import Store, open_store
from worlds import one_rank

PIECE = 1 << 16  # of the test's checkpoint; 64 MiB of a run's
ROWS, COLUMNS = 256, 512  # 8 pieces a tensor of fp32
URL = f"s3://{BUCKET}/run"


@pytest.fixture
def saved(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:  # noqa: F811
    """Three tensors in one file, in the store; and as they were."""
    monkeypatch.setattr(sums, "PIECE", PIECE)
    mesh, tensors, items = one_rank()[0], {}, []
    for name in ("a.weight", "b.weight", "c.weight"):
        tensors[name] = torch.randn(ROWS, COLUMNS)
        parameter = nn.Parameter(tensors[name])
        placement = Placement(TensorSpec(name, (ROWS, COLUMNS), "plain", 0), (0,), (), (), ())
        items.append(Weight(placement, parameter, parameter, ((0, 0), (ROWS, COLUMNS)), 1))
    numbers: dict[str, Any] = {"step": 1, "samples": 1}
    more: dict[str, Any] = {"run_id": "r", "model": {}, "layout": {}, "state": numbers}
    folder = save(draft(tmp_path / "checkpoints", Weights(items), {}, mesh, **numbers, **more), mesh)
    store = open_store(URL)
    for path in folder.iterdir():
        with path.open("rb") as file:
            store.put(f"checkpoints/{folder.name}/{path.name}", file)
    return tensors


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of every range of a file of tensors."""
    sizes: list[int] = []
    real = Store.get_range

    def get_range(store: Store, name: str, start: int, length: int) -> bytes:
        if name.endswith(".safetensors"):
            sizes.append(length)
        return real(store, name, start, length)

    monkeypatch.setattr(Store, "get_range", get_range)
    return sizes


def reader() -> CheckpointReader:
    """That of a process that begins."""
    bring_module._brought.cache_clear()
    bring_module._LATER.clear()
    return CheckpointReader(bring(URL, states=True, later=True))


def test_a_rank_fetches_the_pieces_that_its_boxes_lie_in(saved, fetched, tmp_path):
    """Half of a tensor's rows, as a rank of two reads them: 1 + 5 pieces of 25 (24% of the file)."""
    half = (ROWS // 2, 0), (ROWS // 2, COLUMNS)
    first = reader()
    assert torch.equal(first.read("b.weight", half), saved["b.weight"][ROWS // 2 :])
    whole = first.manifest.files["model-00000-000.safetensors"].bytes
    assert sum(fetched) == 6 * PIECE
    assert sum(fetched) < 0.25 * whole
    fetched.clear()
    assert torch.equal(reader().read("b.weight", half), saved["b.weight"][ROWS // 2 :])  # another rank of the node
    assert not fetched
    columns = (0, 8), (ROWS, 4)  # a cut of columns lies in all rows
    assert torch.equal(first.read("a.weight", columns), saved["a.weight"][:, 8:12])
    assert sum(fetched) == 8 * PIECE
    names = {path.name for path in (tmp_path / "cache").rglob("*.safetensors")}
    assert not any(name.startswith("model") for name in names)  # no file with holes under a whole one's name
    for name, tensor in saved.items():
        assert torch.equal(first.read(name), tensor)
    assert sum(fetched) + 6 * PIECE == whole  # every byte once


def test_a_damaged_piece_is_found_when_it_is_wanted(saved, tmp_path):
    (path,) = (tmp_path / "checkpoints").rglob("model-*.safetensors")
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with path.open("rb") as file:
        open_store(URL).put(f"checkpoints/{path.parent.name}/{path.name}", file)
    shutil.rmtree(tmp_path / "checkpoints")
    last = reader()
    assert torch.equal(last.read("a.weight"), saved["a.weight"])
    with pytest.raises(UserError, match=r"model-00000-000\.safetensors is damaged in bytes 1,5"):
        last.read("c.weight")

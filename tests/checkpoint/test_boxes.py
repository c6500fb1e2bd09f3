"""Boxes in, boxes out: what any layout saved, any other reads, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from runs import MODEL, assert_same_bits, weights
from scalewright.checkpoint import write
from scalewright.checkpoint.format import committed, read_manifest
from scalewright.checkpoint.read import CheckpointReader, find_checkpoint
from scalewright.checkpoint.save import draft, save
from scalewright.checkpoint.verify import commit_text, verify
from scalewright.model.init import init_tensor
from scalewright.parallel.mesh import Mesh, make_mesh
from scalewright.parallel.parallelize import Parallel, fill, parallelize
from scalewright.parallel.stages import cut_stages
from scalewright.spec.errors import UserError
from scalewright.spec.grid import make_grid
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import place
from scalewright.spec.run import OptimizerSpec
from scalewright.spec.tensors import tensors
from scalewright.train.network import checkpoint_source, load_python
from scalewright.train.optimizer import build_optimizer
from scalewright.train.state.optimizer_state import gather_numbers, read_states, write_states
from worlds import CPU, one_rank, run_world

SPEC = ModelSpec.parse({**MODEL, "tie_word_embeddings": True, "qkv_bias": True})
LAYOUTS: dict[str, dict[str, Any]] = {
    "1": {"devices": 1},
    "2-zero0": {"devices": 2, "zero_stage": 0},
    "2-zero3": {"devices": 2, "zero_stage": 3},
    "3-zero3": {"devices": 3, "zero_stage": 3},
    "4-zero3": {"devices": 4, "zero_stage": 3},
    "4-hsdp1": {"devices": 4, "zero_stage": 1, "dp_replicate": 2},
    "4-tp2-zero2": {"devices": 4, "tp": 2, "zero_stage": 2},  # 67 words over 2 x 2: padded, then cut
    "4-tp4": {"devices": 4, "tp": 4, "zero_stage": 0},  # two KV heads, each on two ranks
    "2-pp2": {"devices": 2, "pp": 2, "zero_stage": 0, "global_batch": 2},  # a tied head apart
    "4-pp2-zero3": {"devices": 4, "pp": 2, "zero_stage": 3, "global_batch": 4},
    "2-zero3-offload": {"devices": 2, "zero_stage": 3, "offload": "parameters"},
    "2-zero0-offload": {"devices": 2, "zero_stage": 0, "offload": "optimizer"},
}


def with_heads(mesh: Mesh, layout: Layout) -> Mesh:
    """The mesh that knows where ranks share a KV head."""
    return make_mesh(make_grid(layout, SPEC.kv_heads), mesh.rank, CPU)


def build(mesh: Mesh, layout: Layout) -> tuple[Parallel, torch.optim.Optimizer]:
    with torch.device("meta"):
        model = cut_stages(SPEC, layout, mesh.index("pp"))
    parallel = parallelize(model, place(SPEC, layout), layout, mesh, bf16=False)
    return parallel, build_optimizer(OptimizerSpec(), parallel.weights, load_python, mesh)


def whole(name: str, shape: tuple[int, ...], salt: int) -> Tensor:
    """Numbers that name their tensor and their place in it."""
    seed = sum(name.encode()) * 7 + salt
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def write_out(mesh: Mesh, parallel: Parallel, optimizer: torch.optim.Optimizer, root: Path, step: int) -> None:
    states, numbers = read_states(optimizer, parallel.weights)
    numbers, _ = gather_numbers(numbers, parallel.weights, mesh)
    drafted = draft(
        root, parallel.weights, states, mesh, step=step, samples=step, run_id="r",
        model=SPEC.dump(), layout={}, state={"step": step, "optimizer": numbers},
    )  # fmt: skip
    save(drafted, mesh)


def make(mesh: Mesh, layout: Layout, root: str) -> None:
    """A checkpoint of weights and AdamW's state, as three updates would leave it."""
    mesh = with_heads(mesh, layout)
    parallel, optimizer = build(mesh, layout)
    fill(parallel.weights, lambda t, box: cut(whole(t.name, t.shape, 0), box))
    salt = {"exp_avg": 1, "exp_avg_sq": 2}

    def state(kind: str, weight: Any) -> Tensor:
        return cut(whole(weight.name, weight.placement.tensor.shape, salt[kind]), weight.box)

    write_states(optimizer, parallel.weights, salt, state, {"step": {"*": 3.0}})
    write_out(mesh, parallel, optimizer, Path(root), 3)


def cut(tensor: Tensor, box: Any) -> Tensor:
    return tensor[tuple(slice(o, o + s) for o, s in zip(*box, strict=True))].clone()


def copy(mesh: Mesh, layout: Layout, source: str, target: str) -> None:
    """Reads a checkpoint under this layout, and saves it again."""
    mesh = with_heads(mesh, layout)
    parallel, optimizer = build(mesh, layout)
    reader = CheckpointReader(find_checkpoint(source))
    fill(parallel.weights, checkpoint_source(reader))
    write_states(
        optimizer,
        parallel.weights,
        reader.optimizer_states(),
        lambda kind, w: reader.read(f"optimizer/{kind}/{w.name}", w.box, w.placement.tensor.shape),
        reader.state["optimizer"],
    )
    write_out(mesh, parallel, optimizer, Path(target), 4)


def on(layout: dict[str, Any], target: Any, *arguments: str) -> None:
    if layout["devices"] == 1:
        target(*one_rank(), *arguments)
    else:
        run_world(target, layout, *arguments)


FAST = [
    ("1", ["2-zero0", "4-zero3"]),
    ("2-zero3", ["1", "3-zero3"]),
    ("4-tp2-zero2", ["2-pp2"]),
    ("4-pp2-zero3", ["4-tp2-zero2", "2-zero3-offload"]),
]
ALL = [pytest.param(first, list(LAYOUTS), marks=pytest.mark.slow) for first in LAYOUTS]


@pytest.mark.parametrize(("first", "others"), [*FAST, *ALL])
def test_any_layout_reads_what_any_other_wrote(tmp_path, first, others):
    """Weights and optimizer state, whole tensors compared bit for bit with what they were made of."""
    on(LAYOUTS[first], make, str(tmp_path / "first"))
    expected = {t.name: whole(t.name, t.shape, 0) for t in tensors(SPEC)}
    for t in tensors(SPEC):
        for kind, salt in (("exp_avg", 1), ("exp_avg_sq", 2)):
            expected[f"optimizer/{kind}/{t.name}"] = whole(t.name, t.shape, salt)
    assert_same_bits(weights(tmp_path / "first", optimizer=True), expected)
    for layout in others:
        target = str(tmp_path / f"to-{layout}")
        on(LAYOUTS[layout], copy, str(tmp_path / "first"), target)
        assert_same_bits(weights(target, optimizer=True), expected)
        assert CheckpointReader(find_checkpoint(target)).state["optimizer"] == {"step": {"*": 3.0}}
        assert verify(find_checkpoint(target)) == []


@pytest.mark.parametrize("layout", ["4-hsdp1", "4-tp4", "2-pp2", "4-pp2-zero3"])
def test_what_many_hold_one_writes(tmp_path, layout):
    """Copies over dp_replicate, over tp, of KV heads, and at both ends of a pipeline; no padding."""
    on(LAYOUTS[layout], make, str(tmp_path))
    for name, stored in read_manifest(find_checkpoint(tmp_path)).tensors.items():
        written = sum(torch.Size(box.size).numel() for box in stored.boxes)
        assert written == torch.Size(stored.shape).numel(), name


def test_every_number_is_written_once(tmp_path):
    """Replicas share the work: no box is in two files, and each writes about half."""
    on({"devices": 2, "zero_stage": 0}, make, str(tmp_path))
    manifest = read_manifest(find_checkpoint(tmp_path))
    for stored in manifest.tensors.values():
        assert sum(torch.Size(box.size).numel() for box in stored.boxes) == torch.Size(stored.shape).numel()
    sizes = [file.bytes for name, file in manifest.files.items() if name.startswith("model-")]
    assert len(sizes) == 2
    assert min(sizes) > 0.4 * sum(sizes)


@pytest.mark.parametrize(
    "box",
    [
        ((0, 0), (67, 24)),
        ((16, 0), (2, 24)),  # across the first rank's end
        ((5, 3), (50, 11)),  # across all of them, and columns
        ((66, 23), (1, 1)),
        ((67, 0), (0, 24)),  # nothing
    ],
)
def test_any_box_of_a_tensor(tmp_path_factory, box):
    root = tmp_path_factory.getbasetemp() / "boxes"
    if not root.exists():
        on({"devices": 4, "zero_stage": 3}, make, str(root))
    reader = CheckpointReader(find_checkpoint(root))
    name = "embed.weight"
    assert torch.equal(reader.read(name, box), cut(whole(name, (67, 24), 0), box))


def test_what_is_not_there(tmp_path):
    on({"devices": 1}, make, str(tmp_path))
    reader = CheckpointReader(find_checkpoint(tmp_path))
    with pytest.raises(UserError, match=r"no tensor 'embed\.wieght'.*embed\.weight"):
        reader.read("embed.wieght")
    with pytest.raises(UserError, match=r"is \[67, 24\] in the checkpoint but \[60, 24\] in the model"):
        reader.read("embed.weight", shape=(60, 24))
    manifest = tmp_path / "step-00000003" / "manifest.json"
    data = json.loads(manifest.read_text())
    boxes = data["files"]["model-00000-000.safetensors"]["boxes"]
    (norms,) = [entry for entry in boxes if "norm.weight" in entry["names"]]
    norms["size"] = [9]
    manifest.write_text(json.dumps(data))
    with pytest.raises(UserError, match=r"manifest\.json has \d+ bytes instead of"):
        CheckpointReader(manifest.parent)
    (manifest.parent / "COMMIT").write_text(commit_text(manifest.parent, 3))
    with pytest.raises(UserError, match=r"'norm.weight' is not covered"):
        CheckpointReader(tmp_path / "step-00000003").read("norm.weight")


def test_large_tensors_are_spread_over_files(tmp_path, monkeypatch):
    monkeypatch.setattr(write, "FILE_BYTES", 8_000)
    on({"devices": 1}, make, str(tmp_path))
    files = read_manifest(find_checkpoint(tmp_path)).files
    assert len([name for name in files if name.startswith("model-00000-")]) > 2
    assert verify(find_checkpoint(tmp_path)) == []
    assert torch.equal(weights(tmp_path)["embed.weight"], whole("embed.weight", (67, 24), 0))


def test_a_folder_without_commit_does_not_exist(tmp_path):
    on({"devices": 1}, make, str(tmp_path))
    folder = tmp_path / "step-00000003"
    (folder / "COMMIT").rename(folder / "COMMIT.tmp")
    assert committed(tmp_path) == []
    with pytest.raises(UserError, match="no finished checkpoint"):
        find_checkpoint(tmp_path)
    with pytest.raises(UserError, match="it has no COMMIT"):
        CheckpointReader(folder)


def test_the_files_hold_no_code(tmp_path):
    """safetensors and JSON alone: nothing that a reader would have to execute."""
    on({"devices": 1}, make, str(tmp_path))
    names = {path.name for path in (tmp_path / "step-00000003").iterdir()}
    assert names == {
        "COMMIT",
        "manifest.json",
        "state.json",
        "model-00000-000.safetensors",
        "optimizer-00000-000.safetensors",
    }
    assert init_tensor(tensors(SPEC)[0], SPEC, 0).shape == (67, 24)

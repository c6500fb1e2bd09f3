"""A rank's beginning: which device is its own, and what its process was told before torch looks.

The look before the first step: nothing moves where all is right, and a planted leak is found.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from runs import run_data
from scalewright.launch.rank import RankContext
from scalewright.model.init import init_box
from scalewright.model.visible import first_keys
from scalewright.parallel import context
from scalewright.parallel.mesh import Mesh, make_mesh
from scalewright.parallel.parallelize import fill, parallelize
from scalewright.parallel.stages import cut_stages
from scalewright.spec.errors import RunError, UserError
from scalewright.spec.grid import make_grid
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import place
from scalewright.train import worker
from scalewright.train.loss import build_loss
from scalewright.train.network import load_python
from scalewright.train.resolve import read_run, resolve
from scalewright.train.run import enter
from scalewright.train.start import Start
from scalewright.train.worker import check_leaks, own_device
from worlds import CPU, run_world


@pytest.mark.parametrize(
    ("local_rank", "shown", "device"),
    [(0, 8, "cuda:0"), (3, 8, "cuda:3"), (3, 1, "cuda:0")],
    ids=["first", "fourth", "a starter that shows one each"],
)
def test_a_rank_has_a_gpu_of_its_own(monkeypatch, local_rank, shown, device):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: shown)
    assert own_device("cuda", RankContext(local_rank, 8, local_rank, 8)) == torch.device(device)


def test_more_ranks_than_gpus_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    with pytest.raises(UserError, match=r"rank 13 is number 5 \(from 0\) of a node that shows it 4 GPUs"):
        own_device("cuda", RankContext(13, 16, 5, 8))


def test_a_cpu_has_no_number(monkeypatch):
    assert own_device("cpu", RankContext(3, 8, 3, 8)) == torch.device("cpu")


@pytest.mark.parametrize("asked", [True, False])
def test_each_rank_settles_its_own_environment(monkeypatch, tmp_path, asked):
    """The fork server's environment is older than the run, and workers inherit that."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # which is put back afterwards, and then taken away
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    monkeypatch.setattr(worker, "work", lambda *_, **__: os.environ.get("CUBLAS_WORKSPACE_CONFIG"))
    run = read_run(run_data(tmp_path, deterministic=asked), [])
    assert enter(RankContext(), Start(resolve(run), "cpu", quiet=True)) == (":4096:8" if asked else None)


MODEL = {
    "vocab_size": 67, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


def probed(mesh: Mesh, layout: Layout, leaks: bool) -> str:
    """What the probe raises on this rank; empty for nothing."""
    model = ModelSpec.parse(MODEL)
    mesh = make_mesh(make_grid(layout, model.kv_heads), mesh.rank, CPU)
    with torch.device("meta"):
        stages = cut_stages(model, layout, mesh.index("pp"))
    parallel = parallelize(stages, place(model, layout), layout, mesh, bf16=False, seq_len=32)
    fill(parallel.weights, lambda t, box: init_box(t, model, 0, *box))
    loss = build_loss("cross_entropy", 0.0, load_python, mesh, model.vocab_size)
    patch = pytest.MonkeyPatch()
    if leaks:
        patch.setattr(context, "first_keys", lambda index, _, *more: first_keys(index, None, *more))
    try:
        check_leaks(parallel, mesh, loss, layout.micro_batch, 32, model.vocab_size)
    except RunError as error:
        return str(error)
    finally:
        patch.undo()
    return ""


@pytest.mark.parametrize("leaks", [False, True])
@pytest.mark.parametrize("axes", [{"cp": 2}, {"cp": 2, "pp": 2}, {"cp": 2, "tp": 2, "zero_stage": 3}], ids=str)
def test_a_leak_between_documents_is_found(axes: dict[str, Any], leaks: bool):
    """On every rank: none trains on while another has stopped."""
    devices = axes.get("cp", 1) * axes.get("pp", 1) * axes.get("tp", 1)
    layout = {"devices": devices, "micro_batch": 2, "global_batch": 4, "precision": "fp32", **axes}
    errors = run_world(probed, layout, leaks)
    assert all(("tokens see other documents" in error) == leaks for error in errors)

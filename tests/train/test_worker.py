"""A rank's beginning: which device is its own, and what its process was told before torch looks."""

from __future__ import annotations

import os

import pytest
import torch

from runs import run_data
from scalewright.launch.rank import RankContext
from scalewright.spec.errors import UserError
from scalewright.train import worker
from scalewright.train.resolve import read_run, resolve
from scalewright.train.run import enter
from scalewright.train.start import Start
from scalewright.train.worker import own_device


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

"""Saves beside training: the files of a synchronous save, of that step, whatever happens meanwhile."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from runs import wait_for
from scalewright.checkpoint.asynchronous import AsyncSaver
from scalewright.checkpoint.format import committed, read_state
from scalewright.checkpoint.read import CheckpointReader
from scalewright.checkpoint.save import Draft, draft, save
from scalewright.checkpoint.verify import Retention, superfluous, verify
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.weights import Weight, Weights
from scalewright.spec.errors import RunError
from scalewright.spec.placement import Placement
from scalewright.spec.tensors import TensorSpec
from worlds import one_rank


class Made:
    """A tensor that is made when it is written (an optimizer's bytes, as fp32)."""

    dtype = torch.float32

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __call__(self) -> Tensor:
        return self.tensor.float() / 2


class Training:
    """Weights, one of them padded; states of two kinds, two names of one storage, buffers, a tensor of the rank."""

    def __init__(self, mesh: Mesh | None = None, copies: tuple[str, ...] = ()) -> None:
        self.mesh: Mesh = mesh or one_rank()[0]
        items = []
        shapes = {"a.weight": (5, 3), "b.weight": (4,), "none.weight": (0, 3)}
        for name, shape in shapes.items():
            padded = (6, 3) if name == "a.weight" else shape
            parameter = nn.Parameter(torch.randn(padded))
            placement = Placement(TensorSpec(name, shape, "plain", 0), (0,), (), (), copies)
            items.append(Weight(placement, parameter, parameter, ((0,) * len(shape), shape), 1))
        self.weights = Weights(items)
        self.bytes = torch.randint(0, 255, (6, 3), dtype=torch.uint8)
        self.shared = torch.randn(4).bfloat16()
        self.buffers = {"mean": torch.randn(3), "calls": torch.tensor(7)}
        self.buffers["angles"] = torch.randn(2, dtype=torch.complex64)
        self.of_rank = {"error": torch.randn(2, 2)}

    def draft(self, root: Path, step: int, **keys: Any) -> Draft:
        states = {"a.weight": {"m": Made(self.bytes)}, "b.weight": {"m": self.shared, "v": self.shared}}
        return draft(
            root, self.weights, states, self.mesh, step=step, samples=step, run_id="r", model={}, layout={},
            state={"step": step, "samples": step}, buffers=self.buffers, of_rank=self.of_rank, **keys,
        )  # fmt: skip

    @torch.no_grad()
    def step(self) -> None:
        """Changes every number in place."""
        for tensor in [w.master for w in self.weights] + [self.shared, *self.buffers.values(), *self.of_rank.values()]:
            tensor.add_(1)
        self.bytes.add_(1)


@pytest.fixture
def saver() -> Iterator[AsyncSaver]:
    saver = AsyncSaver(one_rank()[0], apart=True, limit_s=20.0)
    yield saver
    saver.close()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_the_files_are_those_of_a_synchronous_save_of_that_step(tmp_path, saver):
    """Three times through the same memory, with an update as soon as `begin` is back."""
    training = Training()
    handles = None
    for step in (1, 2, 3):
        control = save(training.draft(tmp_path / "control", step), training.mesh)
        assert saver.begin(training.draft(tmp_path / "beside", step)) == ""
        training.step()
        saver.settle()
        (outcome,) = saver.news()
        assert (outcome.step, outcome.problem) == (step, "")
        folder = committed(tmp_path / "beside")[0]
        assert contents(folder) == contents(control)
        assert verify(folder) == []
        assert handles in (None, saver.snapshot.handles)  # the memory is kept
        handles = saver.snapshot.handles
    assert [path.name for path in committed(tmp_path / "beside")] == ["step-00000003", "step-00000002"]


def test_memory_follows_what_is_saved(tmp_path, saver):
    """The first save may come before an optimizer has states."""
    training = Training()
    for step, of_rank in ((1, {}), (2, {"error": torch.arange(9.0)})):
        training.of_rank = of_rank
        saver.begin(training.draft(tmp_path, step))
        saver.settle()
    assert CheckpointReader(committed(tmp_path)[0]).read("rank/00000/error").tolist() == list(range(9))


def test_numbers_that_are_not_finite_are_named(tmp_path, saver):
    training = Training()
    with torch.no_grad():
        training.weights.items[1].master[2] = torch.nan
    saver.begin(training.draft(tmp_path, 1))
    saver.settle()
    state = read_state(committed(tmp_path)[0])
    assert (state["finite"], state["nonfinite"]) == (False, ["b.weight"])


def test_a_writer_that_is_killed_costs_the_save_alone(tmp_path, saver):
    training = Training()
    saver.begin(training.draft(tmp_path, 1))
    saver.settle()
    assert saver.writer.pid is not None
    os.kill(saver.writer.pid, signal.SIGSTOP)  # it takes the job, and doesn't come to it
    saver.begin(training.draft(tmp_path, 2))
    os.kill(saver.writer.pid, signal.SIGKILL)
    saver.settle()
    ends = list(saver.news())
    assert ends[0].problem == ""
    assert "SIGKILL" in ends[1].problem
    assert "older checkpoints are kept" in ends[1].problem
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    assert saver.failures == 1
    saver.begin(training.draft(tmp_path, 3))
    saver.settle()
    assert [outcome.problem for outcome in saver.news()] == [""]
    assert saver.failures == 0


def test_a_writer_that_does_not_move_is_given_up(tmp_path):
    saver = AsyncSaver(one_rank()[0], apart=True, limit_s=0.3)
    try:
        saver.writer.start()
        assert saver.writer.pid is not None
        os.kill(saver.writer.pid, signal.SIGSTOP)
        saver.begin(Training().draft(tmp_path, 1))
        saver.settle()
        (outcome,) = saver.news()
        assert "longer than 0.3 s" in outcome.problem
        assert saver.writer.pid is None
    finally:
        saver.close()


def test_a_save_under_way_is_collected_once_all_are_done(tmp_path, saver):
    saver.begin(Training().draft(tmp_path, 1))
    assert saver.under_way
    wait_for(lambda: saver.written)
    saver.collect()
    assert not saver.under_way
    assert saver.unsettled
    saver.settle()
    assert not saver.unsettled
    assert len(committed(tmp_path)) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_commit_that_is_ended_is_no_success(tmp_path, saver, monkeypatch):
    """By something that is no Exception, as an exit in a thread; threading is silent about that."""

    def leave(*_: object) -> None:
        raise SystemExit

    monkeypatch.setattr(Draft, "finish", leave)
    saver.begin(Training().draft(tmp_path, 1))
    saver.settle()
    assert [outcome.problem for outcome in saver.news()] == ["cannot save step-00000001: its commit was ended"]
    assert saver.failures == 1
    assert committed(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_told_at_once(tmp_path, saver):
    (tmp_path / "root").write_text("a file")
    with pytest.raises(RunError, match="cannot save step-00000001"):
        saver.begin(Training().draft(tmp_path / "root", 1))
    assert not saver.unsettled


def test_without_memory_nothing_begins(tmp_path, saver, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError("no memory")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    assert saver.begin(Training().draft(tmp_path, 1)) == "no memory (rank 0)"
    assert not saver.unsettled
    assert saver.failures == 1


# -- which are kept -----------------------------------------------------------------------------------


def test_which_stay(tmp_path):
    """The newest finite ones, multiples, the best of those that were validated; sync and async alike."""
    training, losses = Training(), {2: 3.0, 3: 1.5, 4: 2.0, 6: 1.75, 7: float("nan")}
    for step in range(1, 9):
        drafted = training.draft(tmp_path, step, kept=Retention(100))
        drafted.state["valid_loss"] = losses.get(step)
        save(drafted, training.mesh)
    steps = {
        (1, 0, 0): [8], (2, 0, 0): [7, 8], (1, 3, 0): [3, 6, 8], (1, 0, 2): [3, 6, 8], (1, 4, 3): [3, 4, 6, 8],
        (2, 5, 9): [2, 3, 4, 5, 6, 7, 8],
    }  # fmt: skip
    folders = committed(tmp_path)
    for kept, expected in steps.items():
        stay = set(folders) - set(superfluous(folders, Retention(*kept)))
        assert sorted(int(folder.name.split("-")[1]) for folder in stay) == expected, kept
    assert json.loads((folders[0] / "state.json").read_text())["valid_loss"] is None

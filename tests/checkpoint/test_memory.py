"""Steps in a node's memory: what a restart finds there is the checkpoint that a save would have written."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoint.test_asynchronous import Training, contents
from scalewright.checkpoint import memory
from scalewright.checkpoint.save import save
from scalewright.checkpoint.verify import verify

pytestmark = pytest.mark.skipif(not memory.SHARED.is_dir(), reason="keeps steps under /dev/shm")


@pytest.fixture(autouse=True)
def _taken_away(tmp_path: Path) -> Iterator[None]:
    yield
    shutil.rmtree(memory.root_of(tmp_path), ignore_errors=True)


def tier(training: Training, folder: Path) -> memory.MemoryTier:
    return memory.MemoryTier(training.mesh, folder, apart=True, limit_s=20.0)


def test_a_step_is_the_checkpoint_of_that_step(tmp_path):
    """Two sets in turn, numbers that change as soon as a step is kept; then another life, which writes over them."""
    training = Training()
    first = tier(training, tmp_path)
    for step in (1, 2, 3):
        control = save(training.draft(tmp_path / "control", step), training.mesh)
        assert first.begin(training.draft(tmp_path, step)) == ""
        training.step()
    first._wait()
    first.close(clean=False)
    assert memory.newest(tmp_path, {"another run"}) is None
    kept = memory.newest(tmp_path, {"r"})
    assert kept is not None
    assert verify(kept) == []
    assert contents(control).items() <= contents(kept).items()
    second = tier(training, tmp_path)
    left = []
    for step in (4, 5):
        second.begin(training.draft(tmp_path, step))
        left.append(kept.exists())
    assert left == [True, False]  # it went once another step was whole
    second.forget()  # the run went back
    second.close(clean=False)
    assert memory.newest(tmp_path, {"r"}) is None
    third = tier(training, tmp_path)
    third.begin(training.draft(tmp_path, 6))
    third.close(clean=True)
    assert not third.root.exists()


def test_a_part_that_is_missing_or_older_makes_no_checkpoint(tmp_path):
    training = Training()
    kept = tier(training, tmp_path)
    for step in (1, 2):
        kept.begin(training.draft(tmp_path, step))
    kept._wait()
    kept.close(clean=False)
    (kept.root / "set-1" / "part-00000.json").unlink()  # of step 2, not counted to its end
    found = memory.newest(tmp_path, {"r"})
    assert found is not None
    assert found.name == "step-00000001"


def test_no_room_for_the_smallest_file_is_no_end_of_the_run(tmp_path, monkeypatch):
    """Rank 0's head.json alone meets the full memory: all ranks are told, and the run goes on without."""

    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(memory, "write_whole", full)
    kept = tier(training := Training(), tmp_path)
    assert kept.begin(training.draft(tmp_path, 1)) == "No space left on device (rank 0)"
    assert not kept.root.exists()

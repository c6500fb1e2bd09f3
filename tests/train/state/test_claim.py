"""A run's folder that others made: what a run writes there goes through no link out of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from scalewright.spec.errors import UserError
from scalewright.train.state.claim import hold_folder


@pytest.mark.parametrize("name", ["events.jsonl", "metrics.jsonl", "tokenizer.json", "vocab.json"])
@pytest.mark.parametrize("exists", [True, False])
def test_no_link_leads_out_of_the_folder(tmp_path: Path, name: str, exists: bool) -> None:
    run, victim = tmp_path / "run", tmp_path / "victim"
    run.mkdir()
    (run / name).symlink_to(victim)
    if exists:
        victim.write_text("mine\n")
    with pytest.raises(UserError, match="outside its folder"), hold_folder(run):
        pass
    assert victim.exists() == exists


def test_a_link_to_a_folder_of_checkpoints_will_do(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path)
    with hold_folder(tmp_path / "run"):
        assert (tmp_path / "run" / "events.jsonl").exists()


def test_a_folder_that_is_renamed_before_its_lock_is_the_others(tmp_path: Path, monkeypatch) -> None:
    """`resume: never` of another start: its new folder must not be trained in by two."""
    fcntl = pytest.importorskip("fcntl")
    lock, run = fcntl.flock, tmp_path / "run"

    def lock_late(file: Any, how: int) -> None:
        if new:
            run.rename(tmp_path / "run.old-1")
            run.mkdir()
            (run / "events.jsonl").touch() if new.pop() else None
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    for there in (True, False):
        new = [there]
        with pytest.raises(UserError, match="another process is training there"), hold_folder(run):
            pass
        shutil.rmtree(tmp_path / "run.old-1")
    with hold_folder(run):
        pass

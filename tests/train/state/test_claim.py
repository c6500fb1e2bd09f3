"""A run's folder that others made: what a run writes there goes through no link out of it."""

from __future__ import annotations

from pathlib import Path

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

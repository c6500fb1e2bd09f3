"""The scripts about checkpoints: they run, and their numbers are those of the format."""

from __future__ import annotations

import os
import sys

import pytest


@pytest.mark.slow
def test_scale(script):
    data, text = script("checkpoint_scale.py", "--quick", "--parts", "metadata", "files")
    before, after = data["metadata"]["before"], data["metadata"]["after"]
    assert after["boxes"] == 8 * 3 * 723  # ranks, weights and moments, tensors of Llama 3.1 70B
    for key in ("bytes a rank", "bytes to rank 0", "manifest"):
        assert 0 < 4 * after[key] < before[key], key
    assert data["files"]["seconds"].keys() == {"before", "after", "torch.save", "verify"}
    assert "| bytes to rank 0" in text
    assert data["finished"] >= data["started"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_damage(script):
    data, text = script("checkpoint_damage.py", "--quick")
    assert {row["ended"] for row in data["kills"]} >= {"all ranks, SIGKILL", "rank 3 alone"}
    for row in data["kills"]:
        assert row["points"] == row["older"] + row["newer"] == -(-sum(row["operations"].values()) // 40) > 0
    assert sum(kind["tried"] for kind in data["damages"].values()) == 50
    assert all(kind["found"] == kind["tried"] for name, kind in data["damages"].items() if name != "extra")
    assert data["damages"]["extra"]["found"] == 0
    assert "went on from a whole checkpoint" in text.replace("\n", " ")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="attempts have mounts of their own")
def test_attempts(script, tmp_path):
    """Two of each class hold."""
    data, text = script("attempts.py", "--quick", "--seconds", 800, "--state", tmp_path / "state.jsonl", timeout=890)
    assert len(data["attempts"]) == 2 * text.count(" 2 / 2 | 2 / 2 |") == 14
    assert [row for row in data["attempts"] if row["problem"]] == []

"""The script that times every technique: it runs, and its table holds what it measured."""

from __future__ import annotations


def test_the_script(script):
    name = "devices=2 zero_stage=3"
    data, text = script("step_time.py", "--quick", "--layouts", name)
    assert set(data["times_s"]) == {"one device", name}
    assert all(seconds > 0 for found in data["times_s"].values() for seconds in found)
    row = next(line for line in text.splitlines() if f"`{name}`" in line)
    assert "dp_shard" in row
    assert data["finished"] >= data["started"]

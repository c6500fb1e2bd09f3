"""The script that times the planner: it runs, and its tables hold what it measured."""

from __future__ import annotations

import pytest


@pytest.mark.slow
def test_the_script(script):
    data, text = script("planner_speed.py", "--quick")
    assert data["gpt3-175b"]["space"] > 100_000  # what `train` runs; other layouts are beyond it
    assert f"{data['gpt3-175b']['space']:,}" in text
    assert data["rows of a table"]["many"] == 200
    assert min(data["layouts priced in full"]["cpu_s"]) > 0
    assert data["finished"] >= data["started"]

"""What a dry run of a large model takes: the script that measures it, and its promise, kept by one layout."""

from __future__ import annotations

import pytest


@pytest.mark.slow
def test_the_script(script):
    data, text = script("dry_run_large.py", "--quick")
    found = data["cases"]["quick"]
    assert sum(found["ranks_of_a_kind"]) == found["world"] == 8
    assert found["cpu_s"] > 0.5
    assert found["max_rss_bytes"] > 50e6
    cells = [cell.strip() for cell in text.strip().splitlines()[-1].split("|")]
    assert f"{found['cpu_s']:.0f}" in cells
    assert data["finished"] >= data["started"]


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_70b_on_512_ranks(script):
    """Under two minutes and 8 GB. CPU seconds, since others on a machine make the clock's longer."""
    data, _ = script("dry_run_large.py", "--cases", "dualpipev", timeout=900)
    found = data["cases"]["dualpipev"]
    assert found["layout"]["devices"] == sum(found["ranks_of_a_kind"]) == 512
    assert found["cpu_s"] < 120
    assert found["max_rss_bytes"] < 8e9

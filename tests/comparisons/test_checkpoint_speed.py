"""The script that measures what saves cost: it runs, and the ways differ where they must."""

from __future__ import annotations

import pytest


@pytest.mark.slow
def test_every_way(script):
    data, text = script("checkpoint_speed.py", "--quick", timeout=400)
    ways = {name: part for name, part in data.items() if isinstance(part, dict) and "stalls_s" in part}
    assert len(ways) == 6
    for name, measured in ways.items():
        assert measured["bytes"] == 24 << 20, name
        assert all(0 < stood <= whole for stood, whole in zip(measured["stalls_s"], measured["totals_s"], strict=True))
        assert min(measured["copy_s"], *measured["disk_s"]) > 0
        assert ("at once" in name or name in ("DCP", "torch.save")) == (measured["stalls_s"] == measured["totals_s"])
    assert {name for name, measured in ways.items() if measured["found"]} == {"ours, at once", "ours, beside training"}
    assert ways["ours, beside training"]["memory"] > ways["ours, beside training"]["bytes"]
    assert "of a memory copy" in text

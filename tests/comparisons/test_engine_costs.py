"""The script that measures the engine's parts before and after: it runs, its numbers are the engine's."""

from __future__ import annotations

import pytest


@pytest.mark.slow
def test_the_parts_without_a_compiler(script):
    parts = ("rows", "loss", "roots", "groups", "weights")
    data, text = script("engine_costs.py", "--quick", "--parts", *parts)
    for part in ("rows", "loss", "roots"):  # a short row in documents keeps about what it kept
        assert all(row["before"] > 0.9 * row["after"] > 0 for row in data[part]["rows"] if row["unit"] != "s")
    rows = {row["what"]: row for row in data["groups"]["rows"]}
    splits = rows["70B on 1,024: tp 8, pp 8, ZeRO-1: NCCL's splits of the world"]
    # 6 lanes and ways x 128, tp 128, fsdp and loss 64; now one for each of them
    assert (splits["before"], splits["after"]) == (960, 8)
    files = rows["70B on 1,024: tp 8, pp 8, ZeRO-1: files of Gloo in a rank"]
    assert (files["before"], files["after"]) == (1027, 70)
    assert all(row["before"] >= row["after"] for row in rows.values())
    assert all(row["before"] > 0 and row["after"] > 0 for row in data["weights"]["rows"])
    assert data["finished"] >= data["started"]
    assert "| 1,027 |" in text.replace("  ", " ").replace("  ", " ")


@pytest.mark.slow
def test_the_compiled_collectives(script):
    data, _ = script("engine_costs.py", "--quick", "--parts", "async-tp")
    counts = [(row["before"], row["after"]) for row in data["async-tp"]["rows"]]
    assert counts == [(0, 4), (0, 2)]

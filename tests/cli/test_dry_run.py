"""A dry run's tables fit 80 columns, with every number whole, however many ranks there are."""

from __future__ import annotations

from typing import Any

import pytest

from scalewright.cli.verbs.train import show_dry_run

KINDS = ("parameters", "gradients", "optimizer", "activations", "buffers", "other")


def group(number: int, pp: int, gib: float) -> dict[str, Any]:
    memory = {kind: int(gib * 2**30) for kind in KINDS} | {"peak": int(5.5 * gib * 2**30)}
    sent = [
        {"axis": axis, "kind": kind, "group_size": 64, "count": 1024 + number % 2, "bytes": 10**9 + number}
        for axis in ("dp_shard", "tp", "pp", "control")
        for kind in ("all_reduce", "all_gather")
    ]
    ranks = list(range(64 * number, 64 * number + 64))
    coords = {"pp": pp, "dp_replicate": 0, "dp_shard": 0, "cp": 0, "tp": number % 2, "ep": 0, "etp": 0}
    return {
        "ranks": ranks, "coords": coords, "flops": 123456789012345678, "params_local": 137_438_953,
        "memory_bytes": memory, "memory_at_peak_bytes": memory, "collectives": sent,
    }  # fmt: skip


def test_512_ranks(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    layout = {"pp": 8, "dp_replicate": 1, "tp": 8, "cp": 1, "ep": 1, "zero_stage": 1}
    groups = [group(2 * pp + half, pp, 12.25 if pp in (0, 7) else 10.5) for pp in range(8) for half in (0, 1)]
    document = {
        "layout": layout,
        "world": 1024,
        "groups": groups,
        "notes": ["bf16"],
        "verdict": {"words": "fits"},
        "process_groups": {"groups": 1122, "splits": 9, "most": 12, "sockets": 70},
    }
    show_dry_run(document)
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    text = "\n".join(lines)
    assert "…" not in text
    assert "pp 1-6" in text
    assert "67.38" in text
    assert text.count("all_gather") == 4, "a line a kind, not a line a group of ranks"
    assert "1024 to 1025" in text
    assert lines[-1] == "fits"
    assert "process groups: 1,122 (12 a rank); 9 splits of NCCL; 70 files of Gloo a rank" in lines


def test_one_device_sends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    alone = group(0, 0, 1.0) | {"collectives": []}
    layout = {"pp": 1, "dp_replicate": 1, "tp": 1, "cp": 1, "ep": 1, "zero_stage": 0}
    document = {
        "layout": layout,
        "world": 1,
        "groups": [alone],
        "notes": [],
        "verdict": {"words": "fits"},
        "process_groups": {"groups": 0, "splits": 0, "most": 0, "sockets": 0},
    }
    show_dry_run(document)
    out = capsys.readouterr().out
    assert out.startswith("1 rank, zero_stage 0;")
    assert "nothing is sent" in out
    assert "collective" not in out
    assert "process groups" not in out

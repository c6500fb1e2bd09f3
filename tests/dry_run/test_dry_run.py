"""Dry runs: what they answer, and for whom; their numbers are held against `spec/` and Gloo elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import Answer
from tests.runs import MODEL
from torch import Tensor

from scalewright.dry_run.dry_run import dry_run
from scalewright.spec.errors import UserError


def run_of(layout: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "layout": {"precision": "fp32", **layout},
        "data": {"train": "nowhere", "seq_len": 16, "document_mask": False},
        **changes,
    }


def test_ranks_that_differ_are_apart() -> None:
    document = dry_run(run_of({"devices": 4})).dump()
    # 67 rows over 4 ranks are 17, 17, 17 and 16; 24 and 40 rows divide
    assert [group["ranks"] for group in document["groups"]] == [[0, 1, 2], [3]]
    assert document["world"] == 4
    last = document["groups"][1]
    assert last["coords"]["dp_shard"] == 3
    assert last["params_local"] == document["groups"][0]["params_local"] - 24 * 2  # embedding and head


def test_alone() -> None:
    (group,) = dry_run(run_of({})).dump()["groups"]
    assert group["collectives"] == []
    memory = group["memory_bytes"]
    assert memory["parameters"] == memory["gradients"] == 4 * group["params_local"]
    assert memory["optimizer"] >= 2 * memory["parameters"]
    assert sum(group["memory_at_peak_bytes"].values()) == memory["peak"]


def test_more_micro_batches_send_and_compute_more_and_hold_the_same() -> None:
    groups = [dry_run(run_of({"devices": 2, "global_batch": 2 * n})).dump()["groups"][0] for n in (3, 7)]
    assert groups[0]["flops"] * 7 == groups[1]["flops"] * 3
    inputs = (7 - 3) * 2 * 16 * 8  # tokens and targets of every micro-batch are there from the beginning
    assert groups[0]["memory_bytes"]["peak"] + inputs == groups[1]["memory_bytes"]["peak"]
    sent = [{(c["axis"], c["kind"]): c["bytes"] for c in group["collectives"]} for group in groups]
    for key in (("dp_shard", "all_gather"), ("dp_shard", "reduce_scatter")):
        assert sent[0][key] * 7 == sent[1][key] * 3
    assert sent[0][("control", "all_reduce")] == sent[1][("control", "all_reduce")]


def test_notes_say_what_was_taken_for_granted() -> None:
    notes = " ".join(dry_run(run_of({"precision": "auto"}, cluster="dgx-h100")).notes)
    assert "auto was taken for bf16" in notes
    assert "no data at nowhere" in notes


@pytest.mark.parametrize(("device", "precision"), [("cuda", "bf16"), ("mps", "fp32")])
def test_the_devices_need_not_be_here(device: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = dry_run(run_of({"precision": "auto"}, device=device))
    assert result.run.layout.precision == precision


def test_data_may_be_named_without_their_suffix(tmp_path: Path) -> None:
    for name in ("tokens.bin", "tokens.idx"):
        (tmp_path / name).touch()
    there = {"train": str(tmp_path / "tokens"), "seq_len": 16}
    assert not any("no data" in note for note in dry_run(run_of({}, data=there)).notes)


def test_a_mistake_is_found_as_in_training() -> None:
    with pytest.raises(UserError, match="not divisible by tp 3"):
        dry_run(run_of({"devices": 3, "tp": 3}))


OWN = {
    "loss": {"python": "parts:summed", "scale": 2.0},
    "optimizer": {"python": "parts:momentum", "lr": 1e-3},
    "data": {"python": "parts:Counting", "seq_len": 16},
}


@pytest.mark.parametrize("layout", [{"devices": 4, "zero_stage": 3}, {"devices": 2, "zero_stage": 0}])
def test_parts_of_ones_own(layout: dict[str, Any]) -> None:
    result = dry_run({**run_of(layout), **OWN, "model": {"python": "parts:build"}})
    assert sum(len(group.ranks) for group in result.groups) == layout["devices"]
    kind = "reduce_scatter" if layout["zero_stage"] else "all_reduce"
    for group in result.groups:
        assert ("dp_shard", kind, layout["devices"]) in group.step.traffic
    assert "real numbers" in " ".join(result.notes)


def looks(logits: Tensor, targets: Tensor) -> Tensor:
    return logits.sum() * (2.0 if logits.max().item() > 0 else 1.0)


def test_a_loss_that_looks_at_numbers() -> None:
    with pytest.raises(UserError, match="looks at numbers"):
        dry_run(run_of({}, loss={"python": f"{__name__}:looks"}))


def test_command(tmp_path: Path, call_cli: Callable[..., Answer]) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps(run_of({"devices": 4})))
    answer = call_cli("train", file, "layout.devices=2", "--dry-run", "--json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["world"] == 2
    table = call_cli("train", file, "--dry-run")
    assert table.code == 0, table.err
    for word in ("4 ranks", "dp_shard", "reduce_scatter", "KiB", "peak"):
        assert word in table.out
    assert not (tmp_path / "runs").exists()

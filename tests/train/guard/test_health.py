"""`spike: rewind`: a run that met odd rows and went back is, bit for bit, one that never had them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runs import assert_same_bits, bits, events, merge, rows, run, run_data, weights
from scalewright.spec.errors import UserError

ODD = [[552, 560], [590, 592]]  # of steps 70 and 74; the second are those of 73 when the first are left out
LEFT_OUT = [[552, 560], [584, 592]]
ADAMW = {"name": "adamw", "lr": 1e-2, "clip_norm": 0.0}
ZERO3 = {"devices": 2, "zero_stage": 3, "micro_batch": 2}
OWN = {"model": {"python": "guard_parts:moody"}, "optimizer": {"python": "stateful:Adaptive", "lr": 0.3}}


def spiky(folder: Path, kind: str = "row", odd: Any = ODD, **changes: Any) -> dict[str, Any]:
    """80 steps of 8 rows, saved every 20th."""
    data = {"python": f"spiky:{kind}", "odd": odd, "seq_len": 16, "packing": kind == "stream"}
    guard = {"train": {"steps": 80, "guard": {"spike": "rewind"}}, "checkpoint": {"every": 20}}
    spec = merge(merge({"optimizer": ADAMW}, guard), changes)
    whole = run_data(folder, **spec)
    return {**whole, "data": data, "optimizer": spec["optimizer"]}


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        pytest.param("row", {"layout": {"micro_batch": 4}}, id="one"),
        pytest.param(
            "row",
            {"layout": {"micro_batch": 4}, "checkpoint": {"at_end": True}},
            id="one-saved",
            marks=pytest.mark.slow,
        ),
        pytest.param("stream", {"layout": {"micro_batch": 4}, **OWN}, id="one-own-streamed", marks=pytest.mark.slow),
        pytest.param(
            "stream", {"layout": ZERO3, **OWN, "checkpoint": {"at_end": True}}, id="zero3-own", marks=pytest.mark.slow
        ),
        pytest.param(
            "row",
            {"layout": {"devices": 2, "pp": 2, "zero_stage": 0, "micro_batch": 2}},
            id="pp2",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_it_is_the_run_without_those_rows(tmp_path, kind, changes):
    """Lines, weights, optimizer; also when it is stopped after the rewinds, with a save or without one."""
    known = spiky(tmp_path, kind, **merge(changes, {"train": {"guard": {"leave_out": LEFT_OUT}}}))
    control = run({**known, "out_dir": str(tmp_path / "control")}).out_dir
    assert not events(control, "spike")
    mine = spiky(tmp_path, kind, **changes)
    stopped = run(mine, steps=75).out_dir
    found = [(e["step"], e["action"], e["to"], e["left_out"]) for e in events(stopped, "spike")]
    assert found == [(70, "rewound", 60, LEFT_OUT[0]), (73, "rewound", 60, LEFT_OUT[1])]
    out = run(mine).out_dir
    assert len(events(out, "spike")) == (2 if mine["checkpoint"]["at_end"] else 4)  # from 60 it meets them again
    assert bits(out) == bits(control)
    assert_same_bits(weights(out, optimizer=True), weights(control, optimizer=True))


def test_a_mixture_passes_over_them(tmp_path):
    """Stores, too: step 3 takes what step 4 would have, from both sources; also after a resume."""
    both = [{**run_data(tmp_path)["data"]["train"][0], "weight": weight} for weight in (2, 1)]
    data = run_data(tmp_path, data={"train": both, "seq_len": 16}, checkpoint={"at_end": True})
    plain = run({**data, "out_dir": str(tmp_path / "plain")}, ["train.steps=9"])
    mine = merge(data, {"train": {"steps": 8, "guard": {"leave_out": [[16, 24]]}}})
    run(mine, steps=5)
    hashes = [row["sample_ids_hash"] for row in rows(run(mine).out_dir)]
    control = [row["sample_ids_hash"] for row in rows(plain.out_dir)]
    assert hashes == control[:2] + control[3:]


def test_rewinds_end(tmp_path):
    """Where every row is odd from here on, three batches are left out; then spikes are only skipped."""
    out = run(spiky(tmp_path, odd=[[552, 10_000]], train={"steps": 76})).out_dir
    actions = [event["action"] for event in events(out, "spike")]
    assert actions[:3] == ["rewound"] * 3
    assert set(actions[3:]) == {"skipped"}
    assert "24 samples after step 60 are left out already" in events(out, "spike")[3]["message"]
    assert [row["step"] for row in rows(out)] == [*range(1, 77)]
    assert rows(out)[69]["skipped"]


def test_without_a_checkpoint_it_skips(tmp_path):
    out = run(spiky(tmp_path, checkpoint={"every": 72}, train={"steps": 71})).out_dir
    (event,) = events(out, "spike")
    assert (event["step"], event["action"]) == (70, "skipped")
    assert "there is no checkpoint to go back to" in event["message"]
    assert rows(out)[69]["skipped"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"checkpoint": {"every": 0}}, "checkpoint.every"),
        ({"train": {"guard": {"leave_out": [[8, 8]]}}}, "is no range of samples"),
    ],
)
def test_what_cannot_be(tmp_path, changes, words):
    with pytest.raises(UserError, match=words):
        run(spiky(tmp_path, **changes))


def test_a_damaged_save_is_passed_over_and_set_aside(tmp_path):
    """The newest checkpoint before the spike is damaged: the run goes back to the one before it."""
    data = spiky(tmp_path, odd=[ODD[0]], train={"steps": 72})
    saves = tmp_path / "out" / "checkpoints"

    def spoil(row: dict[str, Any]) -> None:
        if row["step"] == 65 and not list(saves.glob("*.aside-*")):
            weights_file = next((saves / "step-00000060").glob("model-*.safetensors"))
            content = bytearray(weights_file.read_bytes())
            content[-1] ^= 1
            weights_file.write_bytes(content)

    out = run(data, on_step=spoil).out_dir
    (spike,) = events(out, "spike")
    assert (spike["step"], spike["action"], spike["to"]) == (70, "rewound", 40)
    assert {folder.name for folder in saves.iterdir()} >= {"step-00000060", "step-00000060.aside-1"}
    assert [row["step"] for row in rows(out)] == [*range(1, 73)]

"""Runs of islands: what joins them, what a checkpoint holds of them, and what becomes of one that leaves.

Every layout against a simulation in one process: tests/parity/matrix.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from runs import TOLERANCE, assert_same_bits, assert_same_run, bits, events, merge, rows, run, run_data, weights
from scalewright.checkpoint.read import CheckpointReader, find_checkpoint
from scalewright.cli.verbs.evaluate import measure
from scalewright.spec.errors import UserError

TWO = {"devices": 2, "dp_replicate": 2, "micro_batch": 2}
ADAMW = {"name": "adamw", "lr": 1e-2, "weight_decay": 0.1}
# Saved after step 5, it has fragment 1 on its way (sent after 4) and, in int8, what rounding took.
STREAMING = {"inner_steps": 4, "fragments": 2, "overlap": 2, "outer_dtype": "int8"}


def islands(folder: Path, diloco: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A run of 10 steps of two islands, saved at its end."""
    base = {"layout": TWO, "diloco": diloco, "train": {"steps": 10}, "checkpoint": {"every": 5, "at_end": True}}
    return run_data(folder, **merge(base, changes))


def test_averaging_after_every_step_is_data_parallelism(tmp_path):
    """LocalSGD of one inner step under SGD, where islands count as many tokens and nothing is clipped."""
    alike = {
        "data": {"document_mask": False},
        "optimizer": {"clip_norm": 0.0, "lr": 0.1},
        "checkpoint": {"every": 0, "at_end": True},
    }
    ddp = run(run_data(tmp_path, layout={**TWO, "zero_stage": 0}, train={"steps": 10}, **alike)).out_dir
    local = {"inner_steps": 1, "outer_lr": 1.0, "outer_momentum": 0.0}
    averaged = run(islands(tmp_path, local, out_dir=str(tmp_path / "averaged"), **alike)).out_dir
    for mine, theirs in zip(rows(averaged), rows(ddp), strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=TOLERANCE)
        assert mine["sample_ids_hash"] == theirs["sample_ids_hash"]
    mine, theirs = weights(averaged), weights(ddp)
    for name, tensor in theirs.items():
        torch.testing.assert_close(mine[name], tensor, rtol=TOLERANCE, atol=1e-6)


def test_metrics_and_events_of_outer_steps(tmp_path):
    out = run(islands(tmp_path, {"inner_steps": 4, "fragments": 2, "overlap": 1})).out_dir
    outer = {event["step"]: event for event in events(out, "outer")}
    assert {step: event["fragments"] for step, event in outer.items()} == {3: [0], 5: [1], 7: [0], 9: [1], 10: [0, 1]}
    shown = {row["step"]: row["outer_grad_norm"] for row in rows(out) if "outer_grad_norm" in row}
    assert shown == {step: event["outer_grad_norm"] for step, event in outer.items()}
    assert all(norm > 0 for norm in shown.values())
    assert rows(out)[0]["samples"] == 8


def test_a_resume_is_the_same_run_to_the_bit(tmp_path):
    """With a fragment on its way, rounding's rests, and each island's own weights and optimizer states."""
    changes = {"optimizer": ADAMW, "train": {"valid_every": 5, "valid_batches": 2}}
    straight = run(islands(tmp_path, STREAMING, out_dir=str(tmp_path / "straight"), **changes)).out_dir
    data = islands(tmp_path, STREAMING, **changes)
    run(data, steps=5)
    saved = CheckpointReader(find_checkpoint(tmp_path / "out"))
    assert saved.state["diloco"] == {"islands": 2, "fragments": 2, "under_way": [[1, 6]]}
    kinds = {name.rsplit("/", 1)[0] for name in saved.manifest.tensors if "/" in name}
    assert kinds == {
        "optimizer/exp_avg", "optimizer/exp_avg_sq", "outer/momentum", "outer/gradient",
        *(f"island/{i}/{kind}" for i in (0, 1) for kind in ("weight", "rest")),
        "island/1/optimizer/exp_avg", "island/1/optimizer/exp_avg_sq",
    }  # fmt: skip
    assert not torch.equal(saved.read("island/0/weight/embed.weight"), saved.read("embed.weight"))
    assert run(data).resumed_from == 5
    assert bits(tmp_path / "out") == bits(straight)
    assert_same_bits(weights(tmp_path / "out", optimizer=True), weights(straight, optimizer=True))


@pytest.mark.slow
def test_another_split_of_as_many_islands_is_the_same_run(tmp_path):
    diloco = {"inner_steps": 4, "fragments": 2, "overlap": 2}
    control = run(islands(tmp_path, diloco, optimizer=ADAMW, out_dir=str(tmp_path / "straight"))).out_dir
    run(islands(tmp_path, diloco, optimizer=ADAMW), steps=5)
    layout = {"devices": 4, "dp_replicate": 2, "zero_stage": 3, "micro_batch": 2}
    assert run(islands(tmp_path, diloco, optimizer=ADAMW, layout=layout)).resumed_from == 5
    assert_same_run(tmp_path / "out", control)
    assert not events(tmp_path / "out", "islands")


@pytest.mark.parametrize(
    ("layout", "diloco", "now"),
    [({"devices": 4, "dp_replicate": 4}, STREAMING, 4), ({"devices": 1, "dp_replicate": 1}, None, 0)],
    ids=["one-comes-back", "none-is-left"],
)
def test_other_islands_go_on_from_the_outer_weights(tmp_path, layout, diloco, now):
    run(islands(tmp_path, STREAMING, optimizer=ADAMW), steps=5)
    saved = find_checkpoint(tmp_path / "out")
    # A first step at rate 0 and weight decay 0 moves nothing: what it saves is what it went on from.
    still = {"optimizer": {**ADAMW, "lr": 1e-30, "weight_decay": 0.0}}
    data = islands(tmp_path, diloco, layout=layout, out_dir=str(tmp_path / "other"), **still)
    shutil.copytree(tmp_path / "out", tmp_path / "other")
    assert run(data, steps=6).resumed_from == 5
    (event,) = events(tmp_path / "other", "islands")
    assert (event["step"], event["saved"], event["now"]) == (5, 2, now)
    assert "goes on from the outer weights" in event["message"]
    outer, after = CheckpointReader(saved), CheckpointReader(find_checkpoint(tmp_path / "other"))
    for name in outer.names():
        assert torch.equal(after.read(name), outer.read(name)), name
        for island in range(now):
            assert torch.equal(after.read(f"island/{island}/weight/{name}"), outer.read(name)), name
    # island 0's optimizer states, one step on
    before = outer.read("optimizer/exp_avg/head.weight")
    assert not torch.equal(before, after.read("optimizer/exp_avg/head.weight"))
    steps = [after.state["optimizer"]["step"]]
    steps += [island["optimizer"]["step"] for island in after.state.get("islands", [])]
    assert {value for by_name in steps for value in by_name.values()} == {6.0}
    assert [row["step"] for row in rows(tmp_path / "other")] == [1, 2, 3, 4, 5, 6]


def test_a_run_without_islands_can_become_some(tmp_path):
    one = run_data(tmp_path, train={"steps": 10}, checkpoint={"every": 5, "at_end": True})
    run(one, steps=5)
    assert run(islands(tmp_path, {"inner_steps": 2})).resumed_from == 5
    (event,) = events(tmp_path / "out", "islands")
    assert (event["saved"], event["now"]) == (0, 2)


def test_validation_measures_what_a_checkpoint_holds(tmp_path):
    """The outer weights, in the middle between two outer steps; training then goes on from its own."""
    valid = {"train": {"valid_every": 5, "valid_batches": 2}, "checkpoint": {"every": 5, "keep": 3}}
    out = Path(run(islands(tmp_path, {"inner_steps": 4}, **valid)).out_dir)
    score = measure(out / "checkpoints" / "step-00000005", None, None, None, "cpu")
    assert rows(out, "valid")[0]["loss"] == pytest.approx(score["loss"], rel=TOLERANCE)
    plain = run(islands(tmp_path, {"inner_steps": 4}, out_dir=str(tmp_path / "plain"))).out_dir
    assert [row["loss"] for row in rows(plain)] == [row["loss"] for row in rows(out)]


def test_a_users_own_module(tmp_path):
    changes = {"model": {"python": "parts:build"}, "optimizer": {"python": "parts:momentum", "lr": 1e-3}}
    out = run(islands(tmp_path, {"inner_steps": 2, "fragments": 2}, **changes)).out_dir
    assert rows(out)[-1]["loss"] < rows(out)[0]["loss"]
    with pytest.raises(UserError, match=r"buffer 'means\.running_mean' of the model"):
        run(islands(tmp_path, {"inner_steps": 2}, model={"python": "parts:build_averaged"}, resume="never"))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"layout": {"dp_replicate": 1}}, "dp_replicate is 1"),
        ({"train": {"guard": {"spike": "rewind"}}}, "each island decides on its own spikes"),
        ({"layout": {"devices": 4, "offload": "optimizer"}}, "offload: optimizer keeps weights in host"),
        ({"diloco": {"inner_steps": 3, "fragments": 2}}, "fragments 2 does not divide inner_steps 3"),
    ],
)
def test_what_it_is_refused_with(tmp_path, changes, problem):
    with pytest.raises(UserError, match=problem):
        run(merge(islands(tmp_path, {"inner_steps": 2}), changes))
    assert not (tmp_path / "out").exists()

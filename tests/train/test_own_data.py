"""Datasets as people have them train on any layout, and go on where they were."""

from __future__ import annotations

import json

import pytest

from runs import assert_same_run, merge, run, run_data
from scalewright.spec.errors import UserError

ONE = {"layout": {"micro_batch": 4}}
TWO = {"layout": {"devices": 2, "zero_stage": 1, "micro_batch": 2}}


@pytest.mark.parametrize(
    "data",
    [
        {"python": "items:huggingface", "streaming": True, "seq_len": 16},
        pytest.param({"python": "items:numbered", "seq_len": 16}, marks=pytest.mark.slow),
        pytest.param({"python": "items:numbered", "seq_len": 32, "packing": False}, marks=pytest.mark.slow),
    ],
    ids=["stream", "packed", "unpacked"],
)
def test_same_rows_on_any_layout_and_after_a_resume(tmp_path, data):
    if "streaming" in data:
        data = {**data, "folder": str(tmp_path)}
    base = run_data(tmp_path, data=data, train={"steps": 8, "valid_every": 4}, checkpoint={"at_end": True})
    base = {**base, "data": data}  # nothing of the data there
    control = run(merge(base, {**ONE, "out_dir": str(tmp_path / "control")}))
    mine = merge(base, ONE)
    run(mine, steps=5)
    state = json.loads((tmp_path / "out" / "checkpoints" / "step-00000005" / "state.json").read_text())
    if data.get("packing", True):
        assert 0 < state["reading"]["row"] <= state["samples"] == 40
        assert bool(state["reading"]["state"]) == ("streaming" in data)
    found = run(merge(mine, TWO))
    assert found.resumed_from == 5
    assert_same_run(found.out_dir, control.out_dir)
    assert found.valid_loss == pytest.approx(control.valid_loss, rel=1e-5)


def test_a_token_that_the_model_has_no_row_for(tmp_path):
    data = {"python": "items:listed", "seq_len": 16, "items": [{"input_ids": [1, 2, 67] * 9}]}
    with pytest.raises(UserError, match=r"the data has token 67, but the model's vocab_size is 67"):
        run({**run_data(tmp_path), "data": data})

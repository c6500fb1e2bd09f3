"""`scalewright parity`: the keys of its answer, its exit codes, and that it finds what is wrong."""

from __future__ import annotations

import math

import pytest

from runs import merge, run_data, write_run
from scalewright.parity.compare import cut_otherwise
from scalewright.parity.result import Deviation, Parity, StepDeviation, relative, step_deviations
from scalewright.spec.errors import RunError
from scalewright.spec.layout import Layout

KEYS = {"control", "layout", "steps", "weights_rel", "worst", "tolerance", "ok"}
TWO = ("layout.devices=2", "layout.micro_batch=2")


def test_equal(call_cli, tmp_path):
    """A model and data of the user's, both small: nothing is shrunk."""
    file = write_run(tmp_path, merge(run_data(tmp_path), {"optimizer": {"name": "adamw", "lr": 1e-3}}))
    answer = call_cli("parity", file, *TWO, "layout.tp=2", "--steps", "3", "--json")
    assert answer.code == 0, answer.err
    found = answer.json()
    assert found.keys() >= KEYS
    assert (found["layout"]["tp"], found["control"]["devices"]) == (2, 1)
    assert found["layout"]["precision"] == found["control"]["precision"] == "fp32"
    assert found["control"]["global_batch"] == found["layout"]["global_batch"] == 8
    assert len(found["steps"]) == 3
    assert all(step.keys() == {"loss_rel", "grad_norm_rel"} for step in found["steps"])
    numbers = [number for step in found["steps"] for number in step.values()]
    assert found["worst"] == max(*numbers, found["weights_rel"]) <= found["tolerance"] == 1e-5
    assert found["ok"] is True
    assert found["shrunk"] == []
    assert not (tmp_path / "out").exists()


def test_not_equal(call_cli, tmp_path):
    """A thousandth too much on one of two ranks is found in the first step."""
    loss = {"python": "parity.wrong:loss", "more": 1e-3}
    file = write_run(tmp_path, run_data(tmp_path, loss=loss))
    answer = call_cli("parity", file, *TWO, "--steps", "2")
    assert answer.code == 1
    assert "NOT EQUAL" in answer.out
    assert "step" in answer.out
    assert answer.err == ""


def test_shrunk_and_without_data(call_cli, tmp_path):
    """A model and a layout for a cluster: tried small, on random tokens, and said so."""
    run = {"model": "llama-3.2-1b", "data": "nowhere", "layout": {"devices": 64, "tp": 8, "global_batch": 64}}
    answer = call_cli("parity", write_run(tmp_path, run), "--steps", "2")
    assert answer.code == 0, answer.err
    assert "tp 8 -> 2" in answer.out
    assert "random tokens: there is no data at nowhere" in answer.out
    assert answer.out.rstrip().endswith("equal")


def test_islands_are_compared_with_their_simulation(call_cli, tmp_path):
    """Two islands of tp 2, which meet more often than the run has them meet."""
    diloco = {"inner_steps": 50, "fragments": 2, "overlap": 3}
    layout = {"devices": 4, "dp_replicate": 2, "tp": 2, "micro_batch": 2}
    file = write_run(tmp_path, run_data(tmp_path, layout=layout, diloco=diloco))
    found = call_cli("parity", file, "--steps", "4", "--json").json()
    assert found["ok"] is True
    assert found["shrunk"] == ["diloco.inner_steps 50 -> 2", "diloco.overlap 3 -> 1"]
    assert (found["control"]["devices"], found["control"]["dp_replicate"]) == (2, 2)


def test_a_layout_that_cannot_be(call_cli, tmp_path):
    answer = call_cli("parity", write_run(tmp_path, run_data(tmp_path)), "layout.devices=7", "layout.tp=7")
    assert answer.code == 2
    assert "tp 7" in answer.error


def test_no_such_file(call_cli, tmp_path):
    assert call_cli("parity", tmp_path / "run.yaml").code == 2


# -- numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mine", "control", "wanted"),
    [(1.0, 1.0, 0.0), (1.1, 1.0, 0.1), (0.0, 0.0, 0.0), (1.0, 0.0, math.inf), (None, 1.0, math.inf),
     (None, None, math.inf)],
)  # fmt: skip
def test_relative(mine, control, wanted):
    assert relative(mine, control) == pytest.approx(wanted)


def row(step: int, **changes: object) -> dict[str, object]:
    """A training line."""
    base = {"step": step, "loss": 2.0, "aux_loss": 0.0, "grad_norm": 1.0, "sample_ids_hash": "a"}
    return {**base, "loss_tokens": 9, "samples": 8, **changes}


def test_other_samples_are_no_comparison():
    with pytest.raises(RunError, match="step 1: sample_ids_hash is b in the layout but a in the control"):
        step_deviations([row(1, sample_ids_hash="b")], [row(1)])
    with pytest.raises(RunError, match="1 steps"):
        step_deviations([row(1)], [row(1), row(2)])


def test_an_auxiliary_loss_counts():
    compared = step_deviations([row(1, aux_loss=0.2)], [row(1)])
    assert compared[0].loss_rel == pytest.approx(0.1)


def test_what_is_not_a_number_is_not_equal():
    assert not found([1e-7, math.inf], 0.0).ok
    assert not found([1e-7, math.inf], 0.0, found([1e-7, math.inf], 0.0).deviation).ok
    assert not found([1e-7], math.inf).ok
    assert found([1e-7, 1e-6], 1e-6).ok


def found(norms: list[float], weights: float, noise: Deviation | None = None) -> Parity:
    """A comparison with these deviations of the gradient norm."""
    steps = tuple(StepDeviation(0.0, norm) for norm in norms)
    return Parity({}, {}, Deviation(steps, weights, "w"), 1e-5, "", noise)


def test_rounding_that_one_device_magnifies_is_allowed_from_where_it_is_seen():
    noise = found([1e-7, 1e-6, 1e-4], 1e-4).deviation
    assert not found([1e-7, 1e-5, 3e-4], 1e-4).ok
    assert found([1e-7, 1e-5, 3e-4], 1e-4, noise).ok
    assert not found([1e-3, 1e-5, 3e-4], 1e-4, noise).ok  # a fault shows in the first step
    assert not found([1e-7, 1e-4, 3e-4], 1e-4, noise).ok
    assert not found([1e-7, 1e-5, 3e-4], 2e-3, noise).ok


def test_micro_batches_cut_otherwise():
    assert cut_otherwise(Layout(micro_batch=2, global_batch=8)).micro_batch == 1
    assert cut_otherwise(Layout(micro_batch=1, global_batch=3)).micro_batch == 3
    assert cut_otherwise(Layout(micro_batch=1, global_batch=1)) is None

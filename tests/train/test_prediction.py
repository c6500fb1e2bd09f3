"""Runs with prediction modules: what they report, resume, save under one layout and load under another."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from runs import assert_same_bits, assert_same_run, bits, rows, run, run_data, weights
from scalewright.checkpoint.read import find_checkpoint
from scalewright.serve.load import load_for_generation, load_model
from scalewright.spec.errors import UserError
from scalewright.spec.model import ModelSpec
from scalewright.spec.run import RunSpec
from scalewright.train.resolve import resolve

MOE = {"num_experts": 4, "top_k": 2, "moe_intermediate_size": 24, "router_bias": True, "score": "sigmoid"}
ADAMW = {"name": "adamw", "lr": 3e-3}


def data(folder: Any, **changes: Any) -> dict[str, Any]:
    """A run of four steps with two prediction modules."""
    keys = {"model": {"mtp_layers": 2}, "train": {"steps": 4, "valid_every": 4}, "optimizer": ADAMW}
    return run_data(folder, **{**keys, "checkpoint": {"every": 2, "at_end": True}, **changes})


def test_the_weight_is_that_of_the_mean_over_depths_in_the_auxiliary_loss(tmp_path) -> None:
    """The first step's losses are of the same weights."""
    first = {}
    for weight in (0.0, 0.3, 0.6):
        out = str(tmp_path / f"out-{weight}")
        run(data(tmp_path, out_dir=out, train={"steps": 1, "mtp_weight": weight}))
        first[weight] = rows(out)[0]
    losses = {row["loss"] for row in first.values()}
    assert len(losses) == 1
    assert first[0.0]["aux_loss"] == 0
    assert first[0.6]["aux_loss"] == pytest.approx(2 * first[0.3]["aux_loss"], rel=1e-6)
    # first weights predict no token better than chance; rows of 16 tokens with ends have fewer targets ahead
    assert 0.3 * 3 < first[0.3]["aux_loss"] < 0.3 * first[0.3]["loss"]


def test_a_weight_of_zero_trains_without_the_modules(tmp_path) -> None:
    without = data(tmp_path, train={"steps": 2, "mtp_weight": 0})
    resolved = resolve(RunSpec.parse(without))
    assert isinstance(resolved.model, ModelSpec)
    assert resolved.model.mtp_layers == 0
    made = run(without)
    plain = run(data(tmp_path, out_dir=str(tmp_path / "plain"), model={}, train={"steps": 2}))
    assert bits(made.out_dir) == bits(plain.out_dir)


def test_a_loss_of_ones_own_is_refused(tmp_path) -> None:
    own = data(tmp_path, loss={"python": "parts:fragile"})
    with pytest.raises(UserError, match="which a loss of your own doesn't get") as caught:
        resolve(RunSpec.parse(own))
    assert "train.mtp_weight" in str(caught.value)
    resolve(RunSpec.parse({**own, "train": {"steps": 1, "mtp_weight": 0}}))


def test_a_resume_is_the_same_run(tmp_path) -> None:
    straight = run(data(tmp_path, out_dir=str(tmp_path / "straight")))
    parts = data(tmp_path)
    run(parts, steps=2)
    made = run(parts)
    assert bits(made.out_dir) == bits(straight.out_dir)
    assert_same_bits(weights(made.out_dir, optimizer=True), weights(straight.out_dir, optimizer=True))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"devices": 2, "pp": 2, "schedule": "zb-h1"}, {"devices": 2, "zero_stage": 3}),
        pytest.param({"devices": 2, "tp": 2}, {"devices": 2, "pp": 2}, marks=pytest.mark.slow),
    ],
)
def test_another_layout_goes_on(before: dict[str, Any], after: dict[str, Any], tmp_path) -> None:
    """Saved by one, loaded by the other: both copies of the embedding from the one that is saved."""
    alike = {"global_batch": 8, "precision": "fp32"}
    control = run(data(tmp_path, out_dir=str(tmp_path / "control")))
    run(data(tmp_path, layout=before | alike), steps=2)
    made = run(data(tmp_path, layout=after | alike))
    # AdamW magnifies the sign of near-zero gradients: losses of four steps, no weights
    assert_same_run(made.out_dir, control.out_dir)
    names = set(weights(made.out_dir))
    assert names == set(weights(control.out_dir))
    assert {"embed.weight", "head.weight", "mtp.1.join.weight"} < names


def test_loads_of_the_modules_experts_are_counted_behind_the_layers(tmp_path) -> None:
    model = {"mtp_layers": 2, "moe": MOE}
    out = run(data(tmp_path, model=model, train={"steps": 1, "balance": {"bias_rate": 0.01}})).out_dir
    loads = rows(out, "experts")[0]["loads"]
    assert list(loads) == ["0", "1", "2", "3", "4"]
    assert {sum(experts) for experts in loads.values()} == {2 * 8 * 16}
    biases = [value for name, value in weights(out).items() if name.endswith("router.bias")]
    assert len(biases) == 5
    assert all(bias.abs().max() > 0 for bias in biases)


def test_a_loaded_model_has_them_for_drafts_and_generation_leaves_them(tmp_path, monkeypatch) -> None:
    out = run(data(tmp_path)).out_dir
    assert len(load_model(out).mtp) == 2  # type: ignore[arg-type]
    words = SimpleNamespace(token_to_id=lambda token: None)
    monkeypatch.setattr("scalewright.serve.load._tokenizer", lambda folders, check=None: words)
    monkeypatch.setattr("scalewright.serve.load.beginning", lambda tokenizer, config: ())
    loaded = load_for_generation(str(find_checkpoint(out)))
    assert len(loaded.model.mtp) == 0  # type: ignore[arg-type]

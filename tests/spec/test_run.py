"""run.yaml: defaults, overrides, round trips through YAML and Python, and one line for each mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scalewright.spec.base import parse_yaml, to_yaml, write_yaml
from scalewright.spec.errors import UserError
from scalewright.spec.model import ModelSpec
from scalewright.spec.run import DataSpec, OptimizerSpec, PythonRef, RunSpec, apply_override, load_run

LEAST: dict[str, Any] = {"model": "tiny", "data": {"train": "tokens"}}
MODEL = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def test_defaults_are_those_of_the_interface() -> None:
    run = RunSpec.parse(LEAST)
    assert (run.name, run.out_dir, run.resume, run.init, run.cluster) == ("run", "runs/run", "auto", "random", "local")
    assert isinstance(run.optimizer, OptimizerSpec)
    assert (run.optimizer.lr, run.optimizer.betas, run.optimizer.clip_norm) == (3e-4, (0.9, 0.95), 1.0)
    assert (run.train.steps, run.train.valid_batches, run.checkpoint.keep, run.checkpoint.at_end) == (1000, 16, 2, True)
    assert isinstance(run.data, DataSpec)
    assert (run.data.seq_len, run.data.train[0].path, run.data.valid) == (1024, "tokens", ())
    assert RunSpec.parse({**LEAST, "name": "mine"}).out_dir == "runs/mine"


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"model": MODEL},
        {"model": {"python": "mine:build", "width": 3}},
        {"data": {"python": "mine:Data"}, "loss": {"python": "mine:loss"}, "optimizer": {"python": "mine:opt"}},
        {"layout": {"devices": 8, "tp": 2}, "train": {"tokens": 1e9}, "cluster": {"like": "dgx-h100"}},
        {"checkpoint": {"async": True, "every": 5}},
    ],
)
def test_round_trips(more: dict[str, Any], tmp_path: Path) -> None:
    run = RunSpec.parse({**LEAST, **more})
    assert RunSpec.parse(parse_yaml(to_yaml(run.dump()))) == run
    write_yaml(tmp_path / "run.yaml", run.dump())
    assert load_run(tmp_path / "run.yaml") == run


def test_overrides_reach_any_depth_and_read_numbers(tmp_path: Path) -> None:
    write_yaml(tmp_path / "run.yaml", LEAST)
    overrides = ["layout.devices=4", "optimizer.lr=3e-4", "data.valid=[a, b]", "train.tokens=2e6"]
    run = load_run(tmp_path / "run.yaml", overrides)
    assert run.layout.devices == 4
    assert isinstance(run.optimizer, OptimizerSpec)
    assert run.optimizer.lr == pytest.approx(3e-4, rel=0)
    assert run.train.tokens == 2e6
    assert run.train.steps is None
    assert isinstance(run.data, DataSpec)
    assert [source.path for source in run.data.valid] == ["a", "b"]


def test_the_last_override_wins_and_nulls_are_kept() -> None:
    data: dict[str, Any] = {}
    for text in ("layout.tp=2", "layout.tp=4", "layout.sp=null"):
        apply_override(data, text)
    assert data == {"layout": {"tp": 4, "sp": None}}


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("layout.tpp=2", ["layout.tpp", "tp"]),
        ("modle=tiny", ["modle", "model"]),
        ("optimizer.betas=[1]", ["optimizer"]),
        ("layout.recompute={evry: 2}", ["layout.recompute"]),
        ("layout", ["key=value"]),
        ("layout.tp.x=2", ["layout.tp"]),
        ("train.steps=-1", ["train.steps", "-1"]),
        ("name=a/b", ["name", "a/b"]),
        ("model.python=nothing", ["model", "python"]),
        ("layout={tp: 2", ["YAML"]),
        ("optimizer.lr=fast", ["optimizer", "lr", "fast"]),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(override: str, parts: list[str], tmp_path: Path) -> None:
    write_yaml(tmp_path / "run.yaml", {**LEAST, "layout": {"tp": 1}})
    with pytest.raises(UserError) as caught:
        load_run(tmp_path / "run.yaml", [override])
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        load_run(tmp_path / "absent.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(UserError, match="keys and values"):
        load_run(tmp_path / "list.yaml")
    (tmp_path / "twice.yaml").write_text("name: a\nname: b\n")
    with pytest.raises(UserError, match="written twice"):
        load_run(tmp_path / "twice.yaml")


def test_steps_and_tokens_exclude_each_other() -> None:
    with pytest.raises(UserError, match="both given"):
        RunSpec.parse({**LEAST, "train": {"steps": 5, "tokens": 1e6}})


def test_a_misspelt_key_is_named_with_its_section() -> None:
    with pytest.raises(UserError, match=r"unknown key 'train\.step'.*did you mean 'train\.steps'\?"):
        RunSpec.parse({**LEAST, "train": {"step": 5}})
    with pytest.raises(UserError, match=r"did you mean 'train\.steps'\?"):
        RunSpec.parse({**LEAST, "train": {"max_steps": 5}})
    with pytest.raises(UserError, match=r"did you mean 'train' or"):
        RunSpec.parse({**LEAST, "trian": {"steps": 5}})


def test_a_model_of_own_keys_is_checked_when_parsed() -> None:
    with pytest.raises(UserError, match=r"hidden_siz.*did you mean 'hidden_size'"):
        RunSpec.parse({**LEAST, "model": {**MODEL, "hidden_siz": 3}})
    assert isinstance(RunSpec.parse({**LEAST, "model": MODEL}).model, ModelSpec)
    assert isinstance(RunSpec.parse({**LEAST, "model": {"python": "a:b", "n": 1}}).model, PythonRef)


def test_exponents_without_a_dot_are_numbers() -> None:
    assert parse_yaml("[3e-4, 1E5, 5e+2, .5, 1.5e3, 12, v1e, 2026-11-21x]") == [
        3e-4,
        1e5,
        500.0,
        0.5,
        1500.0,
        12,
        "v1e",
        "2026-11-21x",
    ]

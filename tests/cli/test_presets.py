"""`presets`: what is listed loads, what is printed can be read back."""

from __future__ import annotations

import pytest

from scalewright.spec.base import parse_yaml
from scalewright.spec.model import ModelSpec
from scalewright.spec.presets import load_model_spec
from scalewright.spec.tensors import count


def test_models_are_listed_with_exact_counts(call_cli):
    rows = {row["name"]: row for row in call_cli("presets", "models", "--json").json()}
    assert rows["llama-3.1-8b"]["params"] == 8_030_261_248  # the model card's count
    assert rows["llama-3.1-8b"]["trains"] is True
    assert rows["deepseek-v3"]["active_params"] < rows["deepseek-v3"]["params"]


def test_the_table_has_a_line_a_model(call_cli):
    rows = call_cli("presets", "models", "--json").json()
    out = call_cli("presets", "models").out
    assert [line.split()[0] for line in out.splitlines()][-len(rows) :] == [row["name"] for row in rows]


def test_one_model_is_shown_whole(call_cli):
    shown = ModelSpec.parse(parse_yaml(call_cli("presets", "models", "llama-3.2-1b").out))
    assert shown == load_model_spec("llama-3.2-1b")
    assert call_cli("presets", "models", "llama-3.2-1b", "--json").json()["spec"] == shown.dump()


def test_clusters(call_cli):
    rows = {row["name"]: row for row in call_cli("presets", "clusters", "--json").json()}
    assert rows["dgx-h100"]["devices_per_node"] == 8
    assert call_cli("presets", "clusters", "dgx-h100", "--json").json()["device"]["vendor"] == "NVIDIA"
    assert "dgx-h100" in call_cli("presets", "clusters").out


@pytest.mark.parametrize("kind", ["models", "clusters"])
def test_a_misspelt_name_gets_the_nearest(call_cli, kind):
    name = {"models": "llama-3.1-8", "clusters": "dgx-h10"}[kind]
    answer = call_cli("presets", kind, name)
    assert answer.code == 2
    assert "did you mean" in answer.error


def test_new_prints_our_own_keys_of_that_size(call_cli):
    answer = call_cli("presets", "new", "--params", "13e9", "--like", "llama", "--vocab", "65536")
    spec = ModelSpec.parse(parse_yaml(answer.out))
    assert spec.vocab_size == 65536
    assert count(spec).total == pytest.approx(13e9, rel=0.02)  # the tolerance of `new_preset`


def test_new_writes_a_file_that_a_run_takes(call_cli, tmp_path):
    path = tmp_path / "shapes" / "small.yaml"
    row = call_cli("presets", "new", "--params", "2e6", "--vocab", "2048", "--out", path, "--json").json()
    assert load_model_spec(path).dump() == row["spec"]
    assert row["params"] == count(load_model_spec(path)).total


@pytest.mark.parametrize(
    "arguments", [["--params", "13e9", "--like", "lama"], ["--params", "-1"], ["--params", "1000"]]
)
def test_new_refuses_in_one_line(call_cli, arguments):
    answer = call_cli("presets", "new", *arguments)
    assert answer.code == 2
    assert answer.error.startswith("error: ")


def test_preset_names_complete(run_cli):
    words = run_cli(
        _SCALEWRIGHT_COMPLETE="complete_bash", COMP_WORDS="scalewright presets models llama-3.1-8", COMP_CWORD="3"
    ).out.split()
    assert words == ["llama-3.1-8b"]

"""What must never break, in a few seconds: run it first. Everything here goes through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scalewright.spec.run import RunSpec, load_run

MODEL = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


@pytest.fixture
def run_file(call_cli, tmp_path: Path) -> Path:
    """A run file for a model of a few thousand parameters on a few thousand words."""
    text = " ".join(f"{a}{b} {b}ing" for a in "abcdefgh" for b in ("cat", "dog", "sun", "rain", "wind")) * 40
    (tmp_path / "text.txt").write_text(text)
    answer = call_cli("prepare", tmp_path / "text.txt", "--out", tmp_path / "data", "--vocab-size", 300, "--workers", 1)
    assert answer.code == 0, answer.err
    run = {
        "name": "tiny",
        "out_dir": str(tmp_path / "out"),
        "device": "cpu",
        "model": MODEL,
        "layout": {"global_batch": 4, "precision": "fp32"},
        "data": {"train": str(tmp_path / "data"), "valid": str(tmp_path / "data"), "seq_len": 16},
        "optimizer": {"lr": 1e-2},
        "train": {"steps": 3, "valid_every": 3, "valid_batches": 2},
    }
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(run))  # JSON is YAML
    return path


def test_help(call_cli):
    assert call_cli("--help").code == 0


def test_presets(call_cli):
    assert "llama-3.1-8b" in call_cli("presets", "models").out


def test_a_run_goes_to_yaml_and_back(run_file):
    run = load_run(run_file, ["optimizer.lr=3e-4"])
    assert run.optimizer.lr == 3e-4
    assert RunSpec.parse(run.dump()) == run


def test_train_resume_generate(call_cli, run_file, tmp_path):
    """Three steps in one process: files as promised, a learning loss, a save that verifies and goes on."""
    answer = call_cli("train", run_file, "--json")
    assert answer.code == 0, answer.err
    assert answer.json()["step"] == 3
    rows = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if row["kind"] == "train"]
    assert len(losses) == 3
    assert losses[2] < losses[0]
    assert [row["step"] for row in rows if row["kind"] == "valid"] == [3]
    assert (tmp_path / "out" / "report.html").exists()
    assert call_cli("checkpoint", "verify", tmp_path / "out").code == 0
    more = call_cli("train", run_file, "train.steps=4", "--json").json()
    assert (more["resumed_from"], more["step"]) == (3, 4)
    text = call_cli("generate", tmp_path / "out", "--prompt", "acat", "--max-tokens", 4, "--json").json()
    assert len(text["tokens"]) == 4


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("layout.tpp=2", "did you mean 'layout.tp'"),
        ("layout.global_batch=3 layout.micro_batch=2", "global_batch 3 is not divisible by micro_batch 2"),
        ("optimizer.lr=fast", "lr is 'fast'"),
        ("data.train=nowhere", "nowhere"),
        ("model=llama-3.1-9b", "did you mean 'llama-3.1-8b'"),
    ],
)
def test_a_mistake_is_one_line(call_cli, run_file, override, says):
    answer = call_cli("train", run_file, *override.split())
    assert answer.code == 2
    assert answer.out == ""
    assert says in answer.error

"""What can be done with a run: look at its saves, convert it, continue prompts with it, evaluate it, report on it."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from tests.cli.blocked import run_without_torch

from scalewright.api import train
from scalewright.checkpoint.verify import commit_text
from scalewright.data.prepare import prepare

MODEL = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps with two saves."""
    folder = tmp_path_factory.mktemp("trained")
    words = (f"{a}{b} {b}ing" for a in "abcdefgh" for b in ("cat", "dog", "sun", "rain", "wind"))
    (folder / "text.txt").write_text(" ".join(words) * 40)
    prepare(folder / "text.txt", folder / "data", vocab_size=300, workers=1, progress=None)
    run = {
        "name": "trained",
        "out_dir": str(folder / "run"),
        "device": "cpu",
        "model": MODEL,
        "layout": {"global_batch": 4, "precision": "fp32"},
        "data": {"train": str(folder / "data"), "valid": str(folder / "data"), "seq_len": 16},
        "train": {"steps": 4, "valid_every": 4, "valid_batches": 2},
        "checkpoint": {"every": 2},
    }
    train(run, quiet=True)
    return folder / "run"


def test_saves_are_listed_newest_first(call_cli, trained):
    rows = call_cli("checkpoint", "ls", trained, "--json").json()
    assert [(row["step"], row["state"]) for row in rows] == [(4, "complete"), (2, "complete")]
    assert rows[0]["samples"] == 16
    out = call_cli("checkpoint", "ls", trained).out
    assert "step-00000004" in out
    one = call_cli("checkpoint", "ls", rows[1]["path"], "--json").json()
    assert [row["step"] for row in one] == [2]


def test_damage_is_found(call_cli, trained, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    assert call_cli("checkpoint", "verify", copy).code == 0
    victim = next((copy / "checkpoints" / "step-00000004").glob("model-*.safetensors"))
    content = bytearray(victim.read_bytes())
    content[-1] ^= 1
    victim.write_bytes(content)
    answer = call_cli("checkpoint", "verify", copy, "--json")
    assert answer.code == 1
    assert "checksum differs" in call_cli("evaluate", copy).error
    found = answer.json()
    assert found["ok"] is False
    assert [row["state"] for row in found["checkpoints"]] == ["damaged", "complete"]
    assert victim.name in call_cli("checkpoint", "verify", copy).out


@pytest.mark.parametrize("verb", ["generate", "convert"])
def test_another_tokenizer_is_refused(call_cli, trained, tmp_path, verb):
    copy = shutil.copytree(trained, tmp_path / "copy")
    (copy / "tokenizer.json").write_text((copy / "tokenizer.json").read_text() + " ")
    words = (copy, "--prompt", "cat", "--max-tokens", "2") if verb == "generate" else (copy, tmp_path / "out")
    answer = call_cli(verb, *words)
    assert answer.code == 2
    assert "not the one that the run was trained with" in answer.error
    assert call_cli(verb, *words, "--no-verify").code == 0


def test_evaluate_refuses_data_of_another_tokenizer(call_cli, trained, tmp_path):
    data = tmp_path / "other"
    text = (trained.parent / "text.txt").read_text().upper()
    (tmp_path / "upper.txt").write_text(text)
    prepare(tmp_path / "upper.txt", data, vocab_size=300, workers=1, progress=None)
    call_cli("convert", trained, tmp_path / "hf")
    for model in (trained, tmp_path / "hf"):
        answer = call_cli("evaluate", model, "--data", data, "--seq-len", 16)
        assert answer.code == 2
        assert "the data's tokenizer is not the model's" in answer.error
        assert str(data) in answer.error
        assert call_cli("evaluate", model, "--data", data, "--seq-len", 16, "--no-verify").code == 0
        same = tmp_path / f"same-{model.name}"
        prepare(tmp_path / "upper.txt", same, tokenizer=trained / "tokenizer.json", workers=1, progress=None)
        assert call_cli("evaluate", model, "--data", same, "--seq-len", 16).code == 0


def test_a_half_written_save_is_called_that(call_cli, trained, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    (copy / "checkpoints" / "step-00000004" / "COMMIT").unlink()
    rows = call_cli("checkpoint", "ls", copy, "--json").json()
    assert [row["state"] for row in rows] == ["incomplete", "complete"]
    assert call_cli("checkpoint", "verify", copy).code == 0


def test_weights_that_are_not_finite_are_called_that(call_cli, trained, tmp_path):
    """They are what the run wrote: no damage, and not to be used."""
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    step = copy / "checkpoints" / "step-00000004"
    state = json.loads((step / "state.json").read_text())
    (step / "state.json").write_text(json.dumps({**state, "finite": False}))
    (step / "COMMIT").write_text(commit_text(step, 4))
    answer = call_cli("checkpoint", "verify", copy)
    assert answer.code == 0
    assert answer.out.splitlines() == ["step 4: complete, not finite", "step 2: complete"]
    rows = call_cli("checkpoint", "verify", copy, "--json").json()["checkpoints"]
    assert [row["finite"] for row in rows] == [False, True]


def test_a_renamed_checkpoint(call_cli, trained, tmp_path):
    """As `generate` and `convert` do, `ls` and `verify` take a checkpoint under any name."""
    copy = tmp_path / "best"
    shutil.copytree(trained / "checkpoints" / "step-00000004", copy)
    (row,) = call_cli("checkpoint", "ls", copy, "--json").json()
    assert (row["step"], row["state"]) == (4, "complete")
    assert "step 4: complete" in call_cli("checkpoint", "verify", copy).out
    (copy / "manifest.json").write_text("[]")
    (copy / "COMMIT").write_text(commit_text(copy, 4))
    answer = call_cli("checkpoint", "verify", copy)
    assert answer.code == 1
    assert "best: damaged manifest: an entry has another type" in answer.out


def test_verify_refuses_a_shape_that_the_boxes_do_not_cover(call_cli, trained, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(trained / "checkpoints" / "step-00000004", copy)
    data = json.loads((copy / "manifest.json").read_text())
    boxes = data["files"]["model-00000-000.safetensors"]["boxes"]
    (tensor,) = [tensor for tensor in boxes if "norm.weight" in tensor["names"]]
    tensor["shape"][0] *= 2
    (copy / "manifest.json").write_text(json.dumps(data))
    (copy / "COMMIT").write_text(commit_text(copy, 4))
    answer = call_cli("checkpoint", "verify", copy)
    assert answer.code == 1
    assert "norm.weight' is not covered by the files" in answer.out


def test_a_folder_without_saves(call_cli, tmp_path):
    assert "no checkpoint there" in call_cli("checkpoint", "ls", tmp_path).error
    assert "no such folder" in call_cli("checkpoint", "verify", tmp_path / "nowhere").error


def test_convert_there_and_back(call_cli, trained, tmp_path):
    there = call_cli("convert", trained, tmp_path / "hf", "--json").json()
    assert there["kind"] == "huggingface"
    assert (tmp_path / "hf" / "config.json").exists()
    back = call_cli("convert", tmp_path / "hf", tmp_path / "back", "--json").json()
    assert back["kind"] == "checkpoint"
    assert back["parameters"] == there["parameters"]
    texts = [
        call_cli("generate", place, "--prompt", "acat", "--temperature", 0, "--max-tokens", 8).out
        for place in (trained, tmp_path / "hf", tmp_path / "back")
    ]
    assert texts[0] == texts[1] == texts[2]
    assert call_cli("convert", trained, tmp_path / "hf").code == 2


def test_an_export_is_checked_where_it_is_written_and_later(call_cli, trained, tmp_path):
    made = call_cli("convert", trained, tmp_path / "hf", "--json").json()
    assert made["findings"] == []
    sound = call_cli("convert", tmp_path / "hf", "--check")
    assert (sound.code, "0 errors" in sound.out) == (0, True)
    (tmp_path / "hf" / "generation_config.json").write_text('{"top_p": 2}')
    wrong = call_cli("convert", tmp_path / "hf", "--check")
    assert wrong.code == 1
    assert re.search(r"error: top_p is 2, .* \(.*generation_config.json\): give in \(0, 1\]", wrong.out)
    listed = call_cli("convert", tmp_path / "hf", "--check", "--json").json()
    assert listed["ok"] is False
    assert {"severity", "subject", "rule", "where", "what", "how"} == listed["findings"][0].keys()
    assert "--check" in call_cli("convert", tmp_path / "hf").error
    assert "no such folder" in call_cli("convert", tmp_path / "nowhere", "--check").error


def test_an_export_of_what_is_not_finite_is_an_error(call_cli, trained, tmp_path, monkeypatch):
    """It is written, to be looked at, and called what it is."""
    from scalewright.checkpoint.lint import numbers

    monkeypatch.setattr(numbers, "_finite", lambda export, tensor: False)
    made = call_cli("convert", trained, tmp_path / "hf")
    assert made.code == 1
    assert "error: NaN or infinity in" in made.out


def test_a_folder_is_checked_without_torch(call_cli, trained, tmp_path):
    call_cli("convert", trained, tmp_path / "hf")
    done = run_without_torch(["convert", str(tmp_path / "hf"), "--check"])
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(os.name == "nt", reason="modes of files")
def test_exported_weights_can_be_read_by_whom_the_umask_lets(call_cli, trained, tmp_path):
    before = os.umask(0o022)
    try:
        call_cli("convert", trained, tmp_path / "hf")
        call_cli("convert", tmp_path / "hf", tmp_path / "back")
    finally:
        os.umask(before)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} >= {".safetensors", ".json"}
    assert {path.stat().st_mode & 0o777 for path in files} == {0o644}


def test_generate(call_cli, trained):
    arguments = ["generate", trained, "--prompt", "acat", "--max-tokens", 6]
    one = call_cli(*arguments, "--seed", 1, "--json").json()
    assert one["prompt"] == "acat"
    assert one["stopped_by"] == "length"
    assert call_cli(*arguments, "--seed", 1, "--json").json()["tokens"] == one["tokens"]
    shown = call_cli(*arguments, "--seed", 1)
    assert shown.out == "acat" + one["text"] + "\n"
    assert "tokens/s" in shown.err


def test_generate_from_nothing_is_one_line(call_cli, tmp_path):
    answer = call_cli("generate", tmp_path / "nowhere", "--prompt", "x")
    assert answer.code == 2
    assert "no such folder" in answer.error


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="the device that must be absent is here")
@pytest.mark.parametrize("verb", ["generate", "evaluate"])
def test_a_device_that_is_not_here(call_cli, trained, verb):
    assert "can't use mps" in call_cli(verb, trained, "--device", "mps").error
    assert "did you mean 'cuda'" in call_cli(verb, trained, "--device", "cdua").error


def test_evaluate_needs_data(call_cli, trained, tmp_path):
    call_cli("convert", trained, tmp_path / "hf")
    assert "add --data DIR" in call_cli("evaluate", tmp_path / "hf").error
    data = trained.parent / "data"
    found = call_cli("evaluate", tmp_path / "hf", "--data", data, "--seq-len", 16, "--batches", 8, "--json").json()
    assert found == call_cli("evaluate", trained, "--json").json()


def test_evaluate_is_the_runs_own_validation(call_cli, trained):
    rows = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    in_the_run = next(row for row in rows if row["kind"] == "valid")
    found = call_cli("evaluate", trained, "--batches", 2, "--json").json()
    assert found["loss"] == pytest.approx(in_the_run["loss"], rel=1e-6)  # the same numbers, summed alike
    assert found["bits_per_byte"] == pytest.approx(in_the_run["bits_per_byte"], rel=1e-6)
    assert "bits per byte" in call_cli("evaluate", trained, "--batches", 2).out


def test_evaluate_gives_its_share_of_the_held_out_text(call_cli, trained):
    part = call_cli("evaluate", trained, "--batches", 1, "--json").json()
    whole = call_cli("evaluate", trained, "--batches", 1_000_000, "--json").json()
    assert part["tokens"] < part["held_out_tokens"] == whole["tokens"] == whole["held_out_tokens"]
    shown = call_cli("evaluate", trained, "--batches", 1).out
    assert f"over           {part['tokens']:,} of {whole['tokens']:,} held-out tokens" in shown
    assert f"all {whole['tokens']:,} held-out tokens" in call_cli("evaluate", trained, "--batches", 10**6).out


@pytest.fixture(scope="module")
def moved(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run, as one that was started in its folder's parent with relative paths, under another name elsewhere."""
    home = tmp_path_factory.mktemp("moved") / "here"
    shutil.copytree(trained, home)
    text = (home / "run.yaml").read_text().replace(str(trained.parent / "data"), "data")
    (home / "run.yaml").write_text(text.replace(str(trained), "runs/trained"))
    assert "path: data\n" in (home / "run.yaml").read_text()
    return home


def started_in(home: Path, folder: Path) -> None:
    text = (home / "run.yaml").read_text()
    (home / "run.yaml").write_text(re.sub(r"(?m)^  folder: .*", f"  folder: {folder}", text))


@pytest.mark.parametrize("verb", [
    ["evaluate"], ["generate", "--prompt", "cat", "--max-tokens", "2"], ["diagnose"], ["report"], ["checkpoint", "ls"],
    ["convert", "hf", "--no-check"],
])  # fmt: skip
def test_a_moved_run_is_read(call_cli, trained, moved, tmp_path, monkeypatch, verb):
    monkeypatch.chdir(tmp_path)
    started_in(moved, trained.parent)
    words = [*verb, moved] if verb[0] == "checkpoint" else [verb[0], moved, *verb[1:]]
    assert call_cli(*words).code == 0


def test_a_moved_run_goes_on_and_says_what_it_lacks(call_cli, trained, moved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    started_in(moved, tmp_path)
    for words in (["train", moved / "run.yaml", "train.steps=5"], ["evaluate", moved]):
        answer = call_cli(*words)
        assert answer.code == 2
        assert "(data)" in answer.error
        assert "data.train=DIR" in answer.error
        assert "--data DIR" in answer.error
    started_in(moved, trained.parent)
    answer = call_cli("train", moved / "run.yaml", "train.steps=5", "--json").json()
    assert (answer["resumed_from"], answer["step"], answer["out_dir"]) == (4, 5, str(moved))
    assert list(tmp_path.iterdir()) == []


def test_report(call_cli, trained, tmp_path):
    made = call_cli("report", trained, "--out", tmp_path / "page.html", "--json").json()
    assert Path(made["report"]).read_text(encoding="utf-8").lstrip().lower().startswith("<!doctype html>")
    assert call_cli("report", tmp_path / "nowhere").code == 2


def test_generate_without_a_prompt_and_with_one_from_stdin(call_cli, trained, monkeypatch):
    keys = ["--temperature", 0, "--max-tokens", 2]
    nothing = call_cli("generate", trained, *keys)
    assert "no --prompt: the model writes the beginning of a text" in nothing.err
    monkeypatch.setattr("sys.stdin", io.StringIO("acat"))
    piped = call_cli("generate", trained, "--prompt", "-", *keys)
    assert piped.out.startswith("acat")
    assert "no --prompt" not in piped.err
    assert piped.out == call_cli("generate", trained, "--prompt", "acat", *keys).out

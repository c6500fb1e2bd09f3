"""`emit` and `read`: files, notes, exit codes; `plan --from` and `predict --from`."""

from __future__ import annotations

import json

import pytest
import yaml
from tests.cli.blocked import run_without_torch

from scalewright.spec.run import load_run

RUN = {
    "name": "small", "model": "llama-3.2-1b", "data": {"train": "corpus", "seq_len": 4096},
    "layout": {"devices": 16, "tp": 2, "global_batch": 64, "zero_stage": 1}, "train": {"steps": 50},
}  # fmt: skip
LINE = (
    "torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py --num-layers 16 --hidden-size 2048 --swiglu "
    "--ffn-hidden-size 8192 --num-attention-heads 32 --group-query-attention --num-query-groups 8 "
    "--seq-length 4096 --max-position-embeddings 4096 --normalization RMSNorm --disable-bias-linear "
    "--position-embedding-type rope --vocab-size 128256 --micro-batch-size 1 --global-batch-size 64 "
    "--tensor-model-parallel-size 8 --sequence-parallel --use-distributed-optimizer --bf16 --new-flag 1"
)


def run(call_cli, *words, code=0):
    answer = call_cli(*words)
    assert answer.code == code, answer.err
    return answer


@pytest.fixture
def run_file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(RUN))
    return path


def test_emit_writes_the_files_and_says_what_to_run(call_cli, run_file, tmp_path):
    out = run(call_cli, "emit", "megatron", run_file, "--out", tmp_path / "m").out
    text = (tmp_path / "m" / "pretrain.sh").read_text()
    assert "--tensor-model-parallel-size 2" in text
    assert f"cd {tmp_path / 'm'} && bash pretrain.sh" in out
    assert "assumed   " in out
    run(call_cli, "emit", "megatron", run_file, "layout.tp=4", "--out", tmp_path / "m")
    assert "--tensor-model-parallel-size 4" in (tmp_path / "m" / "pretrain.sh").read_text()


def test_an_edited_file_is_not_replaced(call_cli, run_file, tmp_path):
    run(call_cli, "emit", "megatron", run_file, "--out", tmp_path / "m")
    script = tmp_path / "m" / "pretrain.sh"
    script.write_text(script.read_text().replace("--lr 0.0003", "--lr 0.001"))
    result = run(call_cli, "emit", "megatron", run_file, "--out", tmp_path / "m", code=2)
    assert "the file is there already" in result.err
    assert "--lr 0.001" in script.read_text()
    run(call_cli, "emit", "megatron", run_file, "--out", tmp_path / "m", "--force")
    assert "--lr 0.0003" in script.read_text()


def test_strict_writes_nothing_when_a_setting_is_lost(call_cli, run_file, tmp_path):
    keys = ("layout.offload=activations", "--out", tmp_path / "m", "--strict")
    result = run(call_cli, "emit", "megatron", run_file, *keys, code=1)
    assert "dropped   layout.offload activations" in result.out
    assert not (tmp_path / "m").exists()
    assert run(call_cli, "emit", "megatron", run_file, "--strict", "--print").out.startswith("#!/usr/bin/env bash")


def test_json_has_the_files_and_what_was_lost(call_cli, run_file, tmp_path):
    keys = ("layout.recompute=selective", "--out", tmp_path / "m", "--json")
    answer = run(call_cli, "emit", "megatron", run_file, *keys).json()
    assert answer.keys() >= {"trainer", "version", "files", "command", "dropped", "changed", "assumed", "written"}
    assert answer["changed"][0]["key"] == "layout.recompute"
    assert answer["written"] == [str(tmp_path / "m" / "pretrain.sh")]


def test_a_served_model_is_emitted(call_cli, tmp_path):
    """An answer of `inference` gives an engine's launch line; a trainer refuses it, and the engine a run file."""
    asked = ("inference", "llama-3.1-8b", "--cluster", "dgx-h100", "--concurrency", "8", "--json")
    (tmp_path / "served.json").write_text(run(call_cli, *asked).out)
    out = run(call_cli, "emit", "vllm", tmp_path / "served.json", "--out", tmp_path / "v").out
    assert f"cd {tmp_path / 'v'} && bash serve.sh" in out
    assert "vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 1" in (tmp_path / "v" / "serve.sh").read_text()
    near = run(call_cli, "emit", "tensorrt-llm", tmp_path / "served.json", "--strict", "--print", code=1)
    assert "changed   engine vllm -> trtllm" in near.err
    assert "emit vllm or sglang" in run(call_cli, "emit", "megatron", tmp_path / "served.json", code=2).err
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(RUN))
    assert "no answer of `inference`" in run(call_cli, "emit", "kserve", tmp_path / "run.yaml", code=2).err
    assert (
        "--software-version"
        in run(call_cli, "emit", "vllm", tmp_path / "served.json", "--software-version", "0.9", code=2).err
    )


def test_a_plan_is_emitted(call_cli, tmp_path):
    sizes = ("--devices", "16", "--seq-len", "4096", "--global-batch", "64", "--framework", "megatron", "--json")
    plan = run(call_cli, "plan", "llama-3.2-1b", "--cluster", "dgx-h100", *sizes).json()
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    answer = run(call_cli, "emit", "megatron", tmp_path / "plan.json", "--print", "--json").json()
    layout = plan["best"][0]["layout"]
    words = answer["files"]["pretrain.sh"].split()
    assert words[words.index("--micro-batch-size") + 1] == str(layout["micro_batch"])
    assert words[words.index("--global-batch-size") + 1] == "64"
    assert words[words.index("--seq-length") + 1] == "4096"


def test_mistakes_are_one_line(call_cli, run_file, tmp_path):
    assert "did you mean" in run(call_cli, "emit", "megatrn", run_file, code=2).err
    assert "nothing to read" in run(call_cli, "read", code=2).err
    (tmp_path / "x.yaml").write_text("a: 1\n")
    assert "no trainer's configuration" in run(call_cli, "read", tmp_path / "x.yaml", code=2).err
    (tmp_path / "x.json").write_text("{")
    assert "it is no JSON" in run(call_cli, "read", tmp_path / "x.json", code=2).err


def test_read_gives_a_run_file_that_loads(call_cli, tmp_path):
    result = run(call_cli, "read", "--argv", LINE, "--out", tmp_path / "run.yaml")
    back = load_run(tmp_path / "run.yaml")
    assert (back.layout.devices, back.layout.tp, back.layout.zero_stage) == (16, 8, 1)
    assert "not read  new-flag 1" in result.err
    assert "# not read: new-flag 1" in (tmp_path / "run.yaml").read_text()
    again = run(call_cli, "read", "--argv", LINE, "layout.devices=32", "layout.global_batch=128").out
    assert yaml.safe_load(again)["layout"]["devices"] == 32
    answer = run(call_cli, "read", "--argv", LINE, "--json").json()
    assert answer["unread"][0]["key"] == "new-flag"
    assert answer["run"]["layout"]["tp"] == 8


def test_plan_from_a_command_line_says_what_would_beat_it(call_cli):
    answer = run(call_cli, "plan", "--from", LINE, "--cluster", "dgx-h100", "--json").json()
    yours, best = answer["yours"], answer["best"][0]
    assert yours["layout"]["tp"] == 8
    assert best["framework"].startswith("megatron")
    assert yours["gain_pct"] == pytest.approx(100 * (best["tokens_per_s"] / yours["tokens_per_s"] - 1))
    gains = [row["gain_pct"] for row in yours["changes"]]
    assert gains == sorted(gains, reverse=True)
    assert any(row["change"] == "tp / 2" for row in yours["changes"])
    text = run(call_cli, "plan", "--from", LINE, "--cluster", "dgx-h100").out
    assert "yours" in text
    assert "tp / 2 alone" in text


def test_predict_from_a_file_takes_flags_over_it(call_cli, tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(LINE)
    layout = run(call_cli, "predict", "--from", script, "--cluster", "dgx-h100", "--json").json()["layout"]
    assert (layout["tp"], layout["zero_stage"], layout["global_batch"]) == (8, 1, 64)
    changed = run(call_cli, "predict", "--from", script, "--cluster", "dgx-h100", "--tp", "4", "--json").json()
    assert changed["layout"]["tp"] == 4
    missing = run(call_cli, "predict", "--from", script, code=2)
    assert "--cluster is missing" in missing.err


def test_they_need_no_torch(run_file, tmp_path):
    result = run_without_torch(["emit", "megatron", str(run_file), "--print"], ["read", "--argv", LINE])
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("end", ["\n", "\r", "\x85", "\u2028", "\x1b[2J"])
def test_a_setting_that_was_not_read_adds_no_key(call_cli, tmp_path, end):
    theirs = {"model_name_or_path": "gpt2", "stage": "pt", "cutoff_len": 8, f"odd{end}init: there #": f"a{end}b: 1"}
    (tmp_path / "theirs.yaml").write_text(yaml.safe_dump(theirs))
    text = run(call_cli, "read", tmp_path / "theirs.yaml").out
    assert set(yaml.safe_load(text)) <= {"model", "layout", "data", "seed", "optimizer", "lr_schedule", "train"}


@pytest.mark.parametrize("key", ["odd", "deepspeed", "dataset", "warmup_steps"])
def test_aliases_of_aliases_are_no_endless_work(call_cli, tmp_path, key):
    levels = "".join(f"b{i + 1}: &b{i + 1} [{', '.join([f'*b{i}'] * 9)}]\n" for i in range(9))
    text = f"model_name_or_path: gpt2\nstage: pt\ncutoff_len: 8\nb0: &b0 x\n{levels}{key}: *b9\n"
    (tmp_path / "theirs.yaml").write_text(text)
    assert "aliases expand" in run(call_cli, "read", tmp_path / "theirs.yaml", code=2).err


def test_a_long_value_is_shown_in_part(call_cli, tmp_path):
    theirs = {"model_name_or_path": "gpt2", "stage": "pt", "cutoff_len": 8, "odd": "x" * 1_000_000}
    (tmp_path / "theirs.yaml").write_text(yaml.safe_dump(theirs))
    answer = run(call_cli, "read", tmp_path / "theirs.yaml")
    assert max(map(len, f"{answer.out}{answer.err}".splitlines())) < 500


def test_what_is_no_run_says_what_to_give(call_cli, tmp_path):
    """An answer of `predict` or a script in the place of a plan: one line, not one for each key."""
    flags = ("--cluster", "dgx-h100", "--devices", "8", "--seq-len", "2048", "--global-batch", "64", "--json")
    (tmp_path / "answer.json").write_text(call_cli("predict", "llama-3.2-1b", *flags).out)
    assert (
        "give what `plan --json` printed"
        in run(call_cli, "emit", "megatron", str(tmp_path / "answer.json"), code=2).error
    )
    (tmp_path / "pretrain.sh").write_text(LINE)
    assert (
        "`scalewright read FILE --out run.yaml`"
        in run(call_cli, "emit", "torchtitan", str(tmp_path / "pretrain.sh"), code=2).error
    )

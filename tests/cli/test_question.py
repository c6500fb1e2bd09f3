"""What a file has of a run reaches predictions, plans, run files and other trainers' files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from emit.test_in_place import SCRIPT
from scalewright.spec.run import load_run

RUN = """name: mine
seed: 5
model: llama-3.2-1b
layout: {devices: 8, zero_stage: 1, micro_batch: 2, global_batch: 64}
optimizer: {name: lion, lr: 1e-4}
data: {train: corpus, seq_len: 2048}
lr_schedule: {kind: linear, warmup_steps: 50}
train: {steps: 777}
"""


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_a_script_planned_and_emitted_is_the_script(call_cli: Any, tmp_path: Path) -> None:
    """Its own learning rate, steps, warm-up, schedule, seed, data and tokenizer."""
    script = write(tmp_path, "pretrain.sh", SCRIPT)
    answer = call_cli("plan", "--from", script, "-c", "dgx-h100", "--json")
    plan = write(tmp_path, "plan.json", answer.out)
    assert answer.json()["from"] == {"trainer": "megatron", "source": script}
    emitted = call_cli("emit", "megatron", plan, "--print").out
    rest = "--lr 3.0e-4 --min-lr 3.0e-5 --train-iters 10000 --lr-warmup-iters 500 --lr-decay-style linear"
    for line in (rest, "--tokenizer-type HuggingFaceTokenizer --tokenizer-model meta/llama3", "--seed 7"):
        assert line in emitted
    other = call_cli("emit", "torchtitan", plan, "--software-version", "0.2", "--print").out
    assert "lr = 0.0003" in other
    assert "steps = 10000" in other
    assert "warmup_steps = 500" in other


def test_a_plan_of_flags_alone_still_assumes_the_rest(call_cli: Any, tmp_path: Path) -> None:
    flags = ("--cluster", "dgx-h100", "--devices", "8", "--seq-len", "2048", "--global-batch", "64")
    plan = write(tmp_path, "plan.json", call_cli("plan", "llama-3.2-1b", *flags, "--json").out)
    assert "data, optimizer and steps are defaults" in call_cli("emit", "megatron", plan, "--print").err


def test_a_run_files_optimizer_is_priced(call_cli: Any, tmp_path: Path) -> None:
    path = write(tmp_path, "lion.yaml", RUN)
    answer = call_cli("predict", "--from", path, "-c", "dgx-h100", "--json").json()
    assert answer["optimizer"] == "lion"
    flags = ("--layout", "devices=8,zero_stage=1,micro_batch=2,global_batch=64", "--seq-len", "2048")
    asked = call_cli("predict", "llama-3.2-1b", *flags, "-c", "dgx-h100", "--optimizer", "lion", "--json").json()
    assert answer["memory_gib"]["optimizer"] == asked["memory_gib"]["optimizer"]
    assert not [line for line in answer["assumed"] if "adamw" in line]


def test_a_planned_run_file_keeps_the_run(call_cli: Any, tmp_path: Path) -> None:
    path, out = write(tmp_path, "run.yaml", RUN), tmp_path / "planned.yaml"
    call_cli("plan", "--from", path, "-c", "dgx-h100", "--out", out)
    before, after = (load_run(file, []).dump() for file in (path, out))
    changed = {key for key in before if before[key] != after[key]}
    assert changed <= {"layout", "cluster"}


def test_a_planned_run_file_validates_where_the_folder_can(call_cli: Any, tmp_path: Path) -> None:
    (tmp_path / "data" / "valid").mkdir(parents=True)
    path, out = write(tmp_path, "run.yaml", RUN), tmp_path / "planned.yaml"
    call_cli("plan", "--from", path, "-c", "dgx-h100", "--out", out, "--data", tmp_path / "data")
    data = yaml.safe_load(out.read_text())["data"]
    assert data == {"train": str(tmp_path / "data"), "valid": str(tmp_path / "data"), "seq_len": 2048}


def test_the_files_precision_is_planned_in(call_cli: Any, tmp_path: Path) -> None:
    script = write(tmp_path, "pretrain.sh", SCRIPT.replace("--bf16", "--bf16 --fp8-format hybrid"))
    answer = call_cli("plan", "--from", script, "-c", "dgx-h100", "--json").json()
    assert {choice["layout"]["precision"] for choice in [*answer["best"], answer["yours"]]} == {"fp8"}
    asked = call_cli("plan", "--from", script, "-c", "dgx-h100", "--precision", "bf16", "--json").json()
    assert asked["best"][0]["layout"]["precision"] == "bf16"


# A file that states its batch for each rank: a micro-batch of 2, 4 of them a step, and a network of its own.
NETWORK = "llama-3.2-1b"
BATCHES: dict[str, tuple[str, str]] = {
    "deepspeed": (
        "ds_config.json",
        '{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "bf16": {"enabled": true}}',
    ),
    "axolotl": (
        "axolotl.yaml",
        "base_model: meta-llama/Llama-3.2-1B\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\n"
        "sequence_len: 2048\n",
    ),
    "llama-factory": (
        "lf.yaml",
        "model_name_or_path: meta-llama/Llama-3.2-1B\nstage: pt\nfinetuning_type: full\ndo_train: true\n"
        "cutoff_len: 2048\nper_device_train_batch_size: 2\ngradient_accumulation_steps: 4\n",
    ),
    "gpt-neox": (
        "neox.yml",
        '{"num_layers": 16, "pipe_parallel_size": 1, "hidden_size": 2048,\n'
        '"num_attention_heads": 16, "seq_length": 2048,\n'
        '"max_position_embeddings": 2048, "train_micro_batch_size_per_gpu": 2,\n'
        '"gradient_accumulation_steps": 4, "pos_emb": "rotary"}\n',
    ),
    "torchtitan": (
        "titan.toml",
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 8\nseq_len = 2048\n'
        "[parallelism]\ntensor_parallel_degree = 1\n",
    ),
    "megatron": (
        "p.sh",
        "torchrun --nproc_per_node 1 pretrain_gpt.py --num-layers 16 --hidden-size 2048 "
        "--num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 8 "
        "--vocab-size 32000 --tensor-model-parallel-size 1",
    ),
    "maxtext": (
        "maxtext.yml",
        "base_emb_dim: 2048\nbase_num_query_heads: 16\nbase_num_kv_heads: 16\nbase_mlp_dim: 8192\n"
        "base_num_decoder_layers: 16\nhead_dim: 128\nvocab_size: 32000\nmax_target_length: 2048\n"
        "per_device_batch_size: 2\ngradient_accumulation_steps: 4\nici_fsdp_parallelism: -1\n",
    ),
}


@pytest.mark.parametrize("trainer", BATCHES)
def test_a_batch_of_each_rank_grows_with_the_devices(
    call_cli: Callable[..., Any], tmp_path: Path, trainer: str
) -> None:
    name, text = BATCHES[trainer]
    path = write(tmp_path, name, text)
    model = [] if trainer in ("gpt-neox", "megatron", "maxtext") else [NETWORK]
    flags = ("--from", path, "-c", "dgx-h100", "--devices", "16", "--json")
    priced = call_cli("predict", *model, *flags)
    assert priced.code == 0, priced.err
    assert priced.json()["layout"]["global_batch"] == 8 * 16
    planned = call_cli("plan", *model, *flags)
    assert planned.code == 0, planned.err
    assert planned.json()["yours"]["layout"]["global_batch"] == planned.json()["global_batch"] == 8 * 16
    guesses = ("micro_batch", "global_batch", "devices")
    assert not [line for line in planned.json()["assumed"] if line.startswith(guesses)]


def test_what_was_not_understood_is_in_the_answer(call_cli: Any, tmp_path: Path) -> None:
    script = write(tmp_path, "pretrain.sh", SCRIPT.replace("--bf16", "--bf16 --no-such-flag 3"))
    answer = call_cli("plan", "--from", script, "-c", "dgx-h100", "--json")
    assert {"key": "no-such-flag", "value": "3"}.items() <= answer.json()["unread"][0].items()
    assert json.loads(answer.out)
    assert "not read  no-such-flag 3" in answer.err


def test_emit_needs_a_file_and_does_not_replace_one(call_cli: Any, tmp_path: Path) -> None:
    flags = ("--cluster", "dgx-h100", "--devices", "8", "--seq-len", "2048", "--global-batch", "64")
    answer = call_cli("plan", "llama-3.2-1b", *flags, "--emit")
    assert answer.code == 2
    assert "--from" in answer.error
    script = write(tmp_path, "pretrain.sh", SCRIPT)
    refused = call_cli("plan", "--from", script, "-c", "dgx-h100", "--emit", "--data", "x", "--out", "y")
    assert (refused.code, "--data is for" in refused.error) == (2, True)
    kept = Path(script).read_text()
    answer = call_cli("plan", "--from", script, "-c", "dgx-h100", "--emit", "--out", script)
    assert answer.code == 2
    assert Path(script).read_text() == kept
    out = tmp_path / "new.sh"
    answer = call_cli("plan", "--from", script, "-c", "dgx-h100", "--emit", "--out", out)
    assert answer.code == 0
    assert "-TP=8; PP=1" in answer.out.replace("  -", "-")
    first = out.read_text()
    again = call_cli("plan", "--from", script, "-c", "dgx-h100", "--emit", "--out", out, "--fix", "tp=2")
    assert (again.code, out.read_text() == first) == (0, False)  # its own file, in another layout
    out.write_text(out.read_text() + "echo mine\n")
    assert call_cli("plan", "--from", script, "-c", "dgx-h100", "--emit", "--out", out).code == 2


def test_the_text_has_the_reason_and_what_is_left_to_the_user(call_cli: Any, tmp_path: Path) -> None:
    config = '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}}'
    path = write(tmp_path, "ds.json", config)
    size = ("llama-3.2-1b", "-c", "dgx-h100", "--devices", "8", "--seq-len", "4096", "--global-batch", "64")
    answer = call_cli("plan", *size, "--from", path, "--emit", "--fix", "cp=2")
    assert "the file anew: " in answer.out
    assert "can't be edited in place" not in answer.out  # the reason itself stands there
    assert "train.py, samples.py, config.json aren't written beside it" in answer.out
    kept = write(tmp_path, "pre.sh", SCRIPT.replace("--num-layers", "--load a --save a --num-layers"))
    answer = call_cli("plan", "--from", kept, "-c", "dgx-h100", "--fix", "zero_stage=2", "--emit")
    assert "your file in this layout" in answer.out
    assert "--ckpt-format is fsdp_dtensor: checkpoints of torch_dist aren't loaded by it" in answer.out


@pytest.mark.parametrize(
    "flags", [("--devices", "32"), ("--framework", "torchtitan"), ("--nodes", "1", "--global-batch", "64")]
)
def test_other_sizes_or_another_trainers_prices_give_the_same_file_back(
    call_cli: Any, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    script = write(tmp_path, "pretrain.sh", SCRIPT.replace("${NNODES:-2}", "2"))
    answer = call_cli("plan", "--from", script, "-c", "dgx-h100", "--emit", "--json", *flags)
    assert answer.code == 0, answer.err
    emitted = answer.json()["emitted"]
    assert (emitted["trainer"], emitted["in_place"]) == ("megatron", True)
    again = write(tmp_path, "again.sh", emitted["files"]["pretrain.sh"])
    layout = call_cli("predict", "--from", again, "-c", "dgx-h100", "--json").json()["layout"]
    best = answer.json()["best"][0]["layout"]
    assert (layout["devices"], layout["global_batch"]) == (best["devices"], best["global_batch"])


def test_a_file_without_its_model_and_one_that_has_gone(call_cli: Any, tmp_path: Path) -> None:
    text = '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}, "train_batch_size": 64, '
    text += '"x": {"y": 1}}'
    path = write(tmp_path, "ds_config.json", text)
    flags = ("--from", path, "-c", "dgx-h100", "--devices", "8", "--json")
    plan = write(tmp_path, "plan.json", call_cli("plan", "llama-3.2-1b", *flags).out)
    emitted = call_cli("emit", "deepspeed", plan, "--json", "--out", tmp_path / "out").json()
    assert '"x": {"y": 1}' in emitted["files"]["ds_config.json"]
    Path(path).unlink()
    emitted = call_cli("emit", "deepspeed", plan, "--json", "--out", tmp_path / "other").json()
    assert any(f"in place of {path}" in line for line in emitted["assumed"])


def test_a_release_that_is_asked_for_is_written(call_cli: Any, tmp_path: Path) -> None:
    path = write(tmp_path, "titan.toml", BATCHES["torchtitan"][1])
    flags = ("--from", path, "-c", "dgx-h100", "--devices", "16", "--json")
    plan = write(tmp_path, "plan.json", call_cli("plan", "llama-3.1-8b", *flags).out)
    emitted = call_cli("emit", "torchtitan", plan, "--software-version", "0.3", "--print").out
    assert "ParallelismConfig(" in emitted


def test_a_question_from_python(tmp_path: Path) -> None:
    import scalewright as sw

    asked = sw.read(write(tmp_path, "run.yaml", RUN))
    priced = sw.predict(asked, "dgx-h100")
    assert (priced["optimizer"], priced["layout"]["global_batch"]) == ("lion", 64)
    assert sw.predict(asked, "dgx-h100", tp=2)["layout"]["tp"] == 2
    assert sw.plan(asked, "dgx-h100", devices=16, explain=False)["best"][0]["optimizer"] == "lion"


def test_a_layout_of_yours_that_may_not_fit_says_so_where_the_plan_is_slower(call_cli: Any, tmp_path: Path) -> None:
    file = write(tmp_path, "run.sh", """#!/bin/bash
cat > ds.json <<EOT
{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}
EOT
deepspeed --num_nodes 4 --num_gpus 8 run_clm.py --model_name_or_path Qwen/Qwen2.5-7B --deepspeed ds.json \\
  --block_size 4096 --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --bf16 --output_dir out
""")  # fmt: skip
    answer = call_cli("plan", "--from", file, "-c", "dgx-h100", "--json").json()
    assert answer["yours"]["risk"] == call_cli("predict", "--from", file, "-c", "dgx-h100", "--json").json()["risk"]
    shown = call_cli("plan", "--from", file, "-c", "dgx-h100").out
    assert answer["yours"]["risk"] == "likely"
    assert "slower than yours, which is only likely to fit" in shown
    assert "next      add `--emit` to see your own file in this layout\n" in shown
    assert "GiB; likely to fit; " in next(line for line in shown.splitlines() if line.startswith("yours"))


def test_gradients_in_two_bytes_are_half_of_those_in_four(call_cli: Any, tmp_path: Path) -> None:
    """Megatron-LM's `--grad-reduce-in-bf16`; a flag of ours goes before the script's."""
    halved = write(tmp_path, "halved.sh", SCRIPT.replace("--bf16", "--bf16 --grad-reduce-in-bf16"))
    flags = ("-c", "dgx-h100", "--json")
    sizes = [
        call_cli("predict", "--from", *words, *flags).json()["memory_gib"]["gradients"]
        for words in ((write(tmp_path, "pretrain.sh", SCRIPT),), (halved,), (halved, "--options", "bf16_grads=0"))
    ]
    assert sizes[0] == sizes[2] == pytest.approx(2 * sizes[1], rel=1e-6)
    assert "# priced alone, by --options: bf16_grads=1" in call_cli("read", halved).out

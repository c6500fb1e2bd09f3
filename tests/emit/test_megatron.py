"""Megatron-LM's arguments: written, read again, and read from the forms in which people have them."""

from __future__ import annotations

from typing import Any

import pytest

from emit.random_runs import COUNTS, DENSE, MIXTURE, differences, random_runs
from scalewright.emit.megatron.layout import _read_cut
from scalewright.emit.megatron.model import _listed
from scalewright.emit.read import read_argv, read_text
from scalewright.emit.settings import settings_of
from scalewright.emit.write import emit
from scalewright.plan.switches import check_names
from scalewright.spec.errors import UserError
from scalewright.spec.run import RunSpec

KEYS = ("layout", "model", "optimizer", "data.seq_len", "train.steps", "seed", "lr_schedule")
SCRIPT = """#!/bin/bash
# Llama 8B on NNODES nodes
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-4}
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
SEQ=8192
MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096   # wide
    --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8
    --seq-length $SEQ --max-position-embeddings ${SEQ} --swiglu --normalization RMSNorm
    --disable-bias-linear --position-embedding-type rope --rotary-base 500000
    --untie-embeddings-and-output-weights --attention-dropout 0.0 --hidden-dropout 0.0 --vocab-size 128256
)
PARALLEL="--tensor-model-parallel-size ${TP:-2} --pipeline-model-parallel-size 4 --sequence-parallel"
PARALLEL+=" --use-distributed-optimizer --num-layers-per-virtual-pipeline-stage 4"
if [ -n "$DEBUG" ]; then echo debugging; fi
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py \\
    ${MODEL_ARGS[@]} ${PARALLEL} \\
    --micro-batch-size 1 --global-batch-size 256 --lr 3e-4 --min-lr 3e-5 --train-iters 1000 --bf16 \\
    --recompute-granularity full --recompute-method block --recompute-num-layers 1 --no-such-flag 7
"""


def run(**keys: Any) -> RunSpec:
    return RunSpec.parse({"model": DENSE, "data": {"train": "corpus", "seq_len": 2048}, **keys})


def words(emitted: Any) -> str:
    return " ".join(emitted.files["pretrain.sh"].split())


@COUNTS
def test_random_runs_come_back(count: int):
    for settings in random_runs(count, seed=1):
        emitted = emit("megatron", settings)
        reading = read_text(emitted.files["pretrain.sh"], ".sh", "pretrain.sh")
        assert not differences(settings, emitted, reading, KEYS), settings.layout
        assert not reading.unread


def test_a_script_is_read_without_being_run():
    reading = read_text(SCRIPT, ".sh", "train.sh")
    layout, model = reading.run["layout"], reading.run["model"]
    assert (layout["devices"], layout["tp"], layout["pp"], layout["virtual_stages"]) == (32, 2, 4, 2)
    assert (layout["schedule"], layout["zero_stage"], layout["sp"]) == ("interleaved", 1, True)
    assert (layout["global_batch"], layout["precision"]) == (256, "bf16")
    assert layout["recompute"] == {"every": 4}  # the first of the 4 layers of each of 8 stages
    assert (model["context"], model["num_key_value_heads"], model["mlp_type"]) == (8192, 8, "swiglu")
    assert reading.run["lr_schedule"]["min_ratio"] == pytest.approx(0.1)
    assert [(item.key, item.value) for item in reading.unread] == [("no-such-flag", "7")]


def test_a_pasted_command_line_has_megatron_s_defaults_where_it_is_silent():
    line = (
        "srun -n 16 python pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 "
        "--micro-batch-size 2 --seq-length 2048 --max-position-embeddings 2048 --fp16 --num-experts 8 "
        "--tensor-model-parallel-size 2 --expert-model-parallel-size 2"
    )
    reading = read_argv(line)
    model, layout = reading.run["model"], reading.run["layout"]
    assert (model["norm_type"], model["mlp_type"], model["positions"]) == ("layernorm", "gelu_tanh", "learned")
    assert (model["intermediate_size"], model["mlp_bias"], model["tie_word_embeddings"]) == (8192, True, True)
    assert (layout["devices"], layout["etp"], layout["ep"]) == (16, 2, 2)  # etp is tp there
    assert layout["global_batch"] == 2 * 8  # a micro-batch of each of 8 data-parallel ranks
    assert any("vocab_size" in text for text in reading.assumed)


def test_a_test_s_yaml_and_printed_arguments_are_read():
    arguments = {"num-layers": 8, "hidden-size": 512, "num-attention-heads": 8, "seq-length": 1024,
                 "max-position-embeddings": 1024, "micro-batch-size": 4, "global-batch-size": 32,
                 "pipeline-model-parallel-size": 2, "vocab-size": 1000}  # fmt: skip
    yaml = "MODEL_ARGS:\n" + "".join(f"  --{name}: {value}\n" for name, value in arguments.items())
    printed = "".join(
        f"  {name.replace('-', '_')} {'.' * 20} {value}\n"
        for name, value in {**arguments, "world-size": 4, "fp16": False, "bf16": True}.items()
    ).replace("pipeline_model", "tensor_model_parallel_size ............ 1\n  pipeline_model")
    first = read_text(yaml + "  --bf16: true\n", ".yaml", "model_config.yaml").run
    second = read_text(f"---- arguments ----\n{printed}", ".log", "train.log").run
    assert first["model"] == second["model"]
    assert (first["layout"]["devices"], second["layout"]["devices"]) == (2, 4)
    assert {**first["layout"], "devices": 4} == second["layout"]


def test_what_it_can_only_do_nearly_is_reported():
    layout = {"devices": 16, "pp": 4, "tp": 2, "schedule": "zb-h1", "recompute": {"every": 2},
              "offload": "activations", "global_batch": 16}  # fmt: skip
    emitted = emit("megatron", settings_of(run(layout=layout)))
    assert {item.key for item in emitted.changed} == {"layout.schedule", "layout.recompute"}
    assert [item.key for item in emitted.dropped] == ["layout.offload"]
    assert "--recompute-method block --recompute-num-layers 2" in words(emitted)


@pytest.mark.parametrize(
    ("layers", "text"),
    [([3, 5, 5, 3], "Et*3|t*5|t*5|t*3L"), ([0, 15, 1, 0], "E|t*15|t|L"), ([0, 8, 8, 0], "E|t*8|t*8|L")],
)
def test_stages_that_differ_are_written_exactly(layers, text):
    layout = {"devices": 4, "pp": 4, "stage_layers": layers}
    emitted = emit("megatron", settings_of(run(layout=layout)))
    assert f"--pipeline-model-parallel-layout '{text}'" in words(emitted)
    reading = read_text(emitted.files["pretrain.sh"], ".sh", "")
    assert reading.run["layout"]["stage_layers"] == layers
    assert _read_cut("Et|(tt|)*3,tL") == [1, 2, 2, 2, 1]


def test_stages_of_the_embedding_and_of_the_head_alone_come_back():
    layout = {"devices": 4, "pp": 4, "schedule": "interleaved", "virtual_stages": 2, "stage_layers": "0,1x6,0",
              "global_batch": 8}  # fmt: skip
    emitted = emit("megatron", settings_of(run(model={**DENSE, "num_hidden_layers": 6}, layout=layout)))
    assert "--pipeline-model-parallel-layout 'E|(t|)*6L'" in words(emitted)
    reading = read_text(emitted.files["pretrain.sh"], ".sh", "").run["layout"]
    assert (reading["stage_layers"], reading["virtual_stages"]) == ([0, *[1] * 6, 0], 2)


@pytest.mark.parametrize(
    ("layers", "flags", "stages"),
    [
        (126, "--num-virtual-stages-per-pipeline-rank 8 {embedding} {loss}", [0, *[1] * 126, 0]),
        (62, "--num-layers-per-virtual-pipeline-stage 2 {embedding} {loss}", [1, *[2] * 30, 1]),
        (30, "--num-virtual-stages-per-pipeline-rank 1 {embedding} {loss}", [1, *[2] * 14, 1]),
        (31, "{embedding}", [1, *[2] * 15]),
        (31, "{loss}", [*[2] * 15, 1]),
        (30, "--decoder-first-pipeline-num-layers 0 --decoder-last-pipeline-num-layers 2", [0, *[2] * 15]),
        (60, "--decoder-first-pipeline-num-layers 2 --decoder-last-pipeline-num-layers 2 --vpp 2",
         [1, *[2] * 14, 1, 1, *[2] * 14, 1]),
    ],
)  # fmt: skip
def test_ends_that_count_as_layers_are_read(layers, flags, stages):
    ends = {name: f"--account-for-{name}-in-pipeline-split" for name in ("embedding", "loss")}
    flags = flags.format(**ends).replace("--vpp", "--num-virtual-stages-per-pipeline-rank")
    model = f"--num-layers {layers} --hidden-size 1024 --num-attention-heads 8 --seq-length 4096 --vocab-size 1000"
    text = f"torchrun pretrain_gpt.py {model} --pipeline-model-parallel-size 16 --micro-batch-size 1 {flags}\n"
    reading = read_text(text, ".sh", "")
    assert reading.run["layout"]["stage_layers"] == stages
    assert not [item for item in reading.unread if "pipeline" in str(item)]


def test_a_mixture_s_layers_shared_experts_and_latent_attention_come_back():
    moe = {**MIXTURE["moe"], "num_shared_experts": 1, "shared_intermediate_size": 512, "first_k_dense": 1,
           "score": "sigmoid", "router_bias": True, "groups": 4, "top_groups": 2,
           "routed_scale": 2.5}  # fmt: skip
    mla = {"kv_lora_rank": 128, "q_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64}
    model = {**MIXTURE, "moe": moe, "mla": mla, "num_key_value_heads": 16, "mtp_layers": 1}
    layout = {"devices": 8, "tp": 2, "ep": 4, "etp": 1, "precision": "bf16"}
    settings = settings_of(run(model=model, layout=layout))
    emitted = emit("megatron", settings)
    reading = read_text(emitted.files["pretrain.sh"], ".sh", "")
    assert not differences(settings, emitted, reading, (*KEYS, "train.balance", "train.mtp_weight"))
    assert not emitted.dropped


@pytest.mark.parametrize(
    ("text", "marks"),
    [("([0]*2+[1]*3)", [0, 0, 1, 1, 1]), ("[1,0]", [1, 0]), ("2", [2]), ("__import__('os')", []), ("[1]*x", [])],
)
def test_lists_of_layers_are_read_without_evaluating_them(text, marks):
    assert _listed(text) == marks


def test_a_script_without_a_launch_line_is_refused():
    with pytest.raises(UserError, match="no command line of a Python program"):
        read_text("ARGS=(--num-layers 4)\n", ".sh", "args.sh")


def test_a_mistyped_flag_gets_the_nearest_name() -> None:
    line = "torchrun --nproc-per-node 2 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4"
    typo, unknown = read_argv(f"{line} --tensor-model-parallel-siz 2 --colour blue").unread
    assert typo.why.endswith("did you mean 'tensor-model-parallel-size'?")
    assert unknown.why == "not a setting that a run of ours has"


@pytest.mark.parametrize(
    ("flags", "schedule"),
    [
        ("--train-samples 2560 --lr-warmup-samples 256", (10, 1, None)),
        ("--train-samples 2560 --lr-warmup-samples 512 --lr-decay-samples 2048", (10, 2, 6)),
        ("--train-samples 2560 --lr-warmup-iters 0 --lr-warmup-samples 512", (10, 2, None)),
        ("--train-samples 2560 --lr-decay-samples 2048 --lr-warmup-fraction 0.25", (10, 2, 6)),
        ("--train-samples 2560 --lr-decay-style WSD --lr-wsd-decay-samples 1024", (10, 0, 4)),
        ("--train-iters 10 --lr-warmup-iters 3", (10, 3, None)),
    ],
)
def test_samples_become_steps(flags: str, schedule: tuple[int, int, int | None]) -> None:
    sizes = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64"
    line = f"torchrun --nproc_per_node 8 pretrain_gpt.py {sizes} --micro-batch-size 1 --global-batch-size 256 {flags}"
    reading = read_text(line, ".sh", "run.sh")
    rates = reading.run["lr_schedule"]
    assert (reading.run["train"]["steps"], rates["warmup_steps"], rates.get("decay_steps")) == schedule
    assert not reading.unread


def test_what_megatron_deepspeed_has_beside() -> None:
    line = "deepspeed --num_gpus 8 pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 "
    words = (
        "--seq-length 32 --position-embedding-type alibi --embed-layernorm --pad-vocab-size-to 250880 --num-experts 4 4"
    )
    run = read_argv(line + words + " --activations-checkpoint-method uniform").run
    model = run["model"]
    assert (model["positions"], model["embedding_norm"], model["vocab_size"]) == ("alibi", True, 250880)
    assert (model["moe"]["num_experts"], run["layout"]["recompute"]) == (4, "full")
    with pytest.raises(UserError, match=r"layers with different numbers of experts \(32, 64\)"):
        read_argv(f"{line} --num-experts 32 32 64")


def test_a_share_of_steps_that_are_not_given_is_named() -> None:
    line = "torchrun pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --lr-warmup-fraction 0.05"
    assert "no warm-up: theirs is 0.05 of a run whose steps aren't given" in read_argv(line).assumed
    assert read_argv(f"{line} --train-iters 200").run["lr_schedule"]["warmup_steps"] == 10


@pytest.mark.parametrize(
    ("flag", "option"),
    [
        ("--grad-reduce-in-bf16", "bf16_grads"), ("--tp-comm-overlap", "tp_overlap"),
        ("--fp8-param-gather", "fp8_gather"), ("--moe-permute-fusion", "permute_fusion"),
        ("--overlap-moe-expert-parallel-comm", "ep_overlap"),
    ],
)  # fmt: skip
def test_flags_that_are_priced_are_read(flag, option):
    assert check_names({option: "1"}) is None
    text = SCRIPT.replace("--bf16", f"--bf16 {flag}")
    assert text != SCRIPT
    reading = read_text(text, ".sh", "")
    assert reading.options == {option: "1"}
    assert not [item for item in reading.unread if item.key == flag[2:]]
    assert reading.dump()["options"] == {option: "1"}
    assert read_text(SCRIPT, ".sh", "").options == {}

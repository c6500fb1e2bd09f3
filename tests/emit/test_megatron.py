"""Megatron-LM's arguments: written, read again, and read from the forms in which people have them."""

from __future__ import annotations

from typing import Any

import pytest

from emit.random_runs import DENSE, MIXTURE, differences, random_runs
from scalewright.emit.megatron.layout import _read_cut
from scalewright.emit.megatron.model import _listed
from scalewright.emit.read import read_argv, read_text
from scalewright.emit.settings import settings_of
from scalewright.emit.write import emit
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


def test_two_hundred_random_runs_come_back():
    for settings in random_runs(200, seed=1):
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


def test_stages_that_differ_are_written_exactly():
    layout = {"devices": 4, "pp": 4, "stage_layers": [3, 5, 5, 3]}
    emitted = emit("megatron", settings_of(run(layout=layout)))
    assert "--pipeline-model-parallel-layout 'Et*3|t*5|t*5|t*3L'" in words(emitted)
    reading = read_text(emitted.files["pretrain.sh"], ".sh", "")
    assert reading.run["layout"]["stage_layers"] == [3, 5, 5, 3]
    assert _read_cut("Et|(tt|)*3,tL") == [1, 2, 2, 2, 1]


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

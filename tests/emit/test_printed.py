"""Arguments in a log: a line states its keys, and all of a trainer's are a run, as its own reader has it."""

from __future__ import annotations

from typing import Any

import pytest

from scalewright.emit.printed import SIZES, WORDS, Printed
from scalewright.emit.read import read_argv, read_text
from scalewright.spec.model import ModelSpec
from scalewright.spec.run import RunSpec

MEGATRON = {
    "num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336, "num_attention_heads": 32,
    "group_query_attention": True, "num_query_groups": 8, "swiglu": True, "seq_length": 8192,
    "padded_vocab_size": 128256, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 4,
    "virtual_pipeline_model_parallel_size": 2, "context_parallel_size": 1, "micro_batch_size": 1,
    "global_batch_size": 128, "world_size": 64, "bf16": True, "fp16": False, "train_iters": 100,
}  # fmt: skip
MAXTEXT = {
    "model_name": "default", "base_emb_dim": 4096, "base_num_decoder_layers": 32, "base_num_query_heads": 32,
    "base_num_kv_heads": 8, "base_mlp_dim": 14336, "head_dim": 128, "vocab_size": 128256,
    "mlp_activations": "['silu', 'linear']", "max_target_length": 4096, "per_device_batch_size": 2.0,
    "ici_fsdp_parallelism": 8, "ici_tensor_parallelism": 2, "remat_policy": "full",
}  # fmt: skip


def printed(*lines: str) -> tuple[Printed, dict[str, Any]]:
    reader, stated = Printed(), {}
    for line in lines:
        stated |= reader.take(line)
    return reader, stated


def test_every_key_is_one_of_a_run() -> None:
    known = {"model": ModelSpec, "layout": RunSpec.model_fields["layout"].annotation}
    more = {"model.moe", "layout.dp", "layout.dp_shard", "layout.accumulation"}
    for key in {*SIZES.values(), *(ours for ours, _ in WORDS.values())}:
        section, _, name = key.partition(".")
        if section in known and not {key, key.rpartition(".")[0]} & more:
            assert name.split(".")[0] in known[section].model_fields, key  # type: ignore[union-attr]


def test_megatron_s_block_is_the_run_that_its_reader_makes_of_the_file() -> None:
    lines = [f"  {key} {'.' * 40} {value}" for key, value in MEGATRON.items()]
    reader, stated = printed(*(f"[default0]:{line}" for line in lines))
    reading = reader.reading()
    assert reading is not None
    assert reading == read_text("\n".join(lines), ".log", "train.log")
    layout = reading.run["layout"]
    assert (layout["devices"], layout["virtual_stages"], layout["schedule"]) == (64, 2, "interleaved")
    assert stated["layout.virtual_stages"] == 2
    assert stated["layout.precision"] == "bf16"


def test_a_command_line_is_read_as_a_pasted_one() -> None:
    line = ("torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
            "--num-attention-heads 32 --seq-length 4096 --tensor-model-parallel-size 4 --bf16")  # fmt: skip
    reader, stated = printed(line)
    assert reader.reading() == read_argv(line)
    assert (stated["layout.tp"], stated["model.num_hidden_layers"]) == (4, 32)


def test_maxtext_s_configuration_counts_sequences_of_a_device() -> None:
    reader, stated = printed(*(f"Config param {key}: {value}" for key, value in MAXTEXT.items()))
    reading = reader.reading()
    assert reading is not None
    assert reading.run["layout"]["micro_batch"] == 4  # of a tensor-parallel pair
    assert reading.run["layout"]["devices"] == 16
    assert (stated["layout.recompute"], stated["layout.micro_batch"]) == ("full", 4)


@pytest.mark.parametrize(
    ("more", "stage"),
    [({}, 0), ({"use_distributed_optimizer": True}, 1), ({"deepspeed": True, "zero_stage": 2}, 2),
     ({"zero_stage": 1.0}, 0), ({"use_megatron_fsdp": True, "use_distributed_optimizer": True,
                                 "data_parallel_sharding_strategy": "optim_grads_params"}, 3)],
)  # fmt: skip
def test_who_shards(more: dict[str, Any], stage: int) -> None:
    """DeepSpeed's stage counts where it is on: its arguments are printed where it is off, too."""
    reader, _ = printed(*(f"  {key} ..... {value}" for key, value in {**MEGATRON, **more}.items()))
    reading = reader.reading()
    assert reading is not None
    assert reading.run["layout"]["zero_stage"] == stage


@pytest.mark.parametrize("missing", ["seq_length", "hidden_size"])
def test_a_part_is_no_run(missing: str) -> None:
    lines = (f"  {key} ..... {value}" for key, value in MEGATRON.items() if key != missing)
    reader, stated = printed(*lines)
    assert reader.reading() is None
    assert stated["layout.tp"] == 2


def test_values_that_no_trainer_takes_are_no_run_and_no_error() -> None:
    for value in ("nan", "1e999", "-3", "x" * 10_000, "[[", "9" * 400, "0", "None"):
        reader, _ = printed(*(f"  {key} ..... {value}" for key in MEGATRON))
        reader.reading()
        reader, stated = printed(*(f"Config param {key}: {value}" for key in MAXTEXT))
        reader.reading()
        assert all(isinstance(ours, (int, str)) for ours in stated.values())


@pytest.mark.parametrize(
    ("line", "stated"),
    [
        ("[Rank 0]:   tensor_model_parallel_size ...................... 8", {"layout.tp": 8}),
        ("+ python pretrain_gpt.py --tensor-model-parallel-size=4 --sequence-parallel --bf16 --swiglu",
         {"layout.tp": 4, "layout.sp": True, "layout.precision": "bf16", "model.mlp_type": "swiglu"}),
        ("deepspeed train.py --model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 2",
         {"model.name": "meta-llama/Llama-3.1-8B", "layout.micro_batch": 2}),
        ("I0101 Config param remat_policy: minimal_with_context", {"layout.recompute": "none"}),
        ("Config param per_device_batch_size: 2.0", {"layout.micro_batch": 2}),
        ('  "hidden_size": 3072,', {"model.hidden_size": 3072}),
        ("[rank0]:[titan] INFO - Building device mesh with parallelism: pp=2, dp_shard=4, tp=8",
         {"layout.pp": 2, "layout.dp_shard": 4, "layout.tp": 8}),
        ("  num_query_groups ................................ 1", {}),  # of every model without groups
        ("  num_query_groups ................................ 8", {"model.num_key_value_heads": 8}),
    ],
)  # fmt: skip
def test_lines_as_trainers_print_them(line: str, stated: dict[str, Any]) -> None:
    assert printed(line)[1] == stated


@pytest.mark.parametrize(
    ("printed_groups", "grouped", "kv_heads"), [(8, None, 8), (1, None, 32), (8, False, 32), (8, True, 8)]
)
def test_query_groups_count_where_there_are_some(printed_groups: int, grouped: bool | None, kv_heads: int) -> None:
    """Of a whole block Megatron's own switch tells; of a part that lacks it, any number but the default."""
    keys = {key: value for key, value in MEGATRON.items() if key != "group_query_attention"}
    keys |= {"num_query_groups": printed_groups} | ({} if grouped is None else {"group_query_attention": grouped})
    reader, _ = printed(*(f"  {key} ..... {value}" for key, value in keys.items()))
    reading = reader.reading()
    assert reading is not None
    assert ModelSpec.parse(reading.run["model"]).num_key_value_heads == kv_heads


def test_a_script_that_prints_an_argument_is_a_script() -> None:
    script = (
        "#!/bin/bash\n# the log prints tensor_model_parallel_size ........ 2 when right\nTP=2\n"
        'echo "tensor_model_parallel_size ........ ${TP}"\n'
        "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --micro-batch-size 1 "
        "--num-attention-heads 32 --seq-length 4096 --tensor-model-parallel-size $TP --bf16\n"
    )
    run = read_text(script, ".sh", "pretrain.sh").run
    assert (run["layout"]["tp"], run["layout"]["devices"]) == (2, 8)

"""Megatron-Bridge's recipes and overrides, and NeMo's files: written, and read as people have them."""

from __future__ import annotations

from typing import Any

import pytest

from emit.random_runs import COUNTS, MIXTURE, differences, random_runs
from scalewright.emit.bridge.read import resolve
from scalewright.emit.question import as_run
from scalewright.emit.read import read_text
from scalewright.emit.settings import settings_of
from scalewright.emit.write import emit
from scalewright.spec.errors import UserError
from scalewright.spec.run import RunSpec

KEYS = ("layout", "model", "optimizer", "data.seq_len", "train.steps", "seed", "lr_schedule")
NEMO = """
trainer: {devices: 8, num_nodes: 4, precision: bf16, max_steps: 1000, gradient_clip_val: 0.5, max_time: "1:0"}
exp_manager: {name: llama, model_parallel_size: "${multiply:${model.tensor_model_parallel_size}, 2}"}
model:
  mcore_gpt: true
  micro_batch_size: 1
  global_batch_size: 128
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: 4
  encoder_seq_length: 4096
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: ${multiply:4, ${.hidden_size}}
  num_attention_heads: 32
  num_query_groups: 8
  normalization: layernorm1p
  activation: fast-swiglu
  bias: false
  hidden_dropout: 0.1
  position_embedding_type: rope
  rotary_percentage: 0.5
  share_embeddings_and_output_weights: false
  sequence_parallel: true
  transformer_block_type: normformer
  activations_checkpoint_granularity: full
  activations_checkpoint_method: block
  activations_checkpoint_num_layers: 1
  tokenizer: {library: huggingface, type: meta-llama/Llama-3.1-8B}
  optim:
    name: mcore_distributed_optim
    lr: 2e-4
    weight_decay: 0.1
    betas: [0.9, 0.95]
    sched: {name: CosineAnnealing, warmup_steps: 100, constant_steps: 200, min_lr: 2e-5}
  data: {data_prefix: [0.3, "${data_dir}/a", 0.7, "${data_dir}/b"], seq_length: "${model.encoder_seq_length}"}
"""
OVERRIDES = """
model: {tensor_model_parallel_size: 2, sequence_parallel: true, seq_length: 4096, teacher: {seq_length: 1}}
train: {train_iters: 10, global_batch_size: 8, micro_batch_size: 1}
optimizer: {lr: 1e-4, min_lr: 1e-5}
scheduler: {lr_warmup_iters: 3}
checkpoint: {save: out}
rng: {seed: 42}
"""
TEST = """
MODEL_ARGS:
  trainer.num_nodes: 2
  trainer.devices: 8
  trainer.max_steps: 50
  trainer.strategy.tensor_model_parallel_size: 2
  trainer.strategy.expert_model_parallel_size: 2
  model.config.num_layers: 12
  model.config.hidden_size: 768
  model.config.num_attention_heads: 16
  model.config.ffn_hidden_size: 3072
  model.config.add_bias_linear: False
  model.config.num_moe_experts: 8
  model.config.moe_router_topk: 2
  data.micro_batch_size: 1
  data.global_batch_size: 8
  data.seq_length: 2048
  log.log_dir: x
"""
RECIPE = """
from megatron.bridge.recipes.common import _pretrain_common
SIZE = 2 * 1024

def base() -> ConfigContainer:
    return ConfigContainer(
        model=GPTModelProvider(num_layers=12, hidden_size=SIZE, num_attention_heads=16, vocab_size=50304),
        train=TrainingConfig(micro_batch_size=1, global_batch_size=64, train_iters=100),
        mixed_precision="bf16_with_mxfp8_mixed",
    )

def config(tp: int = 4) -> ConfigContainer:
    cfg = base()
    cfg.model.tensor_model_parallel_size = tp
    cfg.model.activation_func, cfg.model.gated_linear_unit = F.silu, True
    cfg.optimizer.lr = 1e-4
    cfg.ddp = DistributedDataParallelConfig(use_distributed_optimizer=True)
    if tp > 2:
        cfg.model.sequence_parallel = True
    cfg.model.layers = [x for x in range(3)]
    return cfg
"""


@COUNTS
def test_random_runs_come_back(count: int) -> None:
    for settings in random_runs(count, seed=2):
        emitted = emit("megatron-bridge", settings)
        reading = read_text(emitted.files["recipe.py"], ".py", "recipe.py")
        assert reading.trainer == "megatron-bridge"
        assert not differences(settings, emitted, reading, KEYS), settings.layout
        assert not reading.unread
        assert "reset-attention-mask" not in emitted.files["recipe.py"]


def test_a_recipe_has_every_part_of_the_arguments() -> None:
    """What Megatron's tables write has a field here; one without would be lost silently."""
    from scalewright.emit.bridge.fields import FIELDS, INVERTED
    from scalewright.emit.megatron import keys

    tables = (keys.MODEL, keys.PREDICTION, keys.MIXTURE, keys.LATENT, keys.LAYOUT, keys.EXPERTS,
              keys.TRAINING, keys.ADAM)  # fmt: skip
    known = {*FIELDS, *INVERTED, "max-position-embeddings"}
    assert not [word.foreign for table in tables for word in table if word.foreign not in known]


def test_nemo_is_read_with_its_references() -> None:
    reading = read_text(NEMO, ".yaml", "nemo.yaml")
    run = as_run(reading, "nemo.yaml")
    layout, model = run.layout, run.model
    assert (layout.devices, layout.tp, layout.pp, layout.virtual_stages) == (32, 4, 2, 4)
    assert (layout.schedule, layout.zero_stage, layout.sp) == ("interleaved", 1, True)
    assert (model.intermediate_size, model.context, model.mlp_type) == (16384, 4096, "swiglu")
    assert (model.norm_type, model.rope.fraction, model.vocab_size) == ("layernorm_plus_one", 0.5, 128256)
    assert (run.lr_schedule.decay_steps, run.optimizer.lr, run.optimizer.clip_norm) == (700, 2e-4, 0.5)
    assert [source.path for source in run.data.train] == ["${data_dir}/a", "${data_dir}/b"]
    assert layout.recompute.every == 4
    assert [item.key for item in reading.unread] == ["model.transformer_block_type"]
    assert any("dropout" in text for text in reading.assumed)


@pytest.mark.parametrize("value", ["0.0", "0", "0.1"])
def test_a_dropout_of_zero_is_not_taken_for_a_silent_file(value: str) -> None:
    text = NEMO.replace("hidden_dropout: 0.1", f"hidden_dropout: {value}\n  attention_dropout: {value}")
    assumed = read_text(text, ".yaml", "nemo.yaml").assumed
    assert any("dropout" in line for line in assumed) == (value == "0.1")


def test_overrides_are_read_with_what_their_recipe_leaves_open() -> None:
    reading = read_text(OVERRIDES, ".yaml", "overrides.yaml")
    run = as_run(reading, "overrides.yaml", ["model=llama-3.1-8b"])
    assert (run.layout.tp, run.layout.sp, run.layout.precision, run.seed) == (2, True, "bf16", 42)
    assert (run.train.steps, run.lr_schedule.min_ratio) == (10, 0.1)
    assert [item.key for item in reading.unread] == ["model.teacher.seq_length"]
    with pytest.raises(UserError, match="model"):
        as_run(reading, "overrides.yaml")


def test_a_functional_test_of_nemo_2_is_read() -> None:
    run = as_run(read_text(TEST, ".yaml", "test.yaml"), "test.yaml")
    assert (run.layout.devices, run.layout.tp, run.layout.ep, run.layout.global_batch) == (16, 2, 2, 8)
    assert (run.model.moe.num_experts, run.model.o_bias, run.train.steps, run.seq_len) == (8, False, 50, 2048)


def test_a_recipe_is_followed_within_its_file_and_never_run() -> None:
    reading = read_text(RECIPE, ".py", "recipe.py")
    assert reading.assumed[0] == "function config of 2: base, config"
    assert (reading.run["layout"]["tp"], reading.run["layout"]["precision"]) == (4, "mxfp8")
    assert reading.run["model"]["hidden_size"] == 2048
    assert reading.run["model"]["mlp_type"] == "swiglu"
    assert [item.key for item in reading.unread] == ["model.layers", "config()"]


def test_references_that_lead_nowhere_stay() -> None:
    document = {"a": "${b}", "b": "${a}", "c": {"d": "${.e}/x", "e": 3, "f": "${none}/${.e}"}, "g": "${env:HOME}"}
    resolved = resolve(document)
    assert resolved["c"] == {"d": "3/x", "e": 3, "f": "${none}/3"}
    assert resolved["g"] == "${env:HOME}"
    assert resolve({"a": {"n": 4, "b": "${multiply:${.n},${a.n}}", "s": "${sum:${.n},-1}"}})["a"] == {
        "n": 4, "b": 16, "s": 3,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["def f(:", "x = " + "(" * 500 + "1", "def f(): return " + "-" * 50_000 + "1"])
def test_a_text_that_is_no_python_is_a_users_error(text: str) -> None:
    with pytest.raises(UserError):
        read_text(f"# megatron.bridge ConfigContainer\n{text}\ndef g(): pass", ".py", "x.py")


def test_a_model_without_a_word_is_reported() -> None:
    model = {"vocab_size": 100, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
             "num_attention_heads": 4, "mlp_type": "geglu", "context": 64}  # fmt: skip
    run = RunSpec.parse({"model": model, "data": {"train": "x", "seq_len": 64}})
    emitted = emit("megatron-bridge", settings_of(run))
    assert [item.key for item in emitted.dropped] == ["model.mlp_type"]


@pytest.mark.parametrize(
    ("layout", "changed", "flags"),
    [
        # its schedule stops at remainders below pp: 10 micro-batches go through in fives
        ({"pp": 4, "schedule": "interleaved", "global_batch": 20}, [], {"microbatch_group_size_per_vp_stage": "5"}),
        ({"pp": 4, "schedule": "interleaved", "global_batch": 4}, ["layout.virtual_stages", "layout.schedule"], {}),
        ({"offload": "optimizer", "zero_stage": 0}, ["layout.zero_stage"], {"use_distributed_optimizer": "True"}),
        ({"tp": 2, "sp": False}, ["layout.sp"], {"sequence_parallel": "True"}),
    ],
)
def test_what_would_stop_at_the_first_step_is_written_otherwise(
    layout: dict[str, Any], changed: list[str], flags: dict[str, str]
) -> None:
    keys = {"devices": 8, "zero_stage": 1, "precision": "bf16", "global_batch": 8, **layout}
    run = RunSpec.parse({"model": MIXTURE, "layout": keys, "data": {"train": "c", "seq_len": 2048}})
    emitted = emit("megatron-bridge", settings_of(run))
    assert [item.key for item in emitted.changed if item.key != "model.context"] == changed
    for name, value in flags.items():
        assert f"{name}={value}," in emitted.files["recipe.py"]

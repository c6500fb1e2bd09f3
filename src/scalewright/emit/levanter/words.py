"""Levanter's words: keys that mean the same in both, and keys that say nothing about the run."""

from __future__ import annotations

import re

from scalewright.emit.numbers import real, whole
from scalewright.emit.rules import Word

TITLE, VERSION, FILE = "Levanter", "main, September 2025", "levanter.yaml"
WORDS = (
    Word("model.hidden_size", "model.hidden_dim", back=whole),
    Word("model.num_hidden_layers", "model.num_layers", back=whole),
    Word("model.num_attention_heads", "model.num_heads", back=whole),
    Word("model.num_key_value_heads", "model.num_kv_heads", back=whole),
    Word("model.norm_eps", "model.layer_norm_epsilon", back=real),
    Word("model.tie_word_embeddings", "model.tie_word_embeddings"),
    Word("model.rope.theta", "model.rope.theta", back=real),
    Word("data.seq_len", "model.seq_len", back=whole),
    Word("layout.micro_batch", "trainer.per_device_parallelism", back=whole),
    Word("layout.global_batch", "trainer.train_batch_size", back=whole),
    Word("seed", "trainer.seed", back=whole),
    Word("optimizer.lr", "optimizer.learning_rate", back=real),
    Word("optimizer.weight_decay", "optimizer.weight_decay", back=real),
)  # fmt: skip
MIXTURE = (
    Word("model.moe.num_experts", "model.n_routed_experts", back=whole),
    Word("model.moe.top_k", "model.num_experts_per_tok", back=whole),
    Word("train.balance.loss", "model.lbl_coef", back=real),
    Word("train.balance.z_loss", "model.rzl_coef", back=real),
)
ACTIVATIONS = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_new"}
POLICIES = {"bf16": "p=f32,c=bfloat16", "auto": "p=f32,c=bfloat16", "fp32": "f32"}
SCHEDULES = {"constant": "constant", "linear": "linear", "cosine": "cosine", "wsd": "linear"}
SCALING = {
    "factor": "factor", "low_freq_factor": "low_freq_factor", "high_freq_factor": "high_freq_factor",
    "original_context": "original_max_position_embeddings",
}  # fmt: skip
TOKENIZER = "TOKENIZER"
WHOLE = "none"  # stands for an axis that is null
DEVICES = re.compile(r"^# devices: (\d{1,7})$", re.MULTILINE)
ASIDE = frozenset({
    "model.initializer_range", "model.upcast_attn", "model.use_flash_attention", "model.attn_backend",
    "model.flash_attention_block_size", "model.scan_layers", "model.reference_checkpoint", "model.tokenizer",
    "model.use_layer_norm_weight", "model.rope.type", "trainer.batch_axis", "trainer.log_dir", "trainer.id",
    "trainer.run_base_dir", "trainer.per_device_eval_parallelism", "trainer.max_eval_batches",
    "trainer.steps_per_eval", "trainer.require_accelerator", "trainer.shutdown_at_exit",
    "trainer.load_checkpoint", "trainer.checkpointer.base_path", "trainer.checkpointer.save_interval",
    "data.tokenizer", "data.cache_dir", "hf_save_path", "hf_save_steps", "hf_upload", "eval_harness_steps",
})  # fmt: skip
SECTIONS = ("tracker", "wandb", "ray", "distributed", "jax_config")  # of trainer

"""Keys of nanotron's YAML that mean the same as a key of ours, and those that say nothing about the run."""

from __future__ import annotations

from scalewright.emit.numbers import real, whole
from scalewright.emit.rules import Word

CONFIG = "model.model_config."
MODEL = (
    Word("model.vocab_size", CONFIG + "vocab_size", back=whole),
    Word("model.hidden_size", CONFIG + "hidden_size", back=whole),
    Word("model.num_hidden_layers", CONFIG + "num_hidden_layers", back=whole),
    Word("model.num_attention_heads", CONFIG + "num_attention_heads", back=whole),
    Word("model.num_key_value_heads", CONFIG + "num_key_value_heads", back=whole),
    Word("model.context", CONFIG + "max_position_embeddings", back=whole),
    Word("model.norm_eps", CONFIG + "rms_norm_eps", back=real),
    Word("model.qkv_bias", CONFIG + "attention_bias"),
    Word("model.tie_word_embeddings", CONFIG + "tie_word_embeddings"),
    Word("model.rope.theta", CONFIG + "rope_theta", back=real),
    Word("model.rope.interleaved", CONFIG + "rope_interleaved"),
    Word("model.rope_every_not", CONFIG + "no_rope_layer", back=whole),
)  # fmt: skip
MIXTURE = (
    Word("model.moe.num_experts", CONFIG + "moe_config.num_experts", back=whole),
    Word("model.moe.top_k", CONFIG + "moe_config.top_k", back=whole),
)
LAYOUT = (
    Word("layout.tp", "parallelism.tp", back=whole),
    Word("layout.pp", "parallelism.pp", back=whole),
    Word("layout.micro_batch", "tokens.micro_batch_size", back=whole),
)
TRAINING = (
    Word("seed", "general.seed", back=whole),
    Word("data.seq_len", "tokens.sequence_length", back=whole),
    Word("optimizer.lr", "optimizer.learning_rate_scheduler.learning_rate", back=real),
    Word("optimizer.weight_decay", "optimizer.weight_decay", back=real),
)  # fmt: skip

# Sections of logs, evaluation, profiles and uploads.
SECTIONS = ("lighteval", "logging", "metrics_logging", "profiler", "s3_upload", "slurm")
# What is logged, where saves lie, which kernels run, and values that nanotron doesn't use.
ASIDE = frozenset({
    "general.project", "general.run", "general.benchmark_csv_path", "general.ignore_sanity_checks",
    "checkpoints.checkpoints_path", "checkpoints.checkpoints_path_is_shared_file_system",
    "checkpoints.load_lr_scheduler", "checkpoints.load_optimizer", "checkpoints.save_initial_state",
    "checkpoints.save_final_state", "model.ddp_bucket_cap_mb", "model.make_vocab_size_divisible_by",
    "model.init_method.std", "model.init_method.scaling_method", "optimizer.accumulate_grad_in_fp32",
    "optimizer.torch_adam_is_fused", "optimizer.optimizer_factory.torch_adam_is_fused",
    "optimizer.weight_decay_exclude_named_params", "parallelism.tp_linear_async_communication",
    "parallelism.tp_recompute_allgather", "parallelism.moe_layer_recompute", "tokens.limit_test_batches",
    "tokens.limit_val_batches", "tokenizer.tokenizer_name_or_path", "tokenizer.tokenizer_max_length",
    "tokenizer.tokenizer_revision",
    *(CONFIG + key for key in (
        "bos_token_id", "eos_token_id", "pad_token_id", "initializer_range", "is_llama_config",
        "is_qwen2_config", "pretraining_tp", "use_cache", "_attn_implementation", "_fused_rms_norm",
        "_fused_rotary_emb", "_use_qkv_packed", "flex_attention_mask", "ring_attn_heads_k_stride",
        "log_attn_probs", "z_loss_enabled", "z_loss_coefficient", "moe_config.token_dispatcher_type",
    )),
})  # fmt: skip

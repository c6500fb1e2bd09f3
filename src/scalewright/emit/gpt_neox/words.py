"""GPT-NeoX's words: keys that mean the same in both, and keys that say nothing about the run."""

from __future__ import annotations

from scalewright.emit.numbers import real, whole
from scalewright.emit.rules import Word, Words

TITLE, VERSION, FILE = "GPT-NeoX", "main, May 2026", "neox.yml"
WORDS = (
    Word("model.num_hidden_layers", "num_layers", back=whole),
    Word("model.hidden_size", "hidden_size", back=whole),
    Word("model.num_attention_heads", "num_attention_heads", back=whole),
    Word("model.num_key_value_heads", "num_kv_heads", back=whole),
    Word("model.context", "max_position_embeddings", back=whole),
    Word("model.rope.theta", "rotary_emb_base", to=int, back=real),
    Word("model.rope.fraction", "rotary_pct", back=real),
    Word("model.tie_word_embeddings", "no_weight_tying", to=lambda tied: not tied, back=lambda out: not out),
    Word("layout.tp", "model_parallel_size", back=whole),
    Word("layout.sp", "sequence_parallel"),
    Word("layout.micro_batch", "train_micro_batch_size_per_gpu", back=whole),
    Word("layout.global_batch", "train_batch_size", back=whole),
    Word("data.seq_len", "seq_length", back=whole),
    Word("seed", "seed", back=whole),
    Word("optimizer.weight_decay", "weight_decay", back=real),
    Word("optimizer.clip_norm", "gradient_clipping", back=real),
)  # fmt: skip
POSITIONS = {"rope": "rotary", "learned": "learned", "alibi": "alibi", "none": "none"}
ACTIVATIONS = {"swiglu": "swiglu", "geglu": "geglu", "gelu": "gelu", "relu": "relu"}
NORMS = {
    "rmsnorm": ("rmsnorm", False),
    "layernorm": ("layernorm", True),
    "layernorm_nobias": ("layernorm", False),
}
RESIDUALS = {"sequential": (False, False), "parallel": (True, False), "parallel_shared": (True, True)}
PRECISIONS: dict[str, Words] = {
    "bf16": {"precision": "bfloat16", "bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}},
    "fp16": {"precision": "fp16", "fp16": {"enabled": True, "loss_scale": 0, "loss_scale_window": 1000,
                                           "hysteresis": 2, "min_loss_scale": 1}},
    "fp32": {"precision": "fp32"},
}  # fmt: skip
PRECISIONS["auto"] = PRECISIONS["bf16"]
OPTIMIZERS = {"adamw": "Adam", "lion": "Lion"}
STYLES = {"constant": "constant", "linear": "linear", "cosine": "cosine"}
EPSILONS = ("rms_norm_epsilon", "layernorm_epsilon")
TOKENIZER = "tokenizer.json"
ASIDE = frozenset({
    "data_impl", "distributed_backend", "log_interval", "steps_per_print", "wall_clock_breakdown", "log_dir",
    "tensorboard_dir", "use_wandb", "wandb_project", "wandb_group", "wandb_team", "wandb_host", "save",
    "load", "keep_last_n_checkpoints", "checkpoint_scale", "checkpoint_validation_with_forward_pass",
    "eval_interval", "eval_iters", "split", "tokenizer_type", "vocab_file", "merge_file",
    "make_vocab_size_divisible_by", "attention_config", "scaled_upper_triang_masked_softmax_fusion",
    "scaled_masked_softmax_fusion", "bias_gelu_fusion", "bias_dropout_fusion", "rope_fusion",
    "layernorm_fusion", "rmsnorm_fusion", "use_flashattn_swiglu", "attention_softmax_in_fp32", "init_method",
    "init_method_std", "output_layer_init_method", "output_layer_parallelism", "partition_activations",
    "synchronize_each_layer", "deepspeed_activation_checkpointing", "contiguous_checkpointing", "hysteresis",
    "loss_scale", "min_scale", "loss_scale_window", "fp32_allreduce", "communication_data_type",
    "prescale_gradients", "launcher", "hostfile", "master_port", "deepspeed_mpi", "deepspeed_slurm",
    "num_workers", "pipe_partition_method", "mlp_multiple_of", "test_data_paths", "test_data_weights",
    "valid_data_weights", "gradient_accumulation_steps", "finetune", "data_types.grad_accum_dtype",
    "bf16.enabled", "fp16.enabled", "fp16.type", "fp16.loss_scale", "fp16.loss_scale_window",
    "fp16.hysteresis", "fp16.min_loss_scale", "fp16.initial_scale_power",
    *(f"zero_optimization.{key}" for key in (
        "allgather_partitions", "allgather_bucket_size", "overlap_comm", "reduce_scatter",
        "reduce_bucket_size", "contiguous_gradients", "cpu_offload", "offload_optimizer.pin_memory",
        "round_robin_gradients",
    )),
})  # fmt: skip

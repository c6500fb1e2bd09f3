"""MaxText's words: keys that mean the same in both, and keys that say nothing about the run."""

from __future__ import annotations

from scalewright.emit.numbers import real, whole
from scalewright.emit.rules import Word, Words

TITLE, VERSION, FILE = "MaxText", "0.2.5", "maxtext.yml"
WORDS = (
    Word("model.vocab_size", "vocab_size", back=whole),
    Word("model.hidden_size", "base_emb_dim", back=whole),
    Word("model.num_hidden_layers", "base_num_decoder_layers", back=whole),
    Word("model.num_attention_heads", "base_num_query_heads", back=whole),
    Word("model.num_key_value_heads", "base_num_kv_heads", back=whole),
    Word("model.head_dim", "head_dim", back=whole),
    Word("model.context", "max_position_embeddings", back=whole),  # of yarn alone
    Word("model.norm_eps", "normalization_layer_epsilon", back=real),
    Word("model.tie_word_embeddings", "logits_via_embedding"),
    Word("model.qkv_bias", "attention_bias"),
    Word("model.rope.theta", "rope_max_timescale", to=int, back=real),
    Word("model.attention_softcap", "attn_logits_soft_cap", back=real),
    Word("model.logit_softcap", "final_logits_soft_cap", back=real),
    Word("train.z_loss", "z_loss_multiplier", back=real, always=False),
    Word("data.seq_len", "max_target_length", back=whole),
    Word("optimizer.lr", "learning_rate", back=real),
    Word("optimizer.clip_norm", "gradient_clipping_threshold", back=real),
    Word("seed", "init_weights_seed", back=whole),
)  # fmt: skip
MIXTURE = (
    Word("model.moe.num_experts", "num_experts", back=whole),
    Word("model.moe.top_k", "num_experts_per_tok", back=whole),
    Word("model.moe.moe_intermediate_size", "base_moe_mlp_dim", back=whole),
    Word("train.balance.loss", "load_balance_loss_weight", back=real, always=False),
    Word("train.balance.capacity_factor", "capacity_factor", back=real),
)  # fmt: skip
MLPS = {
    "swiglu": ["silu", "linear"],
    "geglu_tanh": ["gelu", "linear"],
    "gelu_tanh": ["gelu"],
    "relu": ["relu"],
}
BLOCKS = {  # norms of q and k, experts
    (False, False): "llama2",
    (True, False): "qwen3",
    (False, True): "mixtral",
    (True, True): "qwen3_moe",
}
STRATEGIES = {"ring": "ring", "allgather": "all_gather", "ulysses": "ulysses"}
REMAT = {"none": "minimal_with_context", "selective": "minimal", "full": "full"}
PRECISIONS: dict[str, Words] = {
    "bf16": {"dtype": "bfloat16", "quantization": ""}, "auto": {"dtype": "bfloat16", "quantization": ""},
    "fp32": {"dtype": "float32", "quantization": ""}, "fp8": {"dtype": "bfloat16", "quantization": "fp8"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
}  # fmt: skip
KINDS = {"constant": "cosine", "cosine": "cosine", "linear": "wsd", "wsd": "wsd"}
AXES = ("data", "fsdp", "pipeline", "context", "tensor", "tensor_sequence", "expert")
MODELS = {  # model_name -> presets
    "llama3.1-8b": "llama-3.1-8b", "llama3.1-70b": "llama-3.1-70b", "llama3.1-405b": "llama-3.1-405b",
    "mixtral-8x7b": "mixtral-8x7b", "mistral-7b": "mistral-7b-v0.1", "deepseek3-671b": "deepseek-v3",
    "qwen3-8b": "qwen3-8b", "qwen3-30b-a3b": "qwen3-30b-a3b",
}  # fmt: skip
TOKENIZER = "TOKENIZER"
ASIDE = frozenset({
    "base_config", "run_name", "base_output_directory", "hardware", "enable_checkpointing",
    "async_checkpointing", "save_checkpoint_on_completion", "save_checkpoint_on_start", "log_period",
    "enable_dropout", "dropout_rate", "weight_dtype", "grad_dtype", "tokenizer_path", "tokenizer_type",
    "tokenize_train_data", "tokenize_eval_data", "dataset_type", "grain_file_type", "grain_worker_count",
    "data_shuffle_seed", "enable_data_shuffling", "normalize_embedding_logits", "norm_topk_prob", "mlp_bias",
    "scan_layers", "megablox", "sparse_matmul", "attention", "adamw_mask", "eval_steps", "packing",
    "use_tokamax_splash", "context_parallel_load_balance",
    "profiler", "gcs_metrics", "save_config_to_gcs", "jax_cache_dir", "monitor_goodput",
    "enable_goodput_recording", "wsd_decay_style", "rope_type", "decoder_block", "reuse_example_batch",
    "num_layers_per_pipeline_stage", "max_segments_per_seq", "dtype_mm", "enable_tensorboard",
    "use_iota_embed", "skip_jax_distributed_system", "steps_per_checkpoint", "dcn_diloco_parallelism",
    "ici_diloco_parallelism",
    *(f"{net}_{axis}_parallelism" for net in ("ici", "dcn") for axis in (
        "fsdp_transpose", "sequence", "context_usp_ulysses", "context_autoregressive", "autoregressive",
    )),
})  # fmt: skip

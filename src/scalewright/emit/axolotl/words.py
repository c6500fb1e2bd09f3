"""Axolotl's own words: sizes of the layout, and keys that say nothing about a run."""

from __future__ import annotations

SIZES = {
    "dp_replicate": "dp_replicate_size", "dp_shard": "dp_shard_size", "tp": "tensor_parallel_size",
    "cp": "context_parallel_size",
}  # fmt: skip

OWN = frozenset({
    "tokenizer_type", "tokenizer_config", "tokenizer_use_fast", "tokenizer_legacy", "model_type",
    "trust_remote_code", "strict", "dataset_prepared_path", "dataset_processes", "dataset_num_proc",
    "shuffle_merged_datasets", "val_set_size", "eval_batch_size", "train_on_inputs", "group_by_length",
    "wandb_project", "wandb_entity", "wandb_watch", "wandb_name", "wandb_log_model",
    "mlflow_experiment_name", "use_tensorboard", "early_stopping_patience", "xformers_attention",
    "flash_attention", "flex_attention", "sdp_attention", "eager_attention", "attn_implementation",
    "special_tokens", "loss_watchdog_threshold", "loss_watchdog_patience", "evals_per_epoch",
    "saves_per_epoch", "eval_table_size", "eval_sample_packing", "plugins", "pad_to_sequence_len",
    "curriculum_sampling", "fsdp_version", "chat_template", "test_datasets", "hub_model_id",
    "fsdp_config.fsdp_version", "fsdp_config.final_state_dict_type", "fsdp_final_state_dict_type",
    "low_cpu_mem_usage", "cut_cross_entropy", "liger_rope", "liger_rms_norm", "liger_glu_activation",
    "liger_layer_norm", "gc_steps", "save_safetensors", "liger_fused_linear_cross_entropy",
    "heads_k_stride", "ring_attn_func", "base_model_config", "dataset_shard_num",
})  # fmt: skip

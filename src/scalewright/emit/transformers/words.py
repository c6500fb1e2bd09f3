"""TrainingArguments that mean the same as a key of ours, and those that say nothing about a run."""

from __future__ import annotations

from collections.abc import Iterable

from scalewright.emit.rules import Word

COMMON = (
    Word("optimizer.lr", "learning_rate"),
    Word("optimizer.eps", "adam_epsilon"),
    Word("optimizer.weight_decay", "weight_decay"),
    Word("optimizer.clip_norm", "max_grad_norm"),
    Word("seed", "seed"),
)  # fmt: skip
BATCH = Word("layout.micro_batch", "per_device_train_batch_size")
# What TrainingArguments has where a key is missing.
DEFAULTS = {
    "learning_rate": 5e-5, "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8, "weight_decay": 0.0,
    "max_grad_norm": 1.0, "seed": 42,
}  # fmt: skip

ASIDE = frozenset({
    "output_dir", "overwrite_output_dir", "logging_strategy", "logging_first_step", "logging_steps",
    "logging_dir", "log_on_each_node", "logging_nan_inf_filter", "log_level", "log_level_replica",
    "disable_tqdm", "report_to", "run_name", "project", "include_num_input_tokens_seen",
    "include_tokens_per_second", "save_strategy", "save_total_limit", "save_only_model",
    "save_on_each_node", "save_safetensors", "push_to_hub", "hub_token", "hub_model_id", "hub_strategy",
    "hub_private_repo", "hub_always_push", "hub_revision", "load_best_model_at_end",
    "metric_for_best_model", "greater_is_better", "ignore_data_skip", "resume_from_checkpoint", "data_seed",
    "eval_strategy", "evaluation_strategy", "eval_delay", "eval_on_start", "per_device_eval_batch_size",
    "eval_accumulation_steps", "prediction_loss_only", "eval_do_concat_batches", "batch_eval_metrics",
    "bf16_full_eval", "fp16_full_eval", "do_train", "do_eval", "do_predict", "dataloader_num_workers",
    "dataloader_pin_memory", "dataloader_persistent_workers", "dataloader_prefetch_factor",
    "dataloader_drop_last", "remove_unused_columns", "label_names", "ddp_find_unused_parameters",
    "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph", "ddp_backend", "ddp_timeout", "debug",
    "skip_memory_metrics", "local_rank", "torch_compile", "torch_compile_backend", "torch_compile_mode",
    "torch_empty_cache_steps", "use_cache", "use_cpu", "average_tokens_across_devices",
    "accelerator_config", "use_liger_kernel", "fp16_opt_level", "half_precision_backend",
    "gradient_checkpointing_kwargs", "activation_checkpointing_kwargs", "enable_jit_checkpoint",
    "fp16_backend", "fsdp_config.version", "fsdp_config.auto_wrap_policy",
    "fsdp_config.transformer_layer_cls_to_wrap", "fsdp_config.min_num_params",
    "fsdp_config.state_dict_type", "fsdp_config.cpu_ram_efficient_loading",
    "fsdp_config.sync_module_states", "fsdp_config.use_orig_params", "fsdp_config.backward_prefetch",
    "fsdp_config.forward_prefetch", "fsdp_config.limit_all_gathers", "fsdp_config.backward_prefetch_policy",
    "fsdp_config.xla", "fsdp_config.final_state_dict_type", "fsdp_transformer_layer_cls_to_wrap",
    "length_column_name", "parallelism_config.cp_backend", "parallelism_config.sp_backend",
    "dataloader_in_order", "trackio_space_id",
})  # fmt: skip
SECTIONS = (
    "gradient_checkpointing_kwargs.", "activation_checkpointing_kwargs.", "accelerator_config.",
    "liger_kernel_config.", "fsdp_config.xla",
)  # fmt: skip


def aside(keys: Iterable[str], own: frozenset[str] = frozenset()) -> frozenset[str]:
    """Those of these keys that say nothing about a run; `own`: another trainer's beside."""
    return frozenset(key for key in keys if key in ASIDE or key in own or key.startswith(SECTIONS))

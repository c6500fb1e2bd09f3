"""DeepSpeed's words: optimizers and schedulers by name, and keys that say nothing about a run."""

from __future__ import annotations

READ_OPTIMIZERS = {
    "adam": "adamw", "adamw": "adamw", "fusedadam": "adamw", "sgd": "sgd", "lion": "lion", "muon": "muon",
}  # fmt: skip
SCHEDULERS = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
OFFLOADS = ("cpu", "nvme")

# Top-level keys and whole sections (ending in a dot) of logs, profiles, buffers and communication.
ASIDE = (
    "steps_per_print", "wall_clock_breakdown", "dump_state", "memory_breakdown", "prescale_gradients",
    "gradient_predivide_factor", "sparse_gradients", "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer", "communication_data_type", "seq_parallel_communication_data_type",
    "disable_allgather", "checkpoint.", "flops_profiler.", "tensorboard.", "wandb.", "comet.",
    "csv_monitor.", "comms_logger.", "data_types.", "aio.", "activation_checkpointing.", "autotuning.",
    "compile.", "nebula.", "timers.", "fp16.loss_scale", "fp16.loss_scale_window",
    "fp16.initial_scale_power", "fp16.hysteresis", "fp16.min_loss_scale", "fp16.auto_cast",
    "fp16.fp16_master_weights_and_grads", "fp16.consecutive_hysteresis", "bf16.immediate_grad_update",
    "bf16.check_grad_overflow", "use_data_before_expert_parallelism", "optimizer.params.torch_adam",
    "optimizer.params.adam_w_mode", "optimizer.params.bias_correction", "optimizer.params.fused",
    "optimizer.legacy_fusion", "gradient_accumulation_dtype", "zero_optimization.overlap_comm",
    "zero_optimization.reduce_scatter", "zero_optimization.contiguous_gradients",
    "zero_optimization.reduce_bucket_size", "zero_optimization.allgather_bucket_size",
    "zero_optimization.allgather_partitions", "zero_optimization.sub_group_size",
    "zero_optimization.round_robin_gradients", "zero_optimization.max_live_parameters",
    "zero_optimization.max_reuse_distance", "zero_optimization.load_from_fp32_weights",
    "zero_optimization.gather_16bit_weights_on_model_save", "zero_optimization.elastic_checkpoint",
    "zero_optimization.ignore_unused_parameters", "zero_optimization.stage3_max_live_parameters",
    "zero_optimization.stage3_max_reuse_distance", "zero_optimization.stage3_prefetch_bucket_size",
    "zero_optimization.stage3_param_persistence_threshold",
    "zero_optimization.stage3_model_persistence_threshold",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    "zero_optimization.stage3_gather_fp16_weights_on_model_save",
    "zero_optimization.use_multi_rank_bucket_allreduce", "zero_optimization.offload_optimizer.",
    "zero_optimization.offload_param.", "zero_optimization.memory_efficient_linear",
    "zero_optimization.pipeline_loading_checkpoint", "zero_optimization.override_module_apply",
    "zero_optimization.legacy_stage1", "zero_optimization.cpu_offload_use_pin_memory",
    "zero_optimization.allgather_sequential", "pipeline.partition",
    "tensor_parallel.vocab_parallel_lm_head", "pipeline.seed_layers",
    "pipeline.activation_checkpoint_interval", "pipeline.pipe_partitioned", "pipeline.grad_partitioned",
    "zero_optimization.sdma_allgather", "zero_optimization.module_granularity_threshold",
)  # fmt: skip


def is_aside(key: str) -> bool:
    """Whether a dotted key changes neither the layout nor the numbers of a run."""
    return any(key.startswith(name) if name.endswith(".") else key == name for name in ASIDE)

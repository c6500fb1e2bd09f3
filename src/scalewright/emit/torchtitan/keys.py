"""Keys of torchtitan 0.2 that mean the same as ours, with their defaults, and what other releases call them."""

from __future__ import annotations

from scalewright.emit.foreign import keys_of, real, whole
from scalewright.emit.rules import Word

LAYOUT = (
    Word("layout.tp", "parallelism.tensor_parallel_degree", back=whole),
    Word("layout.pp", "parallelism.pipeline_parallel_degree", back=whole),
    Word("layout.cp", "parallelism.context_parallel_degree", back=whole),
)
TRAINING = (
    Word("data.seq_len", "training.seq_len", back=whole, absent=2048),
    Word("optimizer.lr", "optimizer.lr", back=real, absent=8e-4),
    Word("optimizer.eps", "optimizer.eps", back=real, absent=1e-8),
    Word("optimizer.weight_decay", "optimizer.weight_decay", back=real, absent=0.1),
    Word("seed", "debug.seed", back=whole),
)
# Names of 0.1, by those of 0.2; 2024's are further below
V01 = {
    "lr_scheduler.min_lr_factor": "lr_scheduler.lr_min", "checkpoint.enable": "checkpoint.enable_checkpoint",
    "checkpoint.last_save_model_only": "checkpoint.last_save_model_weights_only", "debug.seed": "training.seed",
    "debug.deterministic": "training.deterministic", "compile.enable": "training.compile",
    "model.hf_assets_path": "model.tokenizer_path", "quantize.linear.float8.recipe_name": "float8.recipe_name",
    "quantize.linear.mx.recipe_name": "mx.recipe_name",
}  # fmt: skip
V2024 = {
    "training.batch_size": "training.local_batch_size",
    "training.warmup_steps": "lr_scheduler.warmup_steps",
    "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    **{
        key: f"parallelism.{key.partition('.')[2]}"
        for key in keys_of("""
        training: data_parallel_shard_degree data_parallel_replicate_degree tensor_parallel_degree
        experimental: pipeline_parallel_degree pipeline_parallel_schedule pipeline_parallel_split_points
            pipeline_parallel_microbatches context_parallel_degree context_parallel_rotate_method
            enable_async_tensor_parallel
    """)
    },
    "optimizer.min_lr_factor": "lr_scheduler.min_lr_factor",
}
OLDER = {**{older: name for name, older in V01.items()}, **V2024}
# What is printed, profiled, saved, compiled or overlapped: neither the model nor its numbers
ASIDE_SECTIONS = (
    "job", "profiling", "metrics", "checkpoint", "comm", "memory_estimation", "validation", "compile",
    "profiler", "validator", "fault_tolerance", "loss", "tokenizer", "dataloader", "override",
)  # fmt: skip
ASIDE = keys_of("""
    model.tokenizer_path model.hf_assets_path model.print_after_conversion optimizer.implementation optimizer.fused
    optimizer.early_step_in_backward quantize.grouped_mm.float8.fqns quantize.grouped_mm.mx.fqns mx.recipe_name
    mx.filter_fqns mx.use_fp8_dim1_cast_triton_kernel hf_assets_path dump_folder experimental.custom_import
    experimental.custom_args_module
    parallelism: enable_async_tensor_parallel disable_loss_parallel enable_compiled_autograd spmd_backend
        context_parallel_load_balancer enable_fsdp_symm_mem expert_parallel_comm_backend
        pipeline_parallel_expert_parallel_overlap
    activation_checkpoint: early_stop preserve_rng_state per_op_sac_force_recompute_mm_shapes_by_fqns determinism_check
        debug visualize_memory_budget_pareto
    quantize.linear: float8.enable_fsdp_float8_all_gather float8.filter_fqns
        float8.precompute_float8_dynamic_scale_for_fsdp float8.recipe_name mx.recipe_name mx.filter_fqns
        mx.mxfp8_dim1_cast_kernel_choice
    training: gc_freq gc_debug dataset dataset_path compile mixed_precision_reduce disable_cuda_graphs
    float8: enable_fsdp_float8_all_gather precompute_float8_dynamic_scale_for_fsdp filter_fqns recipe_name
        scaling_type_input scaling_type_weight scaling_type_grad_output
    debug: print_config save_config_file enable_structured_logging deterministic_warn_only
""")


def renamed(values: dict[str, object]) -> dict[str, object]:
    """The same settings under the names of 0.2."""
    return {OLDER.get(key, key): value for key, value in values.items()}

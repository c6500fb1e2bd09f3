"""Accelerate's words: names of precisions and strategies, and keys of a machine or a launch alone."""

from __future__ import annotations

PRECISIONS = {"bf16": "bf16", "fp16": "fp16", "fp32": "no", "tf32": "no"}
FSDP1 = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3, "HYBRID_SHARD_ZERO2": 2}
CONTEXT = {"allgather": "allgather", "alltoall": "ring"}
PREFIX = "parallelism_config"

ASIDE = frozenset({
    "compute_environment", "debug", "downcast_bf16", "enable_cpu_affinity", "machine_rank",
    "main_process_ip", "main_process_port", "main_training_function", "rdzv_backend", "same_network",
    "gpu_ids", "use_cpu", "tpu_env", "tpu_name", "tpu_zone", "tpu_use_cluster", "tpu_use_sudo",
    "command_file", "commands", "tpu_vm", "fsdp_config.fsdp_auto_wrap_policy",
    "fsdp_config.fsdp_transformer_layer_cls_to_wrap", "fsdp_config.fsdp_min_num_params",
    "fsdp_config.fsdp_backward_prefetch", "fsdp_config.fsdp_forward_prefetch",
    "fsdp_config.fsdp_backward_prefetch_policy", "fsdp_config.fsdp_cpu_ram_efficient_loading",
    "fsdp_config.fsdp_state_dict_type", "fsdp_config.fsdp_sync_module_states",
    "fsdp_config.fsdp_use_orig_params", "deepspeed_config.zero3_init_flag",
    "deepspeed_config.zero3_save_16bit_model", "deepspeed_config.deepspeed_multinode_launcher",
    "deepspeed_config.deepspeed_hostfile", "dynamo_config.dynamo_backend", "dynamo_config.dynamo_mode",
    "dynamo_config.dynamo_use_dynamic", "dynamo_config.dynamo_use_fullgraph",
    "dynamo_config.dynamo_use_regional_compilation", "dynamo_backend", "parallelism_config.cp_backend",
    "parallelism_config.sp_backend", "parallelism_config.sp_seq_length",
    "parallelism_config.sp_seq_length_is_variable", "parallelism_config.sp_attn_implementation",
})  # fmt: skip

"""NeMo 1's YAML for GPT as Megatron's arguments: `trainer`, `model`, `model.optim`, `model.data`.

    trainer.devices x trainer.num_nodes       ranks
    model.activation fast-swiglu              swiglu
    model.bias false                          disable-bias-linear
    model.optim.name mcore_distributed_optim  use-distributed-optimizer
    model.optim.sched CosineAnnealing         lr-decay-style cosine; constant_steps come off its decay

Keys: examples/nlp/language_modeling/conf/megatron_gpt_config.yaml of NeMo and its launcher's files, 2024.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalewright.emit.bridge.fields import precision_of
from scalewright.emit.bridge.read import resolve
from scalewright.emit.emitted import Reading
from scalewright.emit.foreign import UNKNOWN, ForeignKeys, keys_of, whole
from scalewright.emit.megatron.files import read_arguments
from scalewright.emit.megatron.keys import ASIDE
from scalewright.emit.megatron.model import VOCABULARIES, Arguments
from scalewright.emit.rules import put
from scalewright.spec.common.formatting import flat
from scalewright.spec.presets import is_preset, load_model_spec
from scalewright.spec.question import Unread

NAMES = {  # their key -> argument
    **{f"model.{key}": key.replace("_", "-") for key in (
        "micro_batch_size", "global_batch_size", "tensor_model_parallel_size",
        "pipeline_model_parallel_size", "context_parallel_size", "expert_model_parallel_size",
        "sequence_parallel", "max_position_embeddings", "num_layers", "hidden_size", "ffn_hidden_size",
        "num_attention_heads", "num_query_groups", "kv_channels", "hidden_dropout", "attention_dropout",
        "position_embedding_type", "rotary_base", "qk_layernorm", "window_size", "seed", "moe_router_topk",
        "moe_aux_loss_coeff", "moe_z_loss_coeff", "moe_ffn_hidden_size", "moe_router_load_balancing_type",
    )},
    "model.virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank",
    "model.encoder_seq_length": "seq-length", "model.layernorm_epsilon": "norm-epsilon",
    "model.rotary_percentage": "rotary-percent", "model.num_moe_experts": "num-experts",
    "model.scale_positional_embedding": "use-rope-scaling",
    "model.activations_checkpoint_granularity": "recompute-granularity",
    "model.activations_checkpoint_method": "recompute-method",
    "model.activations_checkpoint_num_layers": "recompute-num-layers",
    "model.optim.lr": "lr", "model.optim.weight_decay": "weight-decay", "model.optim.eps": "adam-eps",
    "model.optim.sched.warmup_steps": "lr-warmup-iters", "model.optim.sched.min_lr": "min-lr",
    "model.data.reset_attention_mask": "reset-attention-mask",
    "model.data.reset_position_ids": "reset-position-ids", "model.data.splits_string": "split",
    "trainer.max_steps": "train-iters", "trainer.gradient_clip_val": "clip-grad",
}  # fmt: skip
# What is printed, saved, fused or initialised, and how kernels are chosen
QUIET_SECTIONS = ("name", "run", "defaults", "hydra", "exp_manager", "s3_checkpointing")
QUIET_TRAINER = keys_of("""
    accelerator logger enable_checkpointing use_distributed_sampler max_epochs max_time log_every_n_steps
    val_check_interval limit_val_batches benchmark limit_test_batches enable_model_summary accumulate_grad_batches
""")
QUIET_OPTIM = keys_of("""
    bucket_cap_mb overlap_grad_sync overlap_param_sync contiguous_grad_buffer contiguous_param_buffer sched.name
    sched.constant_steps
""")
QUIET_MODEL = keys_of("""
    restore_from_path restore_from_ckpt resume_from_checkpoint mcore_gpt skip_train init_method_std
    use_scaled_init_method apply_query_key_layer_scaling make_vocab_size_divisible_by pre_process post_process
    persist_layer_norm overlap_p2p_comm batch_p2p_comm attention_type tokenizer grad_div_ar_fusion native_amp_init_scale
    native_amp_growth_interval hysteresis megatron_amp_O2 grad_allreduce_chunk_size_mb gradient_accumulation_fusion
    bias_activation_fusion bias_dropout_add_fusion masked_softmax_fusion get_attention_mask_from_fusion
    apply_rope_fusion cross_entropy_loss_fusion use_cpu_initialization onnx_safe apex_transformer_log_level
    gradient_as_bucket_view sync_batch_comm sharp nccl_communicator_config_path validation_param_sync_overlap
    fsdp_grad_reduce_dtype fsdp_sharded_checkpoint transformer_engine fp8_margin fp8_interval fp8_amax_history_len
    fp8_amax_compute_algo reduce_amax fp8_wgrad use_emha ub_tp_comm_overlap ub_tp_comm_overlap_cfg use_flash_attention
    enable_megatron_timers megatron_timer_kwargs nsys_profile gc_interval defer_embedding_wgrad_compute
    wgrad_deferral_limit deterministic_mode data normalize_attention_scores
    num_micro_batches_with_partial_activation_checkpoints moe_grouped_gemm activations_checkpoint_layers_per_pipeline
    reset_lr reset_lr_steps
""")
USUAL = {  # parts that models here have not, at the values that mean so
    "model.openai_gelu": False, "model.headscale": False, "model.transformer_block_type": "pre_ln",
    "model.seq_len_interpolation_factor": None, "model.drop_layers": [], "model.ffn_dropout": 0.0,
    "model.fp32_residual_connection": False, "model.fp16_lm_cross_entropy": False,
    "model.cpu_offloading": False,
    "model.rampup_batch_size": None, "model.do_layer_norm_weight_decay": False,
}  # fmt: skip
NORMS = {"layernorm": "LayerNorm", "low_precision_layernorm": "LayerNorm", "layernorm1p": "LayerNorm",
         "rmsnorm": "RMSNorm"}  # fmt: skip
GATED = {"swiglu": "swiglu", "fast-swiglu": "swiglu", "squared-relu": "squared-relu"}
OURS = {"geglu": "geglu", "fast-geglu": "geglu"}  # activations that Megatron's arguments have no word for
SHARDED = {"full": "optim_grads_params", "hybrid": "optim_grads_params", "grad": "optim_grads"}
DISTRIBUTED = ("mcore_distributed_optim", "distributed_fused_adam")


def read_nemo(document: Mapping[str, Any]) -> Reading:
    """A NeMo 1 configuration as a run."""
    values = flat(resolve(document))
    arguments: Arguments = {flag: values[key] for key, flag in NAMES.items() if values.get(key) not in (None, False)}
    names = {flag: key for key, flag in NAMES.items()}
    taken = set(NAMES)
    for part in (_network, _optimizer, _precision, _data):
        arguments |= part(values, taken)
    if "num-query-groups" in arguments:
        arguments["group-query-attention"] = True
    foreign = ForeignKeys(arguments, ASIDE)
    foreign.assume("what is silent here has the defaults of Megatron-LM, which NeMo's classes share")
    world = _ranks(values, taken)
    run = read_arguments(foreign, world)
    if (mask := values.get("model.data.reset_attention_mask")) is not None:
        put(run, "data.document_mask", bool(mask))
    if (kind := OURS.get(str(values.get("model.activation")))) is not None:
        run["model"]["mlp_type"] = kind
    unread = [Unread(names.get(key, key), value, why) for key, value, why in foreign.unread()]
    others = [key for key, value in values.items() if key not in taken and not is_quiet(key, value)]
    unread += [Unread(key, values[key], UNKNOWN) for key in others]
    return Reading("megatron-bridge", run, tuple(unread), tuple(foreign.assumed), foreign.guessed)


def _network(values: dict[str, object], taken: set[str]) -> Arguments:
    taken |= {"model.normalization", "model.activation", "model.bias", "model.share_embeddings_and_output_weights"}
    written: Arguments = {}
    norm = str(values.get("model.normalization", "layernorm"))
    written["normalization"] = NORMS.get(norm, "LayerNorm")
    if norm == "layernorm1p":
        written["apply-layernorm-1p"] = True
    activation = str(values.get("model.activation", "gelu"))
    if activation in GATED:
        written[GATED[activation]] = True
    elif activation not in ("gelu", *OURS):
        taken.discard("model.activation")
    if values.get("model.bias", True) is False:
        written["disable-bias-linear"] = True
    if values.get("model.share_embeddings_and_output_weights", True) is False:
        written["untie-embeddings-and-output-weights"] = True
    kind = values.get("model.tokenizer.type")
    if isinstance(kind, str) and is_preset(kind):
        written["padded-vocab-size"] = load_model_spec(kind).vocab_size
    elif isinstance(kind, str) and kind in VOCABULARIES:
        written["tokenizer-type"] = kind
    return written


def _optimizer(values: dict[str, object], taken: set[str]) -> Arguments:
    taken |= {"model.optim.name", "model.optim.betas", "model.fsdp", "model.fsdp_sharding_strategy"}
    written: Arguments = {"lr-decay-style": "cosine"}
    name = str(values.get("model.optim.name", "fused_adam"))
    if name in DISTRIBUTED:
        written["use-distributed-optimizer"] = True
    elif "adam" not in name:
        written["optimizer"] = name
    betas = values.get("model.optim.betas")
    if isinstance(betas, list) and len(betas) == 2:
        written |= {"adam-beta1": betas[0], "adam-beta2": betas[1]}
    if values.get("model.fsdp"):
        strategy = str(values.get("model.fsdp_sharding_strategy", "full"))
        written |= {"use-megatron-fsdp": True, "data-parallel-sharding-strategy": SHARDED.get(strategy, strategy)}
    shape = values.get("model.optim.sched.name", "CosineAnnealing")
    if shape != "CosineAnnealing":
        written["lr-decay-style"] = str(shape)
    constant, steps = values.get("model.optim.sched.constant_steps"), values.get("trainer.max_steps")
    if constant and isinstance(steps, int):
        written["lr-decay-iters"] = steps - whole(constant)
    return written


def _precision(values: dict[str, object], taken: set[str]) -> Arguments:
    taken |= {"trainer.precision", "model.fp8", "model.fp8_e4m3", "model.fp8_hybrid"}
    written = precision_of(str(values.get("trainer.precision", "bf16")))
    if values.get("model.fp8"):
        written |= {"fp8-format": "e4m3" if values.get("model.fp8_e4m3") else "hybrid"}
    return written


def _data(values: dict[str, object], taken: set[str]) -> Arguments:
    taken |= {"model.data.data_prefix", "model.data.data_prefix.train", "model.data.data_prefix.validation"}
    written: Arguments = {}
    train = values.get("model.data.data_prefix", values.get("model.data.data_prefix.train"))
    if train not in (None, "???"):
        written["data-path"] = train
    if (valid := values.get("model.data.data_prefix.validation")) is not None:
        written["valid-data-path"] = valid
    if (length := values.get("model.data.seq_length")) is not None and "model.encoder_seq_length" not in values:
        written["seq-length"] = length
    return written


def _ranks(values: dict[str, object], taken: set[str]) -> int | None:
    taken |= {"trainer.devices", "trainer.num_nodes"}
    devices, nodes = values.get("trainer.devices"), values.get("trainer.num_nodes", 1)
    sizes = [whole(values.get(f"model.{axis}_parallel_size") or 1)
             for axis in ("tensor_model", "pipeline_model", "context")]  # fmt: skip
    if not isinstance(devices, int) or not isinstance(nodes, int) or devices < 1 or nodes < 1:
        return None
    world = devices * nodes
    return world if world % (sizes[0] * sizes[1] * sizes[2]) == 0 else None


def is_quiet(key: str, value: Any) -> bool:
    """Whether a dotted key says nothing about a run, or that it has no such part."""
    if key in USUAL:
        return bool(USUAL[key] == value)
    section, _, rest = key.partition(".")
    first = rest.partition(".")[0]
    if section in QUIET_SECTIONS:
        return True
    if section == "trainer":
        return rest in QUIET_TRAINER
    if rest.startswith("optim."):
        return rest.removeprefix("optim.") in QUIET_OPTIM
    return section == "model" and (first in QUIET_MODEL or rest.startswith(("dist_ckpt_", "cpu_offloading_")))

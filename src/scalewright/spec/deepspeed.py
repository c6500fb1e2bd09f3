"""DeepSpeed's JSON of a layout and an optimizer: what `emit` writes, and `engine: deepspeed` hands over.

    layout, optimizer --ds_config--> {"zero_optimization": {"stage": 2, ...}, ...}
    engine_options    --merge------> the same, with keys of the user's own beside them

zero_stage          zero_optimization.stage                offload optimizer     offload_optimizer: cpu
tp                  tensor_parallel.autotp_size            offload parameters    offload_param: cpu, too
cp (ulysses)        sequence_parallel_size                 recompute             activation_checkpointing
pp                  pipeline.stages                        clip_norm             gradient_clipping

Words are those of DeepSpeed 0.16 to 0.19 (deepspeed/runtime/config.py, zero/config.py, read 2026-11). The
learning rate is set every step: DeepSpeed's schedulers start a warm-up at 0 and lack the last ratio.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalewright.spec.common.formatting import below, dotted
from scalewright.spec.errors import UserError, nearest
from scalewright.spec.layout import Layout

Config = dict[str, Any]
OPTIMIZERS = {"adamw": "AdamW", "sgd": "SGD", "lion": "Lion"}
CPU = {"device": "cpu", "pin_memory": True}
# DeepSpeed reads these at the top, and passes over any other name without a word.
TOP_LEVEL = (
    "activation_checkpointing", "aio", "autotuning", "bf16", "bfloat16", "checkpoint", "comet", "comms_logger",
    "communication_data_type", "compile", "compression_training", "csv_monitor", "curriculum_learning",
    "data_efficiency", "data_types", "dataloader_drop_last", "disable_allgather", "disable_python_gc", "dump_state",
    "expert_parallel", "flops_profiler", "fp16", "gradient_accumulation_steps", "gradient_allreduce_op",
    "gradient_clipping", "gradient_predivide_factor", "hybrid_engine", "log_level", "managed_gradient_accumulation",
    "memory_breakdown", "optimizer", "pipeline", "prescale_gradients", "scheduler",
    "seq_parallel_communication_data_type", "sequence_parallel_size", "sparse_gradients", "steps_per_print",
    "tensor_parallel", "tensorboard", "timers", "torch_autocast", "train_batch_size", "train_micro_batch_size_per_gpu",
    "use_data_before_expert_parallelism", "wall_clock_breakdown", "wandb", "weight_quantization",
    "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "zero_optimization",
)  # fmt: skip
# Key of the run file -> DeepSpeed's keys, or whole sections, that it decides.
DECIDES = {
    "layout.global_batch": ("train_batch_size", "gradient_accumulation_steps", "managed_gradient_accumulation"),
    "layout.micro_batch": ("train_micro_batch_size_per_gpu",),
    "layout.precision": ("fp16", "bf16.enabled", "bfloat16", "torch_autocast", "data_types.param_dtype"),
    "layout.zero_stage": ("zero_optimization.stage",),
    "layout.dp_replicate": ("zero_optimization.mics_shard_size",),
    "layout.offload": (
        "zero_optimization.cpu_offload", "zero_optimization.cpu_offload_params",
        "zero_optimization.offload_optimizer.device", "zero_optimization.offload_param.device",
    ),
    "layout.tp": ("tensor_parallel",),
    "layout.cp": ("sequence_parallel_size",),
    "layout.ep": ("expert_parallel",),
    "layout.pp": ("pipeline.stages",),
    "layout.stage_layers": ("pipeline.partition",),
    "layout.recompute": ("activation_checkpointing", "pipeline.activation_checkpoint_interval"),
    "optimizer.name": ("optimizer.type",),
    **{f"optimizer.{key}": (f"optimizer.params.{key}",) for key in ("lr", "betas", "eps", "weight_decay", "momentum")},
    "optimizer.clip_norm": ("gradient_clipping",),
    "lr_schedule": ("scheduler",),
    "train.compile": ("compile",),
}  # fmt: skip
DECIDED = {key: ours for ours, keys in DECIDES.items() for key in keys}
# What would train on other samples, or on another model, than the run file has.
NOT_HERE = {
    "autotuning": "it starts runs of its own: use `scalewright plan`, or `sweep`",
    "compression_training": "it changes the model that a checkpoint holds",
    "curriculum_learning": "samples and their order are the run's (`data`)",
    "data_efficiency": "samples and their order are the run's (`data`)",
    "dataloader_drop_last": "samples and their order are the run's (`data`)",
    "hybrid_engine": "it is for generation between steps",
    "weight_quantization": "it changes the model that a checkpoint holds",
    "zero_optimization.zenflow": "its late updates are in no checkpoint of this tool's",
    "zero_optimization.super_offload": "its states are in no checkpoint of this tool's",
}


def ds_config(
    layout: Layout,
    *,
    optimizer: Mapping[str, Any],
    clip_norm: float,
    precision: str,
    device: str,
    recomputes: bool = False,
    tied: bool = False,
) -> Config:
    """The document of a run. `optimizer`: DeepSpeed's section for it (`optimizer_section`), or other keys in
    its place; `tied`: the head shares the embedding's weight."""
    config: Config = {
        "train_batch_size": layout.global_batch * layout.tp,  # it counts AutoTP's ranks as data-parallel
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": layout.accumulation,
        "gradient_clipping": clip_norm,
        "steps_per_print": 1000000,
        "wall_clock_breakdown": False,
    }
    if precision in ("bf16", "fp16"):
        config |= {precision: {"enabled": True}, "communication_data_type": "fp32"}
    config |= zero_section(layout, device) | dict(optimizer) | _axes(layout, tied)
    if recomputes:
        config["activation_checkpointing"] = {"partition_activations": False, "cpu_checkpointing": False}
    return config


def zero_section(layout: Layout, device: str) -> Config:
    """ZeRO's section, with what is offloaded: DeepSpeed offloads what ZeRO shards."""
    stage = layout.zero_stage
    zero: Config = {"stage": stage}
    if stage:
        zero |= {"overlap_comm": device != "cpu", "contiguous_gradients": True}
    if stage == 3:
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    if stage and layout.offload in ("optimizer", "parameters", "all"):
        zero["offload_optimizer"] = dict(CPU)
    if layout.offload in ("parameters", "all"):
        zero["offload_param"] = dict(CPU)
    return {"zero_optimization": zero}


def optimizer_section(
    name: str, *, lr: float, weight_decay: float, betas: tuple[float, float], eps: float, momentum: float, on_host: bool
) -> Config:
    """An optimizer of OPTIMIZERS. `on_host`: its states are offloaded, to DeepSpeed's own AdamW for CPUs."""
    parameters: Config = {"lr": lr, "weight_decay": weight_decay}
    if name == "sgd":
        parameters["momentum"] = momentum
    else:
        parameters["betas"] = list(betas)
    if name == "adamw":
        parameters["eps"] = eps
        if not on_host:
            parameters |= {"torch_adam": True, "fused": True}  # torch's own kernel: nothing to compile
    config: Config = {"optimizer": {"type": OPTIMIZERS[name], "params": parameters}}
    return config | ({"zero_allow_untested_optimizer": True} if name == "sgd" else {})


def _axes(layout: Layout, tied: bool) -> Config:
    config: Config = {}
    if layout.tp > 1:
        config["tensor_parallel"] = {"autotp_size": layout.tp}
        if tied:  # else 0.19 cuts the head's logits, which a script's loss wants whole
            config["tensor_parallel"]["vocab_parallel_lm_head"] = False
    if layout.cp > 1:
        config["sequence_parallel_size"] = layout.cp
    if layout.pp > 1:
        config["pipeline"] = {"stages": layout.pp}
    return config


def check_options(options: Mapping[str, Any]) -> None:
    """Raises UserError for keys that DeepSpeed doesn't read, and for those that the run file decides."""
    for name in options:
        if name not in TOP_LEVEL:
            near = nearest(str(name), TOP_LEVEL)
            how = f"use {' or '.join(near)}" if near else "see deepspeed.ai/docs/config-json"
            raise UserError(f"DeepSpeed has no key '{name}'", "engine_options", how)
    for key, value in dotted(options):
        if value == "auto":
            problem = f"{key} is 'auto', which only Hugging Face's Trainer fills in"
            raise UserError(problem, "engine_options", "give a value, or leave it out")
        for decided, ours in DECIDED.items():
            if below(key, [decided]):
                problem = f"{key} is what the run file's {ours} decides"
                raise UserError(problem, "engine_options", f"leave it out, and set {ours}")
        for refused, why in NOT_HERE.items():
            if below(key, [refused]):
                raise UserError(f"{key} can't be used here: {why}", "engine_options", "leave it out")


def merge(config: Mapping[str, Any], options: Mapping[str, Any]) -> Config:
    """The document with `options` laid over it, section by section."""
    merged = dict(config)
    for key, value in options.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, dict) and isinstance(value, Mapping) else value
    return merged

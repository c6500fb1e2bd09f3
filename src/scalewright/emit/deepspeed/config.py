"""ds_config.json of a run: batch, precision, ZeRO, offload, optimizer, clipping, recomputation, other axes.

zero_stage          zero_optimization.stage                offload optimizer     offload_optimizer: cpu
tp                  tensor_parallel.autotp_size            offload parameters    offload_param: cpu, too
cp (ulysses)        sequence_parallel_size                 recompute             activation_checkpointing
pp                  pipeline.stages                        clip_norm             gradient_clipping

The learning rate is set by the script: DeepSpeed's schedulers start a warm-up at 0 and lack the last ratio.
"""

from __future__ import annotations

from typing import Any

from scalewright.emit.deepspeed.words import OPTIMIZERS
from scalewright.emit.settings import Settings
from scalewright.spec.run import OptimizerSpec

Config = dict[str, Any]
CPU = {"device": "cpu", "pin_memory": True}


def write_config(s: Settings, precision: str, optimizer: str, recomputes: bool) -> Config:
    """The document; `precision`, `optimizer` and whether it `recomputes` as the script has them."""
    layout = s.layout
    for key in ("devices", "tp", "cp"):
        s.take(f"layout.{key}")
    config: Config = {
        "train_batch_size": layout.global_batch * layout.tp,  # it counts AutoTP's ranks as data-parallel
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": layout.accumulation,
        "gradient_clipping": s.take("optimizer.clip_norm"),
        "steps_per_print": 1000000,
        "wall_clock_breakdown": False,
    }
    if precision in ("bf16", "fp16"):
        config |= {precision: {"enabled": True}, "communication_data_type": "fp32"}
    return config | write_zero(s) | _optimizer(s, optimizer) | _axes(s) | _recompute(recomputes)


def write_zero(s: Settings) -> Config:
    """ZeRO's section."""
    stage = s.take("layout.zero_stage")
    zero: Config = {"stage": stage}
    if stage:
        zero |= {"overlap_comm": s.run.device != "cpu", "contiguous_gradients": True}
    if stage == 3:
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    return {"zero_optimization": zero | _offload(s, stage)}


def _offload(s: Settings, stage: int) -> Config:
    kind = s.layout.offload
    if kind in ("none", "activations") or (kind == "optimizer" and not stage):
        s.drop(
            "layout.offload", "DeepSpeed offloads what ZeRO shards, and activations of its own checkpoints"
        )
        return {}
    if kind == "all":
        s.nearly(
            "layout.offload",
            "parameters",
            "activations stay: DeepSpeed offloads those of its own checkpoints",
        )
    else:
        s.take("layout.offload")
    return {"offload_optimizer": dict(CPU)} | ({"offload_param": dict(CPU)} if kind != "optimizer" else {})


def _optimizer(s: Settings, name: str) -> Config:
    """The optimizer's section; none where the script makes it (AdamW8bit)."""
    if name not in OPTIMIZERS:
        return {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
    optimizer = s.run.optimizer
    assert isinstance(optimizer, OptimizerSpec)
    parameters: Config = {"lr": optimizer.lr, "weight_decay": optimizer.weight_decay}
    if name == "sgd":
        parameters["momentum"] = optimizer.kept_momentum
    else:
        parameters["betas"] = list(optimizer.betas)
    if name == "adamw":
        parameters["eps"] = optimizer.eps
        if s.layout.offload == "none":
            parameters |= {"torch_adam": True, "fused": True}  # torch's own kernel: nothing to compile
    config: Config = {"optimizer": {"type": OPTIMIZERS[name], "params": parameters}}
    return config | ({"zero_allow_untested_optimizer": True} if name == "sgd" else {})


def _axes(s: Settings) -> Config:
    layout = s.layout
    config: Config = {}
    if layout.tp > 1:
        config["tensor_parallel"] = {"autotp_size": layout.tp}
        if (
            s.model.tie_word_embeddings
        ):  # else 0.19 cuts the head's logits, which the script's loss wants whole
            config["tensor_parallel"]["vocab_parallel_lm_head"] = False
    if layout.cp > 1:
        config["sequence_parallel_size"] = layout.cp
    if layout.pp > 1:
        config["pipeline"] = {"stages": layout.pp}
    return config


def _recompute(recomputes: bool) -> Config:
    if not recomputes:
        return {}
    return {"activation_checkpointing": {"partition_activations": False, "cpu_checkpointing": False}}

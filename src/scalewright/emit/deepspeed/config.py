"""ds_config.json of a run: the keys that it takes from the run; the document is `spec/deepspeed.py`'s.

The learning rate is set by the script: DeepSpeed's schedulers start a warm-up at 0 and lack the last ratio.
"""

from __future__ import annotations

from scalewright.emit.settings import Settings
from scalewright.spec.deepspeed import (
    OPTIMIZERS,
    Config,
    ds_config,
    merge,
    optimizer_section,
    zero_section,
)
from scalewright.spec.run import OptimizerSpec


def write_config(s: Settings, precision: str, optimizer: str, recomputes: bool) -> Config:
    """The document; `precision`, `optimizer` and whether it `recomputes` as the script has them."""
    for key in ("devices", "tp", "cp"):
        s.take(f"layout.{key}")
    _take_zero(s)
    config = ds_config(
        s.layout,
        optimizer=_optimizer(s, optimizer),
        clip_norm=s.take("optimizer.clip_norm"),
        precision=precision,
        device=s.run.device,
        recomputes=recomputes,
        tied=s.model.tie_word_embeddings,
    )
    s.take_all("engine_options")
    return merge(config, s.run.engine_options)


def write_zero(s: Settings) -> Config:
    """ZeRO's section."""
    _take_zero(s)
    return zero_section(s.layout, s.run.device)


def _take_zero(s: Settings) -> None:
    stage, kind = s.take("layout.zero_stage"), s.layout.offload
    if kind in ("none", "activations") or (kind == "optimizer" and not stage):
        s.drop(
            "layout.offload", "DeepSpeed offloads what ZeRO shards, and activations of its own checkpoints"
        )
    elif kind == "all":
        s.nearly(
            "layout.offload",
            "parameters",
            "activations stay: DeepSpeed offloads those of its own checkpoints",
        )
    else:
        s.take("layout.offload")


def _optimizer(s: Settings, name: str) -> Config:
    """The optimizer's section; none where the script makes it (AdamW8bit)."""
    if name not in OPTIMIZERS:
        return {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
    optimizer = s.run.optimizer
    assert isinstance(optimizer, OptimizerSpec)
    return optimizer_section(
        name,
        lr=optimizer.lr,
        weight_decay=optimizer.weight_decay,
        betas=optimizer.betas,
        eps=optimizer.eps,
        momentum=optimizer.kept_momentum,
        on_host=s.layout.offload != "none",
    )

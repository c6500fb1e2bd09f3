"""The JSON that DeepSpeed gets: `spec/deepspeed.py`'s of layout and optimizer, and `engine_options`.

On top of what `emit deepspeed` writes, so that sums are those of this tool's own engine:

    bf16           gradients are accumulated in fp32, and a step whose gradient isn't finite is left out
    on the CPU     torch's AdamW also where states are offloaded: DeepSpeed's own would be compiled first
"""

from __future__ import annotations

from scalewright.spec.deepspeed import Config, ds_config, merge, optimizer_section
from scalewright.spec.run import OptimizerSpec, RunSpec


def engine_config(run: RunSpec) -> Config:
    """The document of a run whose device and precision are settled; `engine_options` are checked already."""
    layout, optimizer = run.layout, run.optimizer
    assert isinstance(optimizer, OptimizerSpec)
    section = optimizer_section(
        optimizer.name,
        lr=optimizer.lr,
        weight_decay=optimizer.weight_decay,
        betas=optimizer.betas,
        eps=optimizer.eps,
        momentum=optimizer.kept_momentum,
        on_host=layout.offload != "none" and run.device != "cpu",
    )
    config = ds_config(
        layout,
        optimizer=section,
        clip_norm=optimizer.clip_norm,
        precision=str(layout.precision),
        device=run.device,
        recomputes=layout.recompute != "none",
    )
    if layout.precision == "bf16":
        in_fp32 = {"bf16": {"check_grad_overflow": True}, "data_types": {"grad_accum_dtype": "fp32"}}
        config = merge(config, in_fp32)
    return merge(config, run.engine_options)

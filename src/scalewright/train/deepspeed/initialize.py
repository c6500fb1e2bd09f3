"""DeepSpeed itself: imported here alone, when a rank builds its engine, and kept off stdout.

It logs and prints to stdout, where this tool's answers are (`--json`): all that goes to stderr. It wants a process
group in a world of one rank, too, and the rank's numbers in the environment (`launch/settings.py`). Its JSON is
`spec/deepspeed.py`'s of layout and optimizer, and `engine_options`; on top of what `emit deepspeed` writes, so that
sums are those of this tool's own engine:

    bf16           gradients are accumulated in fp32, and a step whose gradient isn't finite is left out
    on the CPU     torch's AdamW also where states are offloaded: DeepSpeed's own would be compiled first
"""

from __future__ import annotations

import importlib
import logging
import sys
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, redirect_stdout
from typing import Any

from torch import nn

from scalewright.parallel.mesh import Mesh, backend_for, ensure_world
from scalewright.spec.deepspeed import Config, ds_config, merge, optimizer_section
from scalewright.spec.errors import UserError
from scalewright.spec.run import OptimizerSpec, RunSpec


def load_deepspeed(mesh: Mesh) -> Any:
    """The package, its logger on stderr; this rank's process group is there afterwards."""
    ensure_world(mesh)
    with off_stdout():
        deepspeed = importlib.import_module("deepspeed")
        # Sums in shared memory on CPUs, by code that it would compile first: left out, Gloo does them.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed(dist_backend=backend_for(mesh.device), auto_mpi_discovery=False)
    # torch's names of collectives, which DeepSpeed calls by the older ones every step
    warnings.filterwarnings("ignore", message="`torch.distributed.* is deprecated", category=FutureWarning)
    for handler in logging.getLogger("DeepSpeed").handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stderr)
    return deepspeed


def off_stdout() -> AbstractContextManager[Any]:
    """Sends what is printed to stderr."""
    return redirect_stdout(sys.stderr)


def initialize(
    deepspeed: Any, module: nn.Module, groups: list[dict[str, object]], config: Config, options: Mapping[str, Any]
) -> Any:
    """DeepSpeed's engine around a module. Raises UserError where it refuses `engine_options`."""
    try:
        with off_stdout():
            engine, *_ = deepspeed.initialize(model=module, model_parameters=groups, config=config)
    except (ValueError, TypeError, AssertionError, KeyError, AttributeError, NotImplementedError) as error:
        if not options:
            raise
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        problem = f"DeepSpeed refuses them: {'; '.join(lines[:3]) or type(error).__name__}"
        raise UserError(problem, "engine_options", "see deepspeed.ai/docs/config-json") from error
    return engine


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

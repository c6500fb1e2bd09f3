"""The check of whether DeepSpeed's engine can run a run: before a process starts, without torch.

layout       by the table that `plan --framework deepspeed` has (spec/capabilities.yaml)
model        this tool's decoder, or a user's own module; AutoTP and Ulysses rewrite those of transformers
the rest     what would need to come between DeepSpeed's gradient and its update
"""

from __future__ import annotations

from importlib.util import find_spec

from scalewright.spec.capabilities import find_capabilities
from scalewright.spec.errors import UserError, install
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.run import OptimizerSpec, PythonRef, RunSpec

OURS = "or engine: scalewright, which runs it"
OPTIMIZERS = ("adamw", "sgd")  # torch's own classes, whose states a checkpoint of either engine holds


def check_deepspeed(run: RunSpec, model: ModelSpec | PythonRef) -> None:
    """Raises UserError for a run that DeepSpeed's engine can't do, with what it can; nothing for others."""
    if run.engine != "deepspeed":
        return
    check_layout(run.layout)
    check_precision(run.layout)
    _check_model(run, model)
    _check_step(run)
    if find_spec("deepspeed") is None:
        raise UserError("deepspeed is not installed", "engine", install("deepspeed"))


def check_layout(layout: Layout) -> None:
    """Raises UserError for axes, or combinations of them, that DeepSpeed lacks."""
    for key, why in (
        ("tp", "DeepSpeed's AutoTP cuts models of transformers, and this tool's is another"),
        ("cp", "DeepSpeed's Ulysses rewrites the attention of transformers, and this tool's is another"),
    ):
        if (size := getattr(layout, key)) > 1:
            raise UserError(f"{key} {size}: {why}", f"layout.{key}", f"use {key} 1, {OURS}")
    if layout.dp_replicate > 1 and layout.zero_stage:
        problem = f"DeepSpeed's ZeRO shards over all ranks, and dp_replicate is {layout.dp_replicate}"
        raise UserError(problem, "layout.dp_replicate", f"use dp_replicate 1, {OURS}")
    known = find_capabilities("deepspeed")
    if lacks := known.missing(layout.dump()):
        axis = lacks[0].split()[0]
        how = _other_stage(layout) or f"use {axis} {' or '.join(map(str, known.axes.get(axis, ('1',))))}"
        raise UserError(f"DeepSpeed can't run {lacks[0]}", f"layout.{axis}", f"{how}, {OURS}")
    if layout.recompute == "selective" and layout.zero_stage == 3:
        problem = "zero_stage 3 gathers parameters within a block, and recompute selective runs parts of one"
        raise UserError(problem, "layout.recompute", f"use full or none, {OURS}")


def _other_stage(layout: Layout) -> str:
    """The ZeRO stage with which DeepSpeed has the rest of a layout; empty where it isn't that."""
    keys, known = layout.dump(), find_capabilities("deepspeed")
    stages = (stage for stage in (1, 0, 2, 3) if not known.missing({**keys, "zero_stage": stage}))
    return next((f"use zero_stage {stage}" for stage in stages), "")


def check_precision(layout: Layout) -> None:
    """Raises UserError for a precision that DeepSpeed would compute otherwise than this tool does. Called again when
    `auto` has been chosen on the device."""
    if layout.precision == "fp16":
        problem = "fp16 needs a loss scale, and DeepSpeed's is in no checkpoint of this tool's"
        raise UserError(problem, "layout.precision", f"use bf16, {OURS}")
    if layout.precision == "bf16" and layout.zero_stage == 0:
        problem = "DeepSpeed sums gradients in bf16 at zero_stage 0, and this tool in fp32"
        raise UserError(problem, "layout.zero_stage", "use zero_stage 1 (on one device, too), or fp32")


def _check_model(run: RunSpec, model: ModelSpec | PythonRef) -> None:
    if not isinstance(model, ModelSpec):
        return
    clips = isinstance(run.optimizer, OptimizerSpec) and run.optimizer.clip_norm > 0
    if run.layout.pp > 1 and run.layout.zero_stage == 0 and clips:  # clip_grad_norm_ of 0.19.8; measured
        problem = "at zero_stage 0 DeepSpeed clips all stages of a pipeline by the norm of the first"
        raise UserError(problem, "layout.zero_stage", f"use zero_stage 1, optimizer.clip_norm 0, {OURS}")
    if model.moe is not None:
        problem = "this tool's experts and their balance run in its own engine"
        raise UserError(problem, "engine", "use engine: scalewright, or a dense model")
    if model.mtp_layers:
        raise UserError("prediction modules run in this tool's own engine", "train.mtp_weight", f"set it to 0, {OURS}")


def _check_step(run: RunSpec) -> None:
    """What comes between gradient and update, or in the place of it."""
    optimizer = run.optimizer
    name = "your own" if isinstance(optimizer, PythonRef) else optimizer.name
    if name not in OPTIMIZERS:
        problem = f"optimizer {name} can't be handed to DeepSpeed"
        raise UserError(problem, "optimizer", f"use {' or '.join(OPTIMIZERS)}, {OURS}")
    spike = run.train.guard.spike
    late = f"DeepSpeed updates before a spike is seen, and spike: {spike} comes in between"
    for stated, key, why, how in (
        (run.diloco is not None, "diloco", "islands are this tool's own", "use diloco: null"),
        (run.train.compress != "none", "train.compress", "it is this tool's own", "use compress: none"),
        (run.train.compile is True, "train.compile", "DeepSpeed's hooks break its graphs", "use auto"),
        (spike in ("skip", "zclip"), "train.guard.spike", late, "use log or rewind"),
        (run.device == "mps", "device", "DeepSpeed's engine is tried on CPUs and CUDA", "use device: cpu"),
    ):
        if stated:
            raise UserError(f"engine: deepspeed runs without it: {why}", key, f"{how}, {OURS}")

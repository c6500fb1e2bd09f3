"""Turns what a user wrote into what will run: nulls filled, conflicts found, before a process starts.

run.yaml + overrides -> model spec, layout checked against it, steps, device -> a run with no blanks

No torch is imported here: workers do it meanwhile.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scalewright.data.dataset import open_data
from scalewright.launch.begin import cores
from scalewright.launch.settings import memory_folder
from scalewright.spec.common.formatting import counted
from scalewright.spec.compress import check_compress
from scalewright.spec.diloco import check_diloco
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout, RecomputeBudget
from scalewright.spec.memory import offloads_optimizer, offloads_parameters
from scalewright.spec.model import ModelSpec
from scalewright.spec.presets import load_model_spec
from scalewright.spec.run import PythonRef, RunSpec, apply_override, load_run
from scalewright.spec.trains import check_axes, check_trains
from scalewright.train.deepspeed.check import check_deepspeed
from scalewright.train.elementwise import check_named

Overrides = str | Sequence[str] | Mapping[str, Any]


def read_run(run: str | Path | dict[str, object] | RunSpec, overrides: Overrides, *more: str) -> RunSpec:
    """The run of a file, of plain data or of a RunSpec, with overrides: `key=value` texts, one, or a dictionary; and
    `more` texts. Raises UserError."""
    if isinstance(overrides, Mapping):
        overrides = [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
    texts = [*([overrides] if isinstance(overrides, str) else overrides), *more]
    if isinstance(run, (str, Path)):
        return load_run(run, texts)
    data = run.dump() if isinstance(run, RunSpec) else deepcopy(run)  # the caller's own stays as it is
    for text in texts:
        apply_override(data, text)
    return RunSpec.parse(data)


@dataclass(frozen=True)
class Resolved:
    """A run with no blanks, ready to be handed to workers."""

    run: RunSpec
    seq_len: int  # tokens per sequence
    variables: Mapping[str, str] = field(default_factory=dict)  # the trackers', from the environment
    tokens: float | None = None  # that the run is to consume; None: its length is given in steps

    @property
    def steps(self) -> int:
        """The run's last step."""
        return self.run.train.steps or 0

    @property
    def vocabulary(self) -> int | None:
        """Rows of the model's embedding; None where only the user's own module has them."""
        return self.run.model.vocab_size if isinstance(self.run.model, ModelSpec) else None

    def with_steps(self, steps: int) -> Resolved:
        """The same run with its length in steps."""
        length = self.run.train.model_copy(update={"tokens": None, "steps": steps})
        return replace(self, run=self.run.model_copy(update={"train": length}))

    @property
    def model(self) -> ModelSpec | PythonRef:
        """The model, never a name."""
        if isinstance(self.run.model, str):
            raise ValueError("a resolved run names no model")
        return self.run.model


def resolve(run: RunSpec, *, read_data: bool = True) -> Resolved:
    """Fills a run's nulls and checks it against its model and data; raises UserError. `read_data` false leaves the data
    to `with_data`: a dry run can do without them."""
    model = _trained_model(run)
    check_trainable(model, run.layout, run.stated_seq_len)
    check_named(run.optimizer, run.layout)
    _check_muon(run, model)
    check_compress(run.train.compress, run.layout, islands=run.diloco is not None)
    _check_diloco(run, model)
    _check_capacity(run, model)
    check_deepspeed(run, model)
    if isinstance(run.loss, PythonRef):
        reduction_of(run.loss)
    _check_memory(run)
    if run.checkpoint.keep_best and not run.train.valid_every:
        problem = "the best checkpoints are those with the lowest held-out loss, and this run measures none"
        raise UserError(problem, "checkpoint.keep_best", "set train.valid_every, to a divisor of checkpoint.every")
    if run.train.guard.spike == "rewind" and not run.checkpoint.every:
        problem = "a rewind goes back to the newest checkpoint, and this run saves none on the way"
        raise UserError(problem, "train.guard.spike", "set checkpoint.every, or use spike: skip")
    whole = run.model_copy(update={"model": model, "out_dir": str(run.folder)})
    resolved = _with_steps(whole, run.seq_len, run.train.tokens)
    return with_data(resolved) if read_data else resolved


def _check_memory(run: RunSpec) -> None:
    """Raises UserError where steps can't be kept in memory, or a copy would have no other node to lie on."""
    kept, nodes = run.checkpoint, run.launch.nodes
    if kept.memory_every and not memory_folder().is_dir():
        problem = f"steps are kept in memory under {memory_folder()}, and this system has none"
        raise UserError(problem, "checkpoint.memory_every", "use memory_every: 0, and checkpoint.async: true")
    if kept.memory_buddy and not kept.memory_every:
        problem = "copies on another node are of steps that are kept in memory, and none are"
        raise UserError(problem, "checkpoint.memory_buddy", "set checkpoint.memory_every, as to 1")
    if kept.memory_buddy and nodes and kept.memory_buddy % nodes == 0:
        problem = f"{counted(kept.memory_buddy, 'nodes')} further, of {nodes}, is the same node"
        how = "use memory_buddy: 1, the next node" if nodes > 1 else "leave it out: one node has no other"
        raise UserError(problem, "checkpoint.memory_buddy", how)


def with_data(resolved: Resolved) -> Resolved:
    """The run when its training data have been opened; raises UserError for missing data or words. A user's own data
    that don't state how long their sequences are, are asked for one sample."""
    run, model = resolved.run, resolved.model
    data = open_data(run.data, "train", run.seed)
    if isinstance(model, ModelSpec) and data.vocab_size and data.vocab_size > model.vocab_size:
        problem = f"the data's vocabulary {data.vocab_size} is more than the model's vocab_size {model.vocab_size}"
        how = f"use vocab_size {data.vocab_size}, or prepare the data with the model's tokenizer"
        raise UserError(problem, "model", how)
    if run.stated_seq_len is not None:
        return resolved
    seq_len = int(data.batch([0]).tokens.shape[1])
    check_trainable(model, run.layout, seq_len)
    return _with_steps(run, seq_len, resolved.tokens)


def _with_steps(run: RunSpec, seq_len: int, tokens: float | None) -> Resolved:
    """A checked run, its length in steps."""
    steps = run.train.steps or 0
    if tokens is not None:
        steps = max(1, math.ceil(tokens / (run.layout.global_batch * seq_len)))
    return Resolved(run, seq_len, tokens=tokens).with_steps(steps)


def _trained_model(run: RunSpec) -> ModelSpec | PythonRef:
    """The run's model with the prediction modules that it trains; raises UserError where it can't."""
    model = load_model_spec(run.model) if isinstance(run.model, str) else run.model
    if isinstance(model, PythonRef) or not model.mtp_layers:
        return model
    if not run.train.mtp_weight:
        return model.replace(mtp_layers=0)
    if isinstance(run.loss, PythonRef):
        problem = "multi-token prediction has targets further ahead, which a loss of your own doesn't get"
        raise UserError(problem, "loss", "set train.mtp_weight to 0, or use loss: cross_entropy")
    return model


def _check_muon(run: RunSpec, model: ModelSpec | PythonRef) -> None:
    """Muon has to find a model's matrices, and computes with them on the device."""
    if isinstance(run.optimizer, PythonRef) or run.optimizer.name != "muon":
        return
    if isinstance(model, PythonRef):
        problem = "muon updates the matrices of blocks, and your own module doesn't tell which those are"
        raise UserError(problem, "optimizer", "use adamw, or an optimizer of your own (`python: ...`)")
    if offloads_optimizer(run.layout) or offloads_parameters(run.layout):
        problem = f"muon computes with matrices on the device, and offload: {run.layout.offload} moves them"
        raise UserError(problem, "layout.offload", "use offload: none or activations, or adamw")


def _check_diloco(run: RunSpec, model: ModelSpec | PythonRef) -> None:
    """Islands, and what a run can't have beside them."""
    check_diloco(run.diloco, run.layout, model.num_hidden_layers if isinstance(model, ModelSpec) else None)
    if run.diloco is not None and run.train.guard.spike == "rewind":
        problem = "a rewind goes back with all ranks, and with diloco each island decides on its own spikes"
        raise UserError(problem, "train.guard.spike", "use spike: log, skip or zclip, or diloco: null")


def _check_capacity(run: RunSpec, model: ModelSpec | PythonRef) -> None:
    """A capacity is of experts that this tool routes to."""
    factor = run.train.balance.capacity_factor
    if factor is not None and not (isinstance(model, ModelSpec) and model.moe):
        problem = f"capacity_factor {factor:g} limits experts, and this model has none of this tool's"
        raise UserError(problem, "train.balance", "leave it out, or train a mixture such as olmoe-1b-7b")


def check_trainable(model: ModelSpec | PythonRef, layout: Layout, seq_len: int | None) -> None:
    """Raises UserError for a model or a layout that can't be trained, or one that can't have the other. `seq_len` is
    null when only the data know it."""
    if isinstance(model, ModelSpec):
        check_trains(model, layout, seq_len)
        return
    check_axes(layout)
    # A user's own module is cut by data parallelism alone: how its layers split is unknown.
    for key, value in (("tp", layout.tp), ("pp", layout.pp), ("cp", layout.cp)):
        if value > 1:
            problem = f"{key} {value} needs a model that this tool builds, and this one is the user's own"
            raise UserError(problem, "layout", f"use {key} 1: zero_stage 3 and dp_replicate cut any module")
    if isinstance(layout.recompute, RecomputeBudget):
        weighs = "recompute {budget: ...} weighs the operators of a model that this tool builds"
        raise UserError(f"{weighs}, and this one is the user's own", "layout", "use selective, full or {every: 2}")


REDUCTIONS = ("sum", "mean")


def reduction_of(loss: PythonRef) -> str:
    """The reduction of a user's own loss that the run file declares; raises UserError for one that isn't one."""
    chosen = loss.arguments.get("reduction", "sum")
    if chosen not in REDUCTIONS:
        raise UserError(f"reduction {chosen!r} gives no single number", "loss", "use reduction: sum or reduction: mean")
    return str(chosen)


def device_kind(run: RunSpec) -> tuple[str, int]:
    """The device to train on and how many this machine has: ("cuda", 8), ("mps", 1) or ("cpu", cores)."""
    if run.device == "cpu" or (run.device == "auto" and not may_have_gpu()):
        return "cpu", cores()
    import torch

    if run.device in ("auto", "cuda") and torch.cuda.is_available():
        return "cuda", torch.cuda.device_count()
    if run.device in ("auto", "mps") and torch.backends.mps.is_available():
        return "mps", 1
    if run.device != "auto":
        how = "use device=cpu (auto keeps the kind of device that a run began on)"
        raise UserError(f"device {run.device} is not on this machine", "device", how)
    return "cpu", cores()


def may_have_gpu() -> bool:
    """Whether asking torch is worth the two seconds that its import takes."""
    devices = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
    return sys.platform != "linux" or any(Path(path).exists() for path in devices)


def check_workers(run: RunSpec, kind: str, count: int, simulate: bool, nodes: int = 1) -> None:
    """Raises UserError when the layout wants more local workers than this machine has devices for. `nodes`: machines
    like this one, each of which starts its part of them."""
    wanted = run.layout.devices // nodes
    if kind == "mps" and wanted > 1:
        raise UserError(f"layout.devices {wanted} but MPS is one device", "layout", "use device: cpu")
    if wanted <= count or simulate or run.device == "cpu":
        return
    unit = "GPUs" if kind == "cuda" else "CPU cores"
    each = f" on {nodes} nodes is {wanted} each," if nodes > 1 else " is"
    command = f"torchrun --nnodes=... --nproc-per-node={count} -m scalewright train RUN.yaml"
    how = f"start it with {command}, or try it on CPU processes with --simulate"
    raise UserError(f"layout.devices {run.layout.devices}{each} more than this machine's {count} {unit}", "layout", how)

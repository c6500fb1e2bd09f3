"""From a user's run to the two runs that are compared: its layout, and one device, scaled to this machine.

run ──model, layout, data that fit──► layout's run     out_dir, tracking, saves: none of the user's
                                 └──► control's run    the same on one device; with `diloco` islands of one
                                                       device each, simulated (diloco_control.py)

    seconds = steps x 2 optimizers x (control + layout) x 6 x active parameters x tokens of a step / FLOP/s
    bytes   = 16 x parameters x copies that the layout holds at once + logits of every rank

The limits of this machine are rough on purpose: a comparison is to answer in a minute or two, and a small model shows a
wrong layout as well as a large one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psutil

from scalewright.launch.begin import cores
from scalewright.parity import layouts
from scalewright.parity.models import fewer_kv_heads, small_model, small_seq_len
from scalewright.spec.compress import word
from scalewright.spec.diloco import DilocoSpec, check_diloco
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.layout_check import check_layout, is_legal
from scalewright.spec.model import ModelSpec
from scalewright.spec.presets import load_model_spec
from scalewright.spec.run import DataSpec, OptimizerSpec, PythonRef, RunSpec
from scalewright.spec.tensors import count
from scalewright.train.elementwise import cuts
from scalewright.train.resolve import check_trainable

NEUTRAL: dict[str, object] = {"cluster": "local", "resume": "never", "track": {}, "profile": {}, "environment": None}
MATHEMATICS = ("z_loss", "balance")  # keys of `train` that change what is computed
SHOWN = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads",
         "num_key_value_heads", "head_dim", "vocab_size")  # fmt: skip
RUNS = 4  # control and layout, each with the run's optimizer and with SGD
SECONDS = 120.0
CPU_RANKS = 8  # that a small machine runs at once without trouble
CORE_RATE = 1e10  # FLOP/s of one core in fp32, of the small products that a rank's part is made of
GPU_RATE = 1e13  # FLOP/s of one GPU in fp32
STATE_BYTES = 16  # fp32: parameter, gradient, two moments


@dataclass(frozen=True)
class Setup:
    """Two runs that should give the same numbers, and what was changed to make them fit."""

    layout: RunSpec
    control: RunSpec
    shrunk: tuple[str, ...]
    notes: tuple[str, ...]


def set_up(run: RunSpec, *, device: str, steps: int, micro_batch: int | None = None) -> Setup:
    """The runs to compare; `micro_batch`: the control's. Raises UserError for a layout that can't be or doesn't fit."""
    _check_comparable(run)
    limits = find_limits(device)
    model = load_model_spec(run.model) if isinstance(run.model, str) else run.model
    seq_len = run.seq_len
    layout = layouts.without_idle_chunks(run.layout)
    check_trainable(model, layout, run.stated_seq_len)
    check_diloco(run.diloco, layout, model.num_hidden_layers if isinstance(model, ModelSpec) else None)
    small, fitted, length = _fit(model, layout, seq_len, steps, limits, device)
    shrunk = _differences(layout, fitted) + _differences(model, small)
    if length != seq_len:
        shrunk.append(f"seq_len {seq_len} -> {length}")
    diloco = often_enough(run.diloco, steps)
    shrunk += [f"diloco.{line}" for line in _differences(run.diloco, diloco)] if run.diloco else []
    data, notes = _data(run, small, length, changed=small != model or length != seq_len)
    if run.init != "random" and small != model:
        notes.append("weights are random: those of init don't fit the small model")
    mine = fitted.replace(precision="fp32" if run.layout.precision == "auto" else run.layout.precision)
    base = run.replace(
        **NEUTRAL,
        model=small if isinstance(small, PythonRef) else small.dump(),
        data=data,
        device=device,
        init=run.init if small == model else "random",
        lr_schedule={"kind": "constant"},  # a warm-up would hardly move the weights in so few steps
        train={"steps": steps, **{key: run.train.dump()[key] for key in MATHEMATICS}, "compile": False},
        checkpoint={"at_end": False},
        diloco=diloco.dump() if diloco is not None else None,
    )
    alone = layouts.one_device if diloco is None else layouts.islands_alone
    split = base.replace(layout=mine.dump(), train={**base.train.dump(), "compile": run.train.compile})
    # the control is always our own
    control = base.replace(layout=alone(mine, micro_batch).dump(), engine="scalewright", engine_options={})
    return Setup(split, control, tuple(shrunk), tuple(notes))


def _check_comparable(run: RunSpec) -> None:
    """Raises UserError for what one device doesn't compute by design: tests simulate it in one process."""
    if run.train.compress != "none":
        what = f"{word(run.train.compress)} changes what replicas send each other, and one device sends nothing"
        raise UserError(what, "train.compress", "compare with train.compress=none")
    optimizer = run.optimizer
    if isinstance(optimizer, OptimizerSpec) and optimizer.record.block and cuts(run.layout):
        what = f"{optimizer.name} quantises the parts that ranks hold, and this layout cuts tensors: one device has "
        raise UserError(f"{what}other blocks", "optimizer.name", "compare with optimizer.name=adamw or adamw_bf16")


def often_enough(diloco: DilocoSpec | None, steps: int) -> DilocoSpec | None:
    """Islands that meet at least twice in so many steps, as far as fragments and overlap let them."""
    if diloco is None or diloco.inner_steps * 2 <= steps:
        return diloco
    inner = min(max(steps // 2 // diloco.fragments, 1) * diloco.fragments, diloco.inner_steps)
    return diloco.replace(inner_steps=inner, overlap=min(diloco.overlap, inner - 1))


def _fit(
    model: ModelSpec | PythonRef, layout: Layout, seq_len: int, steps: int, limits: MachineLimits, device: str
) -> tuple[ModelSpec | PythonRef, Layout, int]:
    """The model, the layout and the sequence length, as large as fits here."""
    after = layout
    if layout.devices > limits.ranks:
        after = layouts.smallest(layout, model.num_hidden_layers if isinstance(model, ModelSpec) else 1)
        if device != "cpu" and after.devices > limits.ranks:
            what = f"even two ranks along each axis are {after.devices}, and here are {limits.ranks} GPUs"
            raise UserError(what, "layout", "use --device cpu, which takes processes instead")
    if isinstance(model, PythonRef):
        return model, after, seq_len
    small = fewer_kv_heads(model, layout, after)
    if too_large(small, after, seq_len, steps, limits) or not is_legal(after, small, seq_len, train=True):
        seq_len = small_seq_len(seq_len, after)
        data = {**after.dump(), "micro_batch": min(2, after.micro_batch), "stage_layers": None}
        after = layouts.with_micro_batches(data, after.accumulation)
        small = small_model(model, layout, after, seq_len)
        if layout.stage_layers is not None:
            cut = layouts.by_hand(small.num_hidden_layers, after.stages, layout.stage_layers)
            after = after.replace(stage_layers=cut)
    check_layout(after, small, seq_len, train=True)
    return small, after, seq_len


def _differences(before: Any, after: Any) -> list[str]:
    """`key old -> new` of every key that shrinking changed."""
    if before == after or isinstance(before, PythonRef):
        return []
    a, b = before.dump(), after.dump()
    keys = SHOWN if isinstance(before, ModelSpec) else tuple(a)
    return [f"{key} {_show(a[key])} -> {_show(b[key])}" for key in keys if a[key] != b[key]]


def _show(value: Any) -> str:
    return str(value).replace(" ", "")


def _data(run: RunSpec, model: ModelSpec | PythonRef, seq_len: int, *, changed: bool) -> tuple[Any, list[str]]:
    """The data to train on: the run's own, folded into a small vocabulary if need be, or random tokens."""
    vocabulary = model.vocab_size if isinstance(model, ModelSpec) else None
    if isinstance(run.data, DataSpec) and (paths := run.data.missing()):
        missing = paths[0]
        if vocabulary is None:
            raise UserError(f"no data at {missing}", "data.train", "prepare it: a model of one's own needs it")
        random = {"python": "scalewright.data.stand_in:RandomTokens", "vocab_size": vocabulary}
        mask = run.data.document_mask
        return {**random, "seq_len": seq_len, "document_mask": mask}, [f"random tokens: there is no data at {missing}"]
    if not changed:
        return run.data.dump(), []
    folded = {"python": "scalewright.data.stand_in:Folded", "source": run.data.dump()}
    return {**folded, "vocab_size": vocabulary, "seq_len": seq_len}, []


@dataclass(frozen=True)
class MachineLimits:
    """The limits of a comparison."""

    ranks: int
    rate: float  # FLOP/s in all
    memory: float  # bytes in all
    device_memory: float  # bytes that one rank may take


def find_limits(device: str) -> MachineLimits:
    """The limits of this machine; raises UserError when there is no such device."""
    if device == "cpu":
        free = 0.5 * psutil.virtual_memory().available
        return MachineLimits(max(CPU_RANKS, cores()), CORE_RATE * cores(), free, free)
    import torch

    if not torch.cuda.is_available():
        raise UserError("torch can't use cuda on this machine", "--device", "use cpu")
    gpus = torch.cuda.device_count()
    free = 0.7 * min(torch.cuda.mem_get_info(index)[0] for index in range(gpus))
    return MachineLimits(gpus, GPU_RATE * gpus, free * gpus, free)


def too_large(model: ModelSpec, layout: Layout, seq_len: int, steps: int, limits: MachineLimits) -> bool:
    """Whether comparing this model under this layout would take too long or too much memory."""
    parameters = count(model)
    seconds = 6.0 * parameters.active * layout.global_batch * seq_len * steps * RUNS / limits.rate
    copies = layout.cp * (layout.dp_replicate if layout.zero_stage == 3 else layout.dp)
    logits = 12.0 * layout.micro_batch * seq_len * model.vocab_size
    activations = 80.0 * layout.micro_batch * seq_len * model.hidden_size * model.num_hidden_layers
    control = STATE_BYTES * parameters.total + logits + activations
    whole = STATE_BYTES * parameters.total * copies + (logits + activations) * layout.dp
    return seconds > SECONDS or control > limits.device_memory or whole > limits.memory

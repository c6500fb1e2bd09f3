"""A user's own optimizer as a record that prices are made of: its states and the bytes of its update, by a trial.

    mine:Lion2  --three steps of a 256 x 256 and a 512 x 512 weight-->  bytes a number: states 4, an update 52

What a number costs is the difference of both, so that step counters, rows and columns (Adafactor) don't count with it.
An update's bytes are those that its operators read and write on a CPU, kernel by kernel; a fused kernel moves less.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from scalewright.model.torch_private import TorchDispatchMode, tree_leaves
from scalewright.spec.base import parse_yaml
from scalewright.spec.errors import UserError
from scalewright.spec.optimizers import NAMES, Optimizer
from scalewright.spec.run import PythonRef
from scalewright.spec.user_code import import_object

SIZES = (256, 512)
WARM = 2  # steps before the one that is counted: states are made in the first


def measure_named(text: str) -> tuple[PythonRef, Optimizer]:
    """`mine:Lion,lr=1e-3` as its import path, and its record. Raises UserError."""
    path, *pairs = text.split(",")
    arguments = dict(pair.partition("=")[::2] for pair in pairs)
    ref = PythonRef.parse({"python": path, **{k: parse_yaml(v, "--optimizer") for k, v in arguments.items()}})
    return ref, measure(ref)


def measure(ref: PythonRef) -> Optimizer:
    """The record of an optimizer by its import path, whose code this runs. Raises UserError where it can't be tried."""
    build = import_object(ref.python)
    try:
        with torch.random.fork_rng(devices=[]):
            (small, moved_by_small, counter), (large, moved_by_large, _) = (_trial(build, ref, side) for side in SIZES)
    except Exception as error:  # a user's code may raise anything
        what = f"{ref.python} can't be tried here: {type(error).__name__}: {error}"
        how = f"its arguments follow it, as mine:Lion,lr=1e-3; or price one that keeps as much: {', '.join(NAMES)}"
        raise UserError(what, "--optimizer", how) from error
    more = SIZES[1] ** 2 - SIZES[0] ** 2
    state, update = (large - small) / more, (moved_by_large - moved_by_small) / more
    return Optimizer(
        name=ref.python, written="adamw", states=("state",), width=round(state, 2), step_bytes=counter,
        update=round(update), source="measured: three steps on this machine's CPU",
    )  # fmt: skip


def _trial(build: Any, ref: PythonRef, side: int) -> tuple[int, int, int]:
    """Bytes of a square weight's states, of its update, and of its step counters."""
    weight, vector = (torch.nn.Parameter(torch.full(shape, 0.02)) for shape in ((side, side), (64,)))
    made = build([{"params": [weight]}, {"params": [vector], "weight_decay": 0.0}], **ref.arguments)
    traffic = _Traffic()  # type: ignore[no-untyped-call]
    for step in range(WARM + 1):
        for parameter in (weight, vector):
            parameter.grad = torch.randn_like(parameter)
        with traffic if step == WARM else nullcontext():
            made.step()
    kept = [tensor for tensor in tree_leaves(dict(made.state.get(weight, {}))) if isinstance(tensor, Tensor)]
    counters = sum(_bytes(tensor) for tensor in kept if tensor.numel() == 1)
    return sum(map(_bytes, kept)) - counters, traffic.moved, counters


def _bytes(tensor: Tensor) -> int:
    """A tensor's bytes; of one that wraps others (codes and scales), theirs."""
    if hasattr(tensor, "__tensor_flatten__"):
        return sum(_bytes(getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0])
    return tensor.numel() * tensor.element_size()


class _Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes that operators read and write; views move none."""

    moved = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        returned, named = func._schema.returns, {argument.name: argument for argument in func._schema.arguments}
        if any(value.alias_info is not None and not value.alias_info.is_write for value in returned):
            return out
        given = {**dict(zip(named, args, strict=False)), **(kwargs or {})}
        changed = [value for name, value in given.items() if (alias := named[name].alias_info) and alias.is_write]
        made = [] if any(value.alias_info for value in returned) else [out]
        moved = tree_leaves([*given.values(), *changed, *made])
        self.moved += sum(_bytes(tensor) for tensor in moved if isinstance(tensor, Tensor))
        return out

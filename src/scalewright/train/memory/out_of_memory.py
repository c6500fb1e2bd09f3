"""An allocation that failed, in one line: which rank, in which step and phase, how much, and what would help.

    torch.OutOfMemoryError (CUDA) · RuntimeError of the CPU's allocator · bad_alloc · MemoryError --> RunError

Step and phase are read off the traceback, so that a step pays nothing for it. `estimate` has the memory that a run
needs, from the planner's sums over operators, and `helps` the change of its keys after which `high` is free. `train`
asks for both before it starts workers, in a process that imports no torch:

    low = most of the planned peak  <  peak of the fullest rank  <  the planned p90 = high
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from types import TracebackType
from typing import TYPE_CHECKING, Any

from scalewright.plan.constants import constants
from scalewright.plan.cost.evaluate import evaluate_memory, prepare
from scalewright.plan.request import from_question
from scalewright.spec.common.numbers import number_of
from scalewright.spec.errors import RunError, UserError
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.layout_check import is_legal
from scalewright.spec.model import ModelSpec
from scalewright.spec.question import Question
from scalewright.spec.run import PythonRef, RunSpec

if TYPE_CHECKING:
    import torch

GIB = float(2**30)
# Parts of allocators' messages: torch's on the CPU (two releases), C++'s, MPS', and drivers'.
SIGNS = ("alloc_cpu", "DefaultCPUAllocator", "not enough memory: you tried", "bad_alloc", "out of memory")
# (part of a file's name, function or "", phase): the first that any frame matches.
PHASES = (
    ("scalewright/checkpoint/", "", "checkpointing"),
    ("scalewright/evaluate/", "", "validation"),
    ("scalewright/train/step.py", "_update", "the optimizer's step"),
    ("torch/autograd/", "", "the backward"),
    ("scalewright/parallel/", "_backward", "the backward"),
    ("scalewright/train/step.py", "__call__", "the forward"),
)
BUILDING = "building the model"


@contextmanager
def memory_explained(run: RunSpec, seq_len: int, rank: int, device: torch.device) -> Iterator[None]:
    """Turns a failed allocation inside into a RunError of one line."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        from scalewright.train.memory.usage import write_history

        line = explain(error, run, seq_len, rank, device)
        history = write_history(run.profile.memory, run.folder, rank, device)
        more = f"; what held it: scalewright diagnose {history}" if history else ""
        raise RunError(line + more) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed."""
    by_message = isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)
    return by_message or isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"  # of torch


def explain(error: BaseException, run: RunSpec, seq_len: int, rank: int, device: torch.device) -> str:
    """The line."""
    step, phase = where(error.__traceback__)
    when = f"while {phase}" if phase == BUILDING else f"in {phase}"
    when += "" if step is None else f" of step {step}"
    requested = wanted(str(error))
    much = f", asking for {requested / GIB:.2f} GiB more" if requested else ""
    return f"rank {rank} ran out of {device.type} memory {when}{much}: try {_advice(run, seq_len, device)}"


def where(trace: TracebackType | None) -> tuple[int | None, str]:
    """The step (None before the first) and the phase, from the frames of a traceback."""
    step, frames = None, []
    while trace is not None:
        code, variables = trace.tb_frame.f_code, trace.tb_frame.f_locals
        name = code.co_filename.replace("\\", "/")
        frames.append((name, code.co_name))
        if name.endswith("scalewright/train/loop.py") and isinstance(variables.get("step"), int):
            step = variables["step"]
        trace = trace.tb_next
    for part, function, phase in PHASES:
        if any(part in name and function in ("", called) for name, called in frames):
            return step, phase
    return step, BUILDING if step is None else "the step"


def wanted(message: str) -> float | None:
    """Bytes that the allocation asked for; None where its message has no number."""
    match = re.search(r"[Tt]ried to allocate ([\d.]+ (?:[KMGT]iB|bytes))", message)
    return number_of(match[1], "bytes") if match else None


def _advice(run: RunSpec, seq_len: int, device: torch.device) -> str:
    """Overrides that would fit by the planner's count, or all that take less."""
    if device.type == "cuda":
        import torch

        total = float(torch.cuda.get_device_properties(device).total_memory)
        if change := helps(run, seq_len, 0.95 * total, 1):
            return change
    layout: Any = run.layout
    ways = [f"layout.micro_batch={layout.micro_batch // 2}"] if layout.micro_batch > 1 else []
    ways += ["layout.recompute=full"] if layout.recompute != "full" else []
    ways += ["layout.zero_stage=3"] if layout.dp > 1 and layout.zero_stage != 3 else []
    return ", ".join([*ways, "a smaller data.seq_len"])


ANY_GPU = "dgx-h100"  # a device that has every precision: bytes don't depend on it
_CHIPS = {"cuda": ("gpu",), "cpu": ("cpu",)}  # whose kernels run: of `device: auto` either may be meant
CERTAIN = 0.8  # of the planned peak: tiny runs keep less than their tensors, padded, add up to


@dataclass(frozen=True)
class Need:
    """Bytes of the fullest rank: surely more than `low`, hardly more than `high`."""

    low: float
    high: float


def estimate(run: RunSpec, seq_len: int, layout: Layout | None = None) -> Need | None:
    """The memory of the run's fullest rank; None for a model of the user's own, which isn't counted here."""
    model, layout = run.model, layout or run.layout
    if not isinstance(model, ModelSpec):
        return None
    lows, highs = [], []
    precisions = ("fp32", "bf16") if layout.precision == "auto" else (layout.precision,)
    for precision, chip in product(precisions, _CHIPS.get(run.device, ("gpu", "cpu"))):
        sized = Layout.parse({**layout.dump(), "precision": precision})
        request = from_question(Question(run, load_cluster(ANY_GPU), length=seq_len).with_layout(sized))
        prepared = prepare([replace(request, chip=replace(request.chip, kind=chip))])
        usage = evaluate_memory(prepared, constants())
        unknown = float(usage.parts["optimizer"][0]) if isinstance(run.optimizer, PythonRef) else 0.0
        lows.append(CERTAIN * (float(usage.peak[0]) - unknown))
        highs.append(float(usage.high[0]))
    return Need(min(lows), max(highs))


def helps(run: RunSpec, seq_len: int, free: float, ranks: int) -> str | None:
    """The first change, nearest first, after which `ranks` of it fit in `free` bytes, as overrides."""
    model = run.model
    if not isinstance(model, ModelSpec):
        return None
    for words, changes, length in _changes(run.layout, seq_len):
        try:
            layout = Layout.parse({**run.layout.dump(), **changes})
            need = estimate(run, length, layout) if is_legal(layout, model, length) else None
        except UserError:
            continue
        if need is not None and need.high * ranks <= free:
            return words
    return None


def _changes(layout: Layout, seq_len: int) -> Iterator[tuple[str, dict[str, object], int]]:
    """(overrides, changes of the layout, sequence length), the least first."""
    less: dict[str, object] = {"micro_batch": 1} if layout.micro_batch > 1 else {}
    again: dict[str, object] = {"recompute": "full"} if layout.recompute != "full" else {}
    shard: dict[str, object] = {"zero_stage": 3} if layout.dp > 1 and layout.zero_stage != 3 else {}
    for changes in filter(None, (less, again, shard, {**less, **again}, {**less, **again, **shard})):
        yield _overrides(changes), changes, seq_len
    for lean in ({}, {**less, **again}):
        for times in (2, 4, 8, 16, 32, 64, 128):
            if length := seq_len // times // 16 * 16:
                yield f"data.seq_len={length} {_overrides(lean)}".strip(), lean, length


def _overrides(changes: dict[str, object]) -> str:
    return " ".join(f"layout.{key}={value}" for key, value in changes.items())

"""An allocation that failed, in one line: which rank, in which step and phase, how much, and what would help.

    torch.OutOfMemoryError (CUDA) · RuntimeError of the CPU's allocator · bad_alloc · MemoryError --> RunError

Step and phase are read off the traceback, so that a step pays nothing for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch

from scalewright.spec.errors import RunError
from scalewright.spec.run import RunSpec
from scalewright.train.memory.history import write_history
from scalewright.train.memory.need import helps

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
        line = explain(error, run, seq_len, rank, device)
        history = write_history(run.profile.memory, run.folder, rank, device)
        more = f"; what held it: scalewright diagnose {history}" if history else ""
        raise RunError(line + more) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)


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
    if match := re.search(r"[Tt]ried to allocate ([\d.]+) (Ki|Mi|Gi|Ti)B", message):
        return float(match[1]) * 2.0 ** (10 * (1 + ("Ki", "Mi", "Gi", "Ti").index(match[2])))
    if match := re.search(r"tried to allocate (\d+) bytes", message):
        return float(match[1])
    return None


def _advice(run: RunSpec, seq_len: int, device: torch.device) -> str:
    """Overrides that would fit by the planner's count, or all that take less."""
    if device.type == "cuda":
        total = float(torch.cuda.get_device_properties(device).total_memory)
        if change := helps(run, seq_len, 0.95 * total, 1):
            return change
    layout: Any = run.layout
    ways = [f"layout.micro_batch={layout.micro_batch // 2}"] if layout.micro_batch > 1 else []
    ways += ["layout.recompute=full"] if layout.recompute != "full" else []
    ways += ["layout.zero_stage=3"] if layout.dp > 1 and layout.zero_stage != 3 else []
    return ", ".join([*ways, "a smaller data.seq_len"])

"""Names for what a traced step does: phases, micro-batches, layers, waits for other ranks.

    ProfilerStep#5 ─┬─ data phase
                    ├─ compute phase ─┬─ forward stage 0 micro-batch 0 ─┬─ layers.0
                    │                 │                                 └─ layers.1 ── comm_tp
                    │                 └─ backward stage 0 micro-batch 0
                    └─ optimizer phase

Each is a range of torch's profiler and, on CUDA, one of NVTX, which Nsight Systems shows. Phases and
communication are named by the mesh's timers (`parallel/timers.py`), computations by the executor's recorder;
layers by hooks that are there while a step is traced, so that other steps pay nothing. A compiled layer
gets none: a hook would compile it anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.profiler import record_function
from torch.utils.hooks import RemovableHandle

from scalewright.parallel.blocks import find_blocks
from scalewright.parallel.execute import Recorder
from scalewright.parallel.timers import PHASES
from scalewright.spec.schedule import Action, Schedule


@contextmanager
def named_range(name: str, on_gpu: bool = False) -> Iterator[None]:
    """A range of the profiler, and of NVTX on a GPU."""
    with record_function(name):
        if on_gpu:
            torch.cuda.nvtx.range_push(name)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            if on_gpu:
                torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]


def phase_range(name: str, on_gpu: bool = False) -> AbstractContextManager[None]:
    """A range for a mark of the mesh's timers: `comm_tp`, or `data phase`."""
    return named_range(f"{name} phase" if name in PHASES else name, on_gpu)


class NamedActions(Recorder):
    """An executor's recorder that names its computations and messages, and tells another recorder, too."""

    def __init__(self, on_gpu: bool, inner: Recorder) -> None:
        self.on_gpu, self.inner = on_gpu, inner
        self._open: AbstractContextManager[Any] | None = None

    def start(self, plan: Schedule) -> None:
        """A step of this schedule begins."""
        self.inner.start(plan)

    def before(self, action: Action) -> None:
        """Opens the action's range."""
        self.inner.before(action)
        text = f"{action.kind} stage {action.stage} micro-batch {action.micro}"
        self._open = named_range(text, self.on_gpu)
        self._open.__enter__()

    def after(self, action: Action) -> None:
        """Closes it."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None
        self.inner.after(action)

    def arrived(self) -> None:
        """All actions are done."""
        self.inner.arrived()


class NamedLayers:
    """Hooks that name the forward of each of a model's layers; `remove` takes them off again."""

    def __init__(self, model: nn.Module, on_gpu: bool) -> None:
        names = {module: name for name, module in model.named_modules()}
        self._hooks: list[RemovableHandle] = []
        for block in find_blocks(model):
            if getattr(block, "_compiled_call_impl", None) is None:
                self._name(block, names[block], on_gpu)

    def _name(self, block: nn.Module, name: str, on_gpu: bool) -> None:
        ranges: list[AbstractContextManager[Any]] = []

        def begin(_module: nn.Module, _inputs: Any) -> None:
            ranges.append(named_range(name, on_gpu))
            ranges[-1].__enter__()

        def end(_module: nn.Module, _inputs: Any, _output: Any) -> None:
            if ranges:
                ranges.pop().__exit__(None, None, None)

        self._hooks += [block.register_forward_pre_hook(begin), block.register_forward_hook(end)]

    def remove(self) -> None:
        """Takes the hooks off."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

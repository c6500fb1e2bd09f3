"""Profiler traces of chosen steps: `profile: {steps: [5, 6]}` writes traces/step-00000005-rank00000.json.gz.

    step         4    │ 5              │ 6              │    7        one file a rank for steps in a row
                      prepare, meet, start              stop, write

Every rank writes its own file, which `scalewright diagnose`, Perfetto and chrome://tracing open. Beside what torch's
profiler records it holds names of phases, micro-batches and layers, the axis of each process group, the group of each
collective, from torch's flight recorder, since Gloo's events don't have it, and the median time of the steps before,
which nothing slowed. A pipeline also writes when each of its actions ran: traces/pipeline-step-00000005.json. A traced
step is slower than others, so steps are chosen, and none by default; a run without any pays nothing. What preparing and
writing take is in no step's time.

    ProfilerStep#5 ─┬─ data phase
                    ├─ compute phase ─┬─ forward stage 0 micro-batch 0 ─┬─ layers.0
                    │                 │                                 └─ layers.1 ── comm_tp
                    │                 └─ backward stage 0 micro-batch 0
                    └─ optimizer phase

Each is a range of torch's profiler and, on CUDA, one of NVTX, which Nsight Systems shows. Phases and communication are
named by the mesh's timers (`parallel/timers.py`), computations by the executor's recorder; layers by hooks that are
there while a step is traced, so that other steps pay nothing. A compiled layer gets none: a hook would compile it anew.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.hooks import RemovableHandle

from scalewright.launch.capture.injected.scalewright_recorder import collectives
from scalewright.launch.settings import quiet_profiler
from scalewright.parallel.collectives import barrier
from scalewright.parallel.execute import ActionTimes, Recorder
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.parallelize import Parallel
from scalewright.parallel.pipeline import Pipeline
from scalewright.parallel.stages import find_blocks
from scalewright.parallel.timers import PHASES
from scalewright.spec.schedule import Action, Schedule
from scalewright.train.hangs.position import Groups

T = TypeVar("T")
BEFORE, FEWEST = 20, 3  # steps before the traced ones whose median time stands in the trace


class Tracer:
    """One rank's traces of `steps`, written into `folder`; `aside` is around what belongs to no step."""

    def __init__(
        self, steps: Sequence[int], folder: Path, mesh: Mesh, parallel: Parallel,
        aside: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:  # fmt: skip
        self.aside = aside
        self.steps, self.folder, self.mesh, self.parallel = frozenset(steps), folder, mesh, parallel
        self.on_gpu = mesh.device.type == "cuda"
        self._profiler: Any = None
        self._layers: NamedLayers | None = None
        self._times = ActionTimes(mesh)
        self._first = 0
        self._begun: deque[float] = deque(maxlen=1 + BEFORE)  # seconds; of steps that aren't traced
        self._step: AbstractContextManager[None] | None = None

    def follow(self, first: int, items: Iterable[T]) -> Iterator[T]:
        """The items, one a step from `first` on; their fetch and all that is done with them are traced."""
        if not self.steps:
            yield from items
            return
        remaining = iter(items)
        try:
            for step in count(first):
                if step in self.steps:
                    self._begin(step)
                elif self._profiler is None:
                    self._begun.append(time.perf_counter())
                try:
                    item = next(remaining)
                except StopIteration:
                    return
                yield item
                if step in self.steps:
                    self._end(step)
                elif step + 1 in self.steps:
                    self._begun.append(time.perf_counter())
        finally:
            self._write()

    def _begin(self, step: int) -> None:
        if self._profiler is None:
            self._settle()
            with self.aside():
                self._start(step)
        self._step = named_range(f"ProfilerStep#{step}", self.on_gpu)
        self._step.__enter__()

    def _end(self, step: int) -> None:
        assert self._step is not None
        self._step.__exit__(None, None, None)
        if step + 1 not in self.steps:
            self._settle()
            with self.aside():
                self._write()
                barrier(self.mesh)  # else the next step has the wait for the rank that writes longest
        if isinstance(self.parallel.executor, Pipeline):
            self._times.write(self.folder, step)

    def _settle(self) -> None:
        """Waits for the GPU: kernels that run after the end are not in the trace, and are the step's time."""
        if self.on_gpu:
            torch.cuda.synchronize(self.mesh.device)

    def _start(self, step: int) -> None:
        """Ranks begin together: else the first collective would show whose profiler took longest to start."""
        quiet_profiler()
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * self.on_gpu
        self._first, self._profiler = step, profile(activities=activities, record_shapes=True)
        self._profiler.prepare_trace()
        barrier(self.mesh)
        self._profiler.start_trace()
        executor = self.parallel.executor
        inner = self._times if isinstance(executor, Pipeline) else Recorder()
        executor.recorder = NamedActions(self.on_gpu, inner)
        self.mesh.timers.named(partial(phase_range, on_gpu=self.on_gpu))
        self._layers = NamedLayers(self.parallel.model, self.on_gpu)

    def _write(self) -> None:
        """Stops, and writes the trace; nothing where none runs. No collective: other ranks may have gone."""
        if self._profiler is None:
            return
        self._settle()
        if len(self._begun) > FEWEST:
            times = [later - earlier for earlier, later in pairwise(self._begun)]
            self._profiler.add_metadata_json("step_time_s", json.dumps(statistics.median(times)))
        self._begun.clear()
        if self.mesh.groups:
            self._profiler.add_metadata_json("axes", json.dumps(Groups(self.mesh).axes))
            self._profiler.add_metadata_json("collectives", json.dumps(collectives()))
        self._profiler.stop_trace()
        assert self._layers is not None
        self._layers.remove()
        self.mesh.timers.named(None)
        self.parallel.executor.recorder = Recorder()
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"step-{self._first:08d}-rank{self.mesh.rank:05d}.json.gz"
        self._profiler.export_chrome_trace(str(self.folder / name))
        self._profiler = None


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
        self.inner.start(plan)

    def before(self, action: Action) -> None:
        self.inner.before(action)
        self._open = named_range(f"{action.kind} stage {action.stage} micro-batch {action.micro}", self.on_gpu)
        self._open.__enter__()

    def after(self, action: Action) -> None:
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None
        self.inner.after(action)

    def arrived(self) -> None:
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

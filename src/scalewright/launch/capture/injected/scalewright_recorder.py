"""Traces some optimizer steps of the process that it was put into, by `scalewright record`.

    step     1   2   ...   N │ N+1   ...   N+K │ ...        N: --after, K: --steps
                     prepare   start       stop, write      then the hook is gone

    torch.optim is imported ──► a hook after every optimizer's step ──► the first optimizer's are counted

Several calls of `step` after one backward (an optimizer for each part of a model, DeepSpeed's ZeRO-3) are
one step. The file stands alone: the command's Python may be one without this package. Whatever fails here is
written into the report of the process and leaves the command as it is.
"""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.machinery
import importlib.util
import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

VARIABLE = "SCALEWRIGHT_RECORD"  # JSON: {steps, after, ranks (null: all), out}
HOOKED = "torch.optim.optimizer"
BEFORE, FEWEST = 20, 3  # steps before the recording whose median time stands in the trace
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


def start() -> None:
    """Waits for torch's optimizers to be imported; nothing where no recording is asked for."""
    asked = os.environ.get(VARIABLE)
    if asked:
        sys.meta_path.insert(0, _Finder(Recording(**json.loads(asked))))


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the import of HOOKED go its way, and hooks on when it is done."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != HOOKED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.recording)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any, recording: Recording) -> None:
        self.loader, self.recording = loader, recording

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self.loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        self.recording.hook_on(module)


class Recording:
    """One process's steps, and its trace while there is one."""

    def __init__(self, steps: int, after: int, ranks: list[int] | None, out: str) -> None:
        self.first, self.last = after, after + steps
        self.ranks, self.out = ranks, Path(out)
        self.done = 0
        self.counted: Any = None  # the optimizer whose steps are counted
        self.backwards = self.seen = 0  # backwards so far, and of those before the last step
        self.ended: deque[float] = deque(maxlen=1 + BEFORE)  # seconds; of steps before the recording
        self.profiler: Any = None
        self.step: Any = None
        self.hook: Any = None
        self.problem = ""
        self.file = ""
        self.backward: Any = None  # torch.autograd's own, while calls of it are counted

    def hook_on(self, optimizers: Any) -> None:
        """`optimizers`: the module that has just been imported."""
        self.hook = optimizers.register_optimizer_step_post_hook(self.stepped)
        atexit.register(self.report)

    def stepped(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """After each optimizer's step."""
        try:
            self._stepped(optimizer)
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}"
            self._leave()

    def _stepped(self, optimizer: Any) -> None:
        if self.counted is None:
            self.counted = optimizer
            self._count_backwards()
        elif self.backwards:
            if self.backwards == self.seen:
                return
        elif optimizer is not self.counted:
            return
        self.seen = self.backwards
        self.done += 1
        if self.done <= self.first:
            self.ended.append(time.perf_counter())
        if self.ranks is not None and rank() not in self.ranks:
            self._leave()
            return
        if self.step is not None:
            self.step.__exit__(None, None, None)
            self.step = None
        if self.done == self.last:
            self._write()
            return
        if self.done == self.first - 1:
            self._prepare()
        if self.done == self.first:
            if self.profiler is None:
                self._prepare()
            self.profiler.start_trace()
        if self.done >= self.first:
            from torch.profiler import record_function

            self.step = record_function(f"ProfilerStep#{self.done + 1}")
            self.step.__enter__()

    def _count_backwards(self) -> None:
        """Counts from now on the backwards of torch.autograd; engines that others run aren't seen."""
        from torch import autograd

        self.backward = backward = autograd.backward

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.backwards += 1
            return backward(*args, **kwargs)

        autograd.backward = counted

    def _prepare(self) -> None:
        from torch import cuda
        from torch.profiler import ProfilerActivity, profile

        os.environ.setdefault("KINETO_LOG_LEVEL", "6")
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * cuda.is_available()
        self.profiler = profile(activities=activities, record_shapes=True)
        self.profiler.prepare_trace()

    def _write(self) -> None:
        """Stops, and writes the trace of this rank."""
        from torch import cuda

        if cuda.is_initialized():  # type: ignore[no-untyped-call]
            cuda.synchronize()  # kernels that run after the end are not in the trace
        self.profiler.add_metadata_json("collectives", json.dumps(collectives()))
        if len(self.ended) > FEWEST:
            times = sorted(self.ended[k] - self.ended[k - 1] for k in range(1, len(self.ended)))
            self.profiler.add_metadata_json("step_time_s", json.dumps(times[len(times) // 2]))
        self.profiler.stop_trace()
        self.out.mkdir(parents=True, exist_ok=True)
        self.file = str(self.out / f"rank{rank():05d}.json.gz")
        self.profiler.export_chrome_trace(self.file)
        self._leave()

    def _leave(self) -> None:
        """Takes the hooks off: the rest of the run is as it would be without."""
        self.profiler = None
        if self.hook is not None:
            self.hook.remove()
            self.hook = None
        if self.backward is not None:
            sys.modules["torch.autograd"].backward = self.backward  # type: ignore[attr-defined]
            self.backward = None
        self.report()

    def report(self) -> None:
        """Writes what this process came to, where the parent reads it."""
        about = {"rank": rank(), "steps": self.done, "file": self.file, "problem": self.problem,
                 "asked": self.ranks is None or rank() in self.ranks}  # fmt: skip
        folder = self.out / ".processes"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{os.uname().nodename}-{os.getpid()}.json").write_text(json.dumps(about))
        except OSError:
            sys.stderr.write(f"scalewright record: {folder} can't be written\n")


def rank() -> int:
    """This process's rank, from torch.distributed or its starter; 0 where it is alone."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return next((int(os.environ[name]) for name in RANKS if os.environ.get(name, "").isdigit()), 0)


def collectives() -> list[list[Any]]:
    """Gloo's collectives in the flight recorder: [created, ns since 1970; kind; group; about it; number;
    elements of the input, of the output; dtype].
    """
    try:
        from torch._C._distributed_c10d import _dump_fr_trace_json  # type: ignore[attr-defined]

        entries = json.loads(_dump_fr_trace_json()).get("entries", [])
    except (ImportError, AttributeError, ValueError):
        return []
    return [
        [entry["time_created_ns"], entry["profiling_name"], *entry["process_group"],
         entry["collective_seq_id"], elements(entry.get("input_sizes")), elements(entry.get("output_sizes")),
         next(iter(entry.get("input_dtypes") or []), "")]
        for entry in entries
        if str(entry["profiling_name"]).startswith("gloo:")
    ]  # fmt: skip


def elements(sizes: Any) -> int:
    """Numbers in tensors of these sizes; -1 where none are known."""
    return sum(math.prod(size) for size in sizes) if sizes else -1

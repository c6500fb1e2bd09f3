"""Profiler traces of chosen steps: `profile: {steps: [5, 6]}` writes traces/step-00000005-rank00000.json.gz.

A pipeline also writes when each of its actions ran: traces/pipeline-step-00000005.json.

A traced step is slower than others, so steps are chosen, and none by default. The files open in Perfetto and
in chrome://tracing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from scalewright.launch.settings import quiet_profiler
from scalewright.parallel.execute import Executor
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.pipeline import Pipeline, Recorder
from scalewright.parallel.timeline import ActionTimes


@contextmanager
def traced(
    step: int, steps: tuple[int, ...], folder: Path, mesh: Mesh, executor: Executor | None = None
) -> Iterator[None]:
    """Traces what happens inside if `step` is one of `steps`; every rank writes its own file."""
    if step not in steps:
        yield
        return
    activities = [ProfilerActivity.CPU]
    if mesh.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    quiet_profiler()
    times = ActionTimes(mesh)
    if isinstance(executor, Pipeline):
        executor.recorder = times
    with profile(activities=activities, record_shapes=True) as profiler:
        yield
        if mesh.device.type == "cuda":
            torch.cuda.synchronize(mesh.device)  # kernels that run after the end are not in the trace
    folder.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(folder / f"step-{step:08d}-rank{mesh.rank:05d}.json.gz"))
    if isinstance(executor, Pipeline):
        executor.recorder = Recorder()
        times.write(folder, step)

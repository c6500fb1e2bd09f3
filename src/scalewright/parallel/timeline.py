"""When every action of a pipeline's step began and ended: `traces/pipeline-step-00000005.json`.

    {schedule, ranks, virtual_stages, micro_batches, step, rank_of: [rank of each stage],
     actions: [[{kind, stage, micro, start_s, end_s}, ...] of each pipeline rank]}

Seconds count from a barrier before the step. The ranks of one machine share its clock; others' are as far apart as they
left the barrier. On a CPU they are the host's; on a GPU those of the stream, from events that are read after the step:
nothing waits in between. A receive lasts while its rank (or its stream) waits; a send only starts.
"""

from __future__ import annotations

import json
import platform
import time
from pathlib import Path
from typing import Any

import torch

from scalewright.parallel.collectives import barrier, gather_json
from scalewright.parallel.execute import Recorder
from scalewright.parallel.mesh import Mesh
from scalewright.spec.schedule import Action, Schedule


class ActionTimes(Recorder):
    """A recorder of one rank's actions; starts anew with every step."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh, self.on_gpu = mesh, mesh.device.type == "cuda"
        self.plan: Schedule | None = None
        self._actions: list[Action] = []
        self._marks: list[Any] = []  # seconds, or events; one before all, then two for each action
        self._zero = 0.0  # the machine's clock at the first

    def start(self, plan: Schedule) -> None:
        """All ranks begin together."""
        self.plan = plan
        self._actions, self._marks = [], []
        if self.on_gpu:
            torch.cuda.synchronize(self.mesh.device)
        barrier(self.mesh)
        self._zero = time.perf_counter()
        self._mark()

    def before(self, action: Action) -> None:
        """An action begins."""
        self._actions.append(action)
        self._mark()

    def after(self, action: Action) -> None:
        """It has ended (on a GPU: all its work has been given to the stream)."""
        self._mark()

    def _mark(self) -> None:
        if not self.on_gpu:
            self._marks.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.mesh.device))
        self._marks.append(event)

    def spans(self) -> list[tuple[Action, float, float]]:
        """Every action with its start and end in seconds; on a GPU this waits for the step's end."""
        if not self._marks:
            return []
        if self.on_gpu:
            torch.cuda.synchronize(self.mesh.device)
        zero, *marks = self._marks
        seconds = [zero.elapsed_time(mark) / 1000 if self.on_gpu else mark - zero for mark in marks]
        return list(zip(self._actions, seconds[::2], seconds[1::2], strict=True))

    def gather(self, step: int) -> dict[str, object]:
        """The whole picture, of this rank's pipeline; every rank of the world calls it."""
        assert self.plan is not None, "nothing has been recorded"
        host = platform.node()
        everyone = gather_json([host, self._zero, self.spans()], self.mesh)
        members = next(ranks for ranks in self.mesh.grid.groups("pp") if self.mesh.rank in ranks)
        first = min(zero for node, zero, _ in (everyone[rank] for rank in members) if node == host)
        return {
            "schedule": self.plan.kind, "ranks": self.plan.ranks, "virtual_stages": self.plan.virtual_stages,
            "micro_batches": self.plan.micro_batches, "step": step, "rank_of": list(self.plan.rank_of),
            "actions": [_shifted(everyone[rank], host, first) for rank in members],
        }  # fmt: skip

    def write(self, folder: Path, step: int) -> None:
        """Gathers; rank 0 writes its own pipeline's picture, since the others' are alike."""
        picture = self.gather(step)
        if self.mesh.rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"pipeline-step-{step:08d}.json"
            path.write_text(json.dumps(picture), encoding="utf-8")


def _shifted(recorded: list[Any], host: str, first: float) -> list[dict[str, object]]:
    """One rank's actions, in seconds from the moment at which the first rank of this machine began."""
    node, zero, spans = recorded
    late = zero - first if node == host else 0.0
    return [
        {"kind": kind, "stage": stage, "micro": micro, "start_s": start + late, "end_s": end + late}
        for (kind, stage, micro, *_), start, end in spans
    ]

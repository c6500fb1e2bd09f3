"""What a run writes down: a row of numbers a step, and what happened, to files, screen and trackers.

Rank 0 writes; on other ranks every call does nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch

from scalewright.spec.layout import Layout
from scalewright.track.console import Console
from scalewright.track.events import EventsFile
from scalewright.track.fanout import Fanout
from scalewright.track.metrics import MetricsFile
from scalewright.track.tracker import Status
from scalewright.train.batches import Place
from scalewright.train.precision import Peak
from scalewright.train.step import AUX, LOSS, NORM, TOKENS


@dataclass
class Record:
    """Where rank 0 writes, and what it needs to turn a step's report into a row."""

    metrics: MetricsFile
    events: EventsFile
    console: Console
    trackers: Fanout
    layout: Layout
    seq_len: int
    flops_per_token: float
    peak: Peak
    device: torch.device
    place: Place  # where this call began
    last: dict[str, dict[str, Any]] = field(default_factory=dict)  # the newest row of each kind

    def step(self, step: int, report: list[float], rate: float, seconds: float, hash_: str) -> None:
        """Writes one training row."""
        tokens = self.layout.batch * self.seq_len
        place = self.place.after(step, self.layout.batch, self.seq_len)
        speed = tokens / seconds if seconds > 0 else 0.0
        peak = self.peak.flops
        row = {
            "kind": "train",
            "step": step,
            "samples": place.samples,
            "tokens": place.tokens,
            "loss_tokens": int(report[TOKENS]),
            "loss": report[LOSS],
            "aux_loss": report[AUX],
            "grad_norm": report[NORM],
            "lr": rate,
            "step_time_s": seconds,
            "tokens_per_s": speed,
            "mfu": speed * self.flops_per_token / (peak * self.layout.devices) if peak else None,
            "memory_gib": memory_gib(self.device),
            "sample_ids_hash": hash_,
        }
        self.metrics.write(row)
        self.console.step(row)
        self.trackers.log(row)
        self.last["train"] = row

    def valid(self, step: int, loss: float, bits_per_byte: float | None) -> None:
        """Writes one validation row."""
        row = {"kind": "valid", "step": step, "loss": loss, "bits_per_byte": bits_per_byte}
        self.metrics.write(row)
        self.console.valid(row)
        self.trackers.log(row)
        self.last["valid"] = row

    def event(self, kind: str, message: str = "", **fields: Any) -> None:
        """Writes an event; `message` is also shown."""
        entry = self.events.write(kind, **fields, **({"message": message} if message else {}))
        self.trackers.event(entry)
        if message:
            self.console.message(message)

    def saved(self, step: int, seconds: float) -> None:
        """Notes a finished checkpoint."""
        self.event("save", step=step, seconds=round(seconds, 3), path=f"checkpoints/step-{step:08d}")
        self.console.saved(step)

    def close(self, status: Status, step: int, seconds: float) -> None:
        """Ends every writer; the trackers get a little time to catch up."""
        step = max(step, int(self.last.get("train", {}).get("step", 0)))
        if status != "failed":  # why it failed is said by whoever knows: the supervisor, or the caller
            self.event({"finished": "finish", "stopped": "stop"}[status], step=step, seconds=seconds)
        folder = self.metrics.path.parent
        self.trackers.close(status, [folder / "run.yaml", folder / "metrics.jsonl"])
        last = self.last.get("train", {})
        summary = {"steps": step, "loss": last.get("loss"), "seconds": seconds, "out_dir": str(folder)}
        self.console.close(summary if last else None)
        self.metrics.close()
        self.events.close()


def memory_gib(device: torch.device) -> float:
    """Memory of this rank: the most that torch allocated on a GPU, else what the process has resident now."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    import psutil

    return float(psutil.Process().memory_info().rss) / 2**30


class Clock:
    """Seconds of a step: from the end of the one before, without saving and validation."""

    def __init__(self) -> None:
        self._mark = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last lap or restart."""
        now = time.perf_counter()
        seconds, self._mark = now - self._mark, now
        return seconds

    def restart(self) -> None:
        """Forgets the time since the last lap."""
        self._mark = time.perf_counter()

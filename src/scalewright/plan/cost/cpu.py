"""The price list of CPU processes, by curves that a probe measured on the machine itself (spec/hardware).

    a collective    seconds(curve of its kind, its bytes) and what coming late and waking costs
    a micro-batch   Python around every operator; twice through autograd where the backward is split
    a step          AdamW over a shard, adding gradients up, reports, what every step costs

Gloo works on the cores that compute, so that nothing hides behind anything. Operators: cpu_kernels.py.
"""

from __future__ import annotations

import numpy as np

from scalewright.plan.cost.columns import Columns
from scalewright.plan.cost.cpu_kernels import unit_seconds
from scalewright.plan.cost.links import groups
from scalewright.plan.cost.shares import Shares
from scalewright.plan.cost.table import RECOMPUTE
from scalewright.plan.curves import curves_of
from scalewright.spec.hardware.timings import Timings
from scalewright.spec.volumes import Transfer

REPORT_BYTES, REPORTS = 1024.0, 2.0  # the loss and the norm of a step: small sums over all ranks


class Loopback:
    """The processes of one machine: seconds of transfers from curves."""

    def __init__(self, at: Columns, timings: Timings) -> None:
        self.at, self.curves = at, curves_of(timings)
        self.share = np.maximum(timings.processes - 1, 1) / timings.processes  # of a ring that was measured

    def __call__(self, transfer: Transfer) -> np.ndarray:
        """Seconds of one call; around each of FSDP's are hooks and lists of Python's."""
        if transfer.kind == "send":
            return self.curves("send", transfer.bytes)
        group, _ = groups(self.at, transfer.axis)
        hooks = self.at.c["cpu.shard"] * (transfer.axis == "fsdp")
        return self._ring(transfer.kind, np.asarray(transfer.bytes), group) + hooks

    def send(self, size: np.ndarray, stride: np.ndarray, span: np.ndarray) -> np.ndarray:
        """Seconds of a message; every process is as near as any other."""
        return self.curves("send", size)

    def gather(self, size: np.ndarray, group: np.ndarray, stride: np.ndarray) -> np.ndarray:
        """Seconds of an all-gather that makes `size` bytes on every rank."""
        return self._ring("all_gather", size, group)

    def all_to_all(
        self, size: np.ndarray, group: np.ndarray, stride: np.ndarray, leaves: np.ndarray | float = 1.0
    ) -> np.ndarray:
        """Seconds until every rank has sent `size` bytes: a message to each of the others."""
        return np.where(group > 1, (group - 1) * self.curves("send", size / np.maximum(group, 1)), 0.0)

    def _ring(self, kind: str, size: np.ndarray, group: np.ndarray) -> np.ndarray:
        ring = (group - 1) / np.maximum(group, 1) / self.share
        return np.where(
            (group > 1) & (size > 0), ring * self.curves(kind, size) + self.at.c["cpu.message"], 0.0
        )


class Cpu:
    """Processes of one machine whose kernels and messages were timed."""

    beside = 0.0

    def __init__(self, at: Columns, timings: Timings) -> None:
        self.at, self.curves, self.network = at, curves_of(timings), Loopback(at, timings)
        self.operators, self.narrow = np.zeros(len(at.table)), np.zeros(len(at.table), dtype=bool)
        for index in np.unique(at.table.unit):
            unit, rows = at.table.units[index], at.table.unit == index
            self.operators[rows] = unit_seconds(unit.model, unit.sizes, unit.precision, timings).operators
            self.narrow[rows] = unit.precision not in ("fp32", "tf32")

    def waits(self, blocks: np.ndarray, device: np.ndarray) -> np.ndarray:
        """Python around every operator, and around each of its steps in selective recomputation."""
        t, c = self.at.table, self.at.c
        call = c["cpu.call"] + t.schedules("splits") * c["cpu.split"]
        watched = c["cpu.watched"] * self.curves("watched", 1.0)
        call = call + (t.recompute == RECOMPUTE.index("selective")) * watched
        return np.asarray(blocks * self.operators * call)

    def update(self, held: Shares) -> np.ndarray:
        """AdamW over this rank's shard, as the probe timed it, and new copies in 16 bits."""
        ranks = np.where(self.at.table.zero_stage >= 1, np.maximum(held.shard, 1.0), 1.0)
        shard = (held.dense + held.expert) / ranks
        copies = np.where(self.narrow, self._pass(shard, "add"), 0.0)
        return np.asarray(self._pass(shard, "optimizer") * self.at.trainer("update_on_host") + copies)

    def fixed(self, held: Shares) -> np.ndarray:
        """Gradients that are added up, small sums over all ranks, and a step's bookkeeping."""
        t = self.at.table
        added = t.accumulation - np.where((t.zero_stage == 0) & (held.group > 1), 0.0, 1.0)
        shards = np.where(t.zero_stage >= 2, np.maximum(held.shard, 1.0), 1.0)
        adds = added / shards * self._pass(held.dense + held.expert, "add")
        small = np.full(len(t), REPORT_BYTES)
        report = REPORTS * self.network(Transfer("world", "all_reduce", small, REPORTS, "nothing"))
        return np.asarray(adds + report + self.at.c["cpu.step"])

    def _pass(self, elements: np.ndarray, what: str) -> np.ndarray:
        """Seconds of a pass over so many numbers."""
        return np.asarray(np.where(elements > 0, self.curves(what, elements), 0.0))

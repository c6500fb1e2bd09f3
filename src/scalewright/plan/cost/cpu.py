"""The price list of CPU processes, by curves that a probe measured on the machine itself (spec/hardware).

    a collective    seconds(curve of its kind, its bytes) and what coming late and waking costs
    a micro-batch   Python around every operator; twice through autograd where the backward is split
    a step          AdamW over a shard, adding gradients up, reports, what every step costs

Gloo works on the cores that compute, so that nothing hides behind anything. More processes than cores take turns: what
all compute at once takes `crowd` = processes · threads / cores times as long. Operators: cpu_kernels.py.
"""

from __future__ import annotations

import numpy as np

from scalewright.plan.cost.columns import Columns, PricedColumns
from scalewright.plan.cost.cpu_kernels import unit_seconds
from scalewright.plan.cost.links import groups
from scalewright.plan.cost.optimizer import products, way
from scalewright.plan.cost.table import RECOMPUTE
from scalewright.plan.cost.usual_volumes import numbers
from scalewright.plan.curves import curves_of
from scalewright.spec.hardware.timings import Timings
from scalewright.spec.volumes import Transfer

REPORT_BYTES, REPORTS = 1024.0, 2.0  # the loss and the norm of a step: small sums over all ranks


class Loopback:
    """The processes of one machine: seconds of transfers from curves; between machines by `Between`."""

    def __init__(self, at: Columns, timings: Timings) -> None:
        self.at, self.curves = at, curves_of(timings)
        self.share = np.maximum(timings.processes - 1, 1) / timings.processes  # of a ring that was measured
        self.between = Between(at)

    def __call__(self, transfer: Transfer) -> np.ndarray:
        """Seconds of one call; around each of FSDP's are hooks and lists of Python's."""
        if transfer.kind == "send":
            t = self.at.table
            return self.send(np.asarray(transfer.bytes), t.devices / t.pp, t.devices)
        group, stride = groups(self.at, transfer.axis)
        if transfer.kind == "all_to_all":
            return self.all_to_all(np.asarray(transfer.bytes), group, stride)
        hooks = self.at.c["cpu.shard"] / self.curves.share * (transfer.axis in ("fsdp", "efsdp"))
        return self._ring(transfer.kind, np.asarray(transfer.bytes), group, stride) + hooks

    def send(self, size: np.ndarray, stride: np.ndarray, span: np.ndarray) -> np.ndarray:
        """Mean seconds of the messages of a row of `span` ranks, each to the rank `stride` away."""
        crossing = self.between.crossing(stride, span)
        near, far = self.ends(size, stride)
        return np.asarray((1 - crossing) * near + crossing * far)

    def ends(self, size: np.ndarray, stride: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Seconds of a message to a rank `stride` away: on the same machine, and on another."""
        return self.curves("send", size), self.between.send(size, stride)

    def gather(self, size: np.ndarray, group: np.ndarray, stride: np.ndarray) -> np.ndarray:
        """Seconds of an all-gather that makes `size` bytes on every rank."""
        return self._ring("all_gather", size, group, stride)

    def all_to_all(
        self, size: np.ndarray, group: np.ndarray, stride: np.ndarray, leaves: np.ndarray | float = 1.0
    ) -> np.ndarray:
        """Seconds until every rank has sent `size` bytes: a message to each of the others."""
        message = self.send(size / np.maximum(group, 1), stride, group * stride)
        return np.where(group > 1, (group - 1) * message, 0.0)

    def _ring(self, kind: str, size: np.ndarray, group: np.ndarray, stride: np.ndarray) -> np.ndarray:
        ring = (group - 1) / np.maximum(group, 1) / self.share
        near = ring * self.curves(kind, size)
        far = np.maximum(near, self.between.ring(kind, size, group, stride))
        seconds = np.where(self.between.leaves(group, stride), far, near) + self.at.c["cpu.message"] / self.curves.share
        return np.where((group > 1) & (size > 0), seconds, 0.0)


class Between:
    """Links between machines whose processes have delay and rate as the profile's fabric does (alpha, beta).

    ring    steps x alpha + steps x bytes / ranks / (beta / groups that share a machine's link)
            steps: ranks - 1 of a gather (Thakur et al. 2005 §4), twice that of an all-reduce, and of a
            scatter too, which Gloo makes of an all-reduce
    """

    def __init__(self, at: Columns) -> None:
        chip = at.table.units[at.table.unit[0]].chip
        self.node = float("inf") if chip.one_node else float(chip.node)
        self.rate, self.delay = chip.fabric_rate, chip.fabric_delay

    def leaves(self, group: np.ndarray, stride: np.ndarray) -> np.ndarray:
        """Whether a group of ranks, `stride` apart, has some on another machine."""
        return np.asarray(group * stride > self.node)

    def crossing(self, stride: np.ndarray, span: np.ndarray) -> np.ndarray:
        """The part of a row's messages that go to another machine."""
        crossed = np.maximum(np.ceil(span / self.node) - 1, 0) / np.maximum(span / stride - 1, 1)
        return np.asarray(np.where(stride >= self.node, span > self.node, crossed))

    def sharing(self, stride: np.ndarray) -> np.ndarray:
        """Groups that cross a machine's link at once: its ranks are in so many."""
        return np.asarray(np.clip(stride, 1, self.node))

    def send(self, size: np.ndarray, stride: np.ndarray) -> np.ndarray:
        """Seconds of a message to another machine."""
        return np.asarray(self.delay + size * self.sharing(stride) / self.rate)

    def ring(self, kind: str, size: np.ndarray, group: np.ndarray, stride: np.ndarray) -> np.ndarray:
        """Seconds of a collective on a ring, each of whose steps waits for the slowest link."""
        steps = (group - 1) * (1.0 if kind == "all_gather" else 2.0)
        part = size / np.maximum(group, 1) * self.sharing(stride)
        return np.asarray(steps * (self.delay + part / self.rate))


class Cpu:
    """Processes of a machine, or of several alike, whose kernels and messages were timed."""

    beside = 0.0

    def __init__(self, at: PricedColumns, timings: Timings) -> None:
        self.at, self.curves, self.network = at, curves_of(timings), Loopback(at, timings)
        together = np.minimum(at.table.devices, timings.processes) * timings.threads
        self.crowd = np.maximum(together / (timings.cores or np.inf), 1.0)
        stage = at.table.devices / at.table.pp
        self.sending = 1 - self.network.between.crossing(stage, at.table.devices)  # a network does it by itself
        self.operators, self.narrow = np.zeros(len(at.table)), np.zeros(len(at.table), dtype=bool)
        for index in np.unique(at.table.unit):
            unit, rows = at.table.units[index], at.table.unit == index
            self.operators[rows] = unit_seconds(unit.model, unit.sizes, unit.precision, timings).operators
            self.narrow[rows] = unit.precision not in ("fp32", "tf32")

    def waits(self, blocks: np.ndarray, device: np.ndarray) -> np.ndarray:
        """Python around every operator, and around each of its steps in selective recomputation."""
        t, c = self.at.table, self.at.c
        call = (c["cpu.call"] + t.schedules("splits") * c["cpu.split"]) / self.curves.share
        call = call + (t.recompute == RECOMPUTE.index("selective")) * (c["cpu.watched"] * self.curves("watched", 1.0))
        return np.asarray(blocks * self.operators * call)

    def update(self) -> np.ndarray:
        """AdamW over this rank's shard, as the probe timed it, and new copies in 16 bits."""
        shard = numbers(self.at)
        copies = np.where(self.narrow, self._pass(shard, "add"), 0.0)
        update = self._pass(shard, "optimizer") * self.at.trainer.update_on_host
        matrices = self.crowd * products(self.at) + way(self.at, self.network.all_to_all)
        return np.asarray(self.crowd * (update + copies) + matrices)

    def fixed(self) -> np.ndarray:
        """Gradients that are added up, small sums over all ranks, and a step's bookkeeping."""
        t, at = self.at.table, self.at
        added = t.accumulation - np.where((t.zero_stage == 0) & (at.summing > 1), 0.0, 1.0)
        shards = np.where(t.zero_stage >= 2, np.maximum(at.shard, 1.0), 1.0)
        adds = added / shards * self._pass(at.dense + at.expert, "add")
        small = np.full(len(t), REPORT_BYTES)
        report = REPORTS * self.network(Transfer("world", "all_reduce", small, REPORTS, "nothing"))
        return np.asarray(self.crowd * (adds + self.at.c["cpu.step"] / self.curves.share) + report)

    def _pass(self, elements: np.ndarray, what: str) -> np.ndarray:
        return np.asarray(np.where(elements > 0, self.curves(what, elements), 0.0))

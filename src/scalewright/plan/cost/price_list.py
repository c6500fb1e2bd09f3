"""Prices of a kind of device, one interface: by peaks and links, or by measured curves.

                  operators        transfers   waits        update         beside the computation
    Accelerator   kernels.py       links.py    host.py      optimizer.py   transfers, as far as they overlap
    Cpu           cpu_kernels.py   cpu.py      cpu.py       cpu.py         nothing: Gloo takes the same cores

Seconds of operators are in `Prices` already, by unit; a row's list is that of its device.
"""

from __future__ import annotations

import numpy as np

from scalewright.plan.cost.columns import Columns
from scalewright.plan.cost.cpu import Cpu
from scalewright.plan.cost.host import waits
from scalewright.plan.cost.links import Links
from scalewright.plan.cost.matrices import products, way
from scalewright.plan.cost.optimizer import optimizer
from scalewright.plan.cost.shares import Shares

TPU_STEP = 0.3  # of host.step: XLA's host has the next step ready


class Accelerator:
    """GPUs and TPUs: peaks, links, and a host that launches kernels."""

    beside = 1.0  # 1 where transfers run beside the computation, 0 where they stop it

    def __init__(self, at: Columns) -> None:
        self.at, self.network = at, Links(at)
        self.crowd, self.sending = np.ones(len(at.table)), np.zeros(len(at.table))

    def waits(self, blocks: np.ndarray, device: np.ndarray) -> np.ndarray:
        """Of a micro-batch through so many blocks: what the host adds to the device's seconds."""
        return waits(self.at, blocks, device)

    def update(self, held: Shares) -> np.ndarray:
        """Of the optimizer's update."""
        matrices = products(self.at) + way(self.at, held, self.network)
        return np.asarray(optimizer(self.at, held) + matrices)

    def fixed(self, held: Shares) -> np.ndarray:
        """Of what a step always costs beside its micro-batches: the host's part."""
        return np.asarray(self.at.c["host.step"] * np.where(self.at.chip("tpu") > 0, TPU_STEP, 1.0))


PriceList = Accelerator | Cpu  # seconds that a step takes on one kind of device; a number a row


def price_list(at: Columns) -> PriceList:
    """The list of these rows, whose devices are of one kind."""
    unit = at.table.units[at.table.unit[0]] if len(at.table) else None
    if unit is not None and unit.chip.timings is not None:
        return Cpu(at, unit.chip.timings)
    return Accelerator(at)

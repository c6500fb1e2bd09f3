"""Prices of a kind of device, one interface: by peaks and links, or by measured curves.

                  operators        transfers   waits        update         beside the computation
    Accelerator   kernels.py       links.py    waits        optimizer.py   transfers, as far as they overlap
    Cpu           cpu_kernels.py   cpu.py      cpu.py       cpu.py         nothing: Gloo takes the same cores

Seconds of operators are in `Prices` already, by unit; a row's list is that of its device. The host of an
accelerator launches a micro-batch's kernels:

launch    host.launch a block, times the trainer's kind of host, less what a CUDA graph holds
waits     (device^6 + host^6)^(1/6) - device: the slower of both, rounded where they are alike
"""

from __future__ import annotations

import numpy as np

from scalewright.plan.cost.columns import Columns, PricedColumns
from scalewright.plan.cost.cpu import Cpu
from scalewright.plan.cost.kernels import unfused
from scalewright.plan.cost.links import Links
from scalewright.plan.cost.optimizer import optimizer, products, way
from scalewright.plan.frameworks import HOSTS

CORNER = 6  # how sharply device and host take turns in being the slower


class Accelerator:
    """GPUs and TPUs: peaks, links, and a host that launches kernels."""

    beside = 1.0  # 1 where transfers run beside the computation, 0 where they stop it

    def __init__(self, at: PricedColumns) -> None:
        self.at, self.network = at, Links(at)
        self.crowd, self.sending = np.ones(len(at.table)), np.zeros(len(at.table))

    def waits(self, blocks: np.ndarray, device: np.ndarray) -> np.ndarray:
        """Of a micro-batch through so many blocks: what the host adds to `device`, the device's seconds."""
        host = _host_seconds(self.at, blocks)
        return np.asarray((device**CORNER + host**CORNER) ** (1 / CORNER) - device)

    def update(self) -> np.ndarray:
        """Of the optimizer's update."""
        return np.asarray(optimizer(self.at) + (products(self.at) + way(self.at, self.network.all_to_all)))

    def fixed(self) -> np.ndarray:
        """Of what a step always costs beside its micro-batches: the host's part."""
        c = self.at.c
        return np.asarray(c["host.step"] * np.where(self.at.chip.tpu > 0, c["host.tpu_step"], 1.0))


PriceList = Accelerator | Cpu  # seconds that a step takes on one kind of device; a number a row


def price_list(at: PricedColumns) -> PriceList:
    """The list of these rows, whose devices are of one kind."""
    timings = at.table.units[at.table.unit[0]].chip.timings if len(at.table) else None
    return Accelerator(at) if timings is None else Cpu(at, timings)


def _launches(at: Columns) -> np.ndarray:
    """Launches of an average block that no graph holds, over a dense block's.

    Routing and dispatch take more the older the trainer is; products one by one three launches an expert and pass.
    """
    c, sparse = at.c, at.work.sparse
    plain = at.trainer.launches_mixer + (1 - sparse) * at.trainer.launches_mlp
    if not sparse.any():
        return np.asarray(plain)
    experts = c["host.experts"] * unfused(at.trainer, "host", c)
    experts = experts + at.trainer.one_by_one * at.work.local_experts * c["host.an_expert"]
    return np.asarray(plain + sparse * experts * at.trainer.launches_experts)


def _host_seconds(at: Columns, blocks: np.ndarray) -> np.ndarray:
    """Seconds that the host needs to launch a micro-batch of so many blocks."""
    c, t = at.c, at.table
    kind = at.trainer.host
    launch = c["host.launch"] * c.row("host", HOSTS)[kind]
    launch = launch * np.where(t.tp > 1, c["host.tp_factor"], 1.0) * (1 + c["host.rerun"] * at.rerun)
    launched = _launches(at)
    launch = launch * launched + c["host.launch"] * c["host.xla"] * np.maximum(1 - launched, 0.0)
    # nanotron's runs on several nodes wait for the host with tp and pp together, more with every tp rank
    node = np.maximum(at.chip.node, 1.0)
    wide = (kind == HOSTS.index("nanotron")) & (t.pp > 1) & (t.tp > 1) & (t.devices > node)
    if wide.any():
        slower = t.tp ** c["host.wide_tp"] * np.maximum(t.tp / node, 1.0) ** c["host.wide_cross"]
        launch = np.where(wide, c["host.launch"] * c["host.nanotron"] * slower, launch)
    return np.asarray(launch * (blocks + 1))

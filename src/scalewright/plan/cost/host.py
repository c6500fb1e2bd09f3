"""Seconds that the host needs to launch a micro-batch's kernels, and those that the device waits for.

launch    host.launch a block, times the trainer's kind of host, less what a CUDA graph holds
waits     (device^6 + host^6)^(1/6) - device: the slower of both, rounded where they are alike; and the
          share moe.sync of what the host launches after it has read the tokens of every expert
"""

from __future__ import annotations

import numpy as np

from scalewright.plan.cost.columns import Columns
from scalewright.plan.cost.kernels import immature
from scalewright.plan.frameworks import HOSTS

UNFUSED_LAUNCHES = 1.3  # of an expert layer: index operations one by one
AN_EXPERT = 9 / 150  # launches of an expert's three products forward and back, over a dense block's
CORNER = 6  # how sharply device and host take turns in being the slower


def waits(at: Columns, blocks: np.ndarray, device: np.ndarray) -> np.ndarray:
    """Seconds beyond `device`, the device's own, of a micro-batch through so many blocks."""
    host, counted = _host_seconds(at, blocks)
    return np.asarray((device**CORNER + host**CORNER) ** (1 / CORNER) - device + counted)


def _launches(at: Columns) -> tuple[np.ndarray, np.ndarray]:
    """Launches of an average block that no graph holds, over a dense block's: all, and an expert layer's.

    Routing and dispatch take more the older the trainer is; products one by one three launches an expert and
    pass.
    """
    c, sparse = at.c, at.work("sparse")
    plain = at.trainer("launches_mixer") + (1 - sparse) * at.trainer("launches_mlp")
    if not sparse.any():
        return plain, sparse
    experts = c["host.experts"] * immature(at.trainer("year"), at.trainer("kernels"), c)
    experts = experts * np.where(at.trainer("permutes_fused") > 0, 1.0, UNFUSED_LAUNCHES)
    experts = experts + at.trainer("one_by_one") * at.work("local_experts") * AN_EXPERT
    experts = sparse * experts * at.trainer("launches_experts")
    return np.asarray(plain + experts), np.asarray(experts)


def _host_seconds(at: Columns, blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Seconds that the host needs to launch a micro-batch of so many blocks, and those that never overlap."""
    c, t = at.c, at.table
    kind = at.trainer("host").astype(int)
    launch = c["host.launch"] * c.row("host", HOSTS)[kind]
    launch = launch * np.where(t.tp > 1, c["host.tp_factor"], 1.0) * (1 + 0.33 * at.rerun)
    launched, experts = _launches(at)
    counted = launch * experts * at.trainer("counts_tokens") * c["moe.sync"] * blocks
    launch = launch * launched + c["host.launch"] * c["host.xla"] * np.maximum(1 - launched, 0.0)
    # nanotron's runs on several nodes wait for the host with tp and pp together, more with every tp rank
    node = np.maximum(at.chip("node"), 1.0)
    wide = (kind == HOSTS.index("nanotron")) & (t.pp > 1) & (t.tp > 1) & (t.devices > node)
    if wide.any():
        slower = t.tp ** c["host.wide_tp"] * np.maximum(t.tp / node, 1.0) ** c["host.wide_cross"]
        launch = np.where(wide, c["host.launch"] * c["host.nanotron"] * slower, launch)
    return np.asarray(launch * (blocks + 1)), np.asarray(counted)

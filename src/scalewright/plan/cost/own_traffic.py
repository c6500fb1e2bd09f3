"""Bytes that this package's own trainer sends in a step: spec/traffic.py in closed form, a number a row.

    dp   sharded: gathers in 2 or 4 bytes, reductions in 4, of a rank's padded tensors; replicas: 4 bytes
    tp   2 entries and 2 exits a block, each an all-reduce, or a gather and a scatter (sp); gathered again in
         the backward; the exit of the embedding, the entry of the head, the loss; partial gradients
    pp   borders between ranks x micro-batches x the stream; a tied head's gradient

Of the busiest pipeline rank on each axis. Equal to `step_traffic` (tests), which goes tensor by tensor; what
the trainer can't run yet (cp, ep, experts, schedules that are only planned) isn't in.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scalewright.plan.cost import work as w
from scalewright.plan.cost.columns import Columns, Place, places
from scalewright.plan.cost.data_parallel import weight_bytes
from scalewright.plan.cost.optimizer import offloaded
from scalewright.plan.cost.padded import ALL, SUM_KV, SUM_TP, TIED, padded
from scalewright.plan.cost.states import fsdp
from scalewright.plan.cost.table import RECOMPUTE
from scalewright.spec.memory import FP32


def covered(at: Columns) -> np.ndarray:
    """Rows of this package's own trainer that it can run."""
    t = at.table
    plain = (at.work("sparse") == 0) & (t.cp == 1) & (t.ep == 1) & ((t.pp == 1) | t.schedules("trained"))
    return np.asarray((at.trainer("own") > 0) & plain)


def own_bytes(at: Columns) -> dict[str, np.ndarray]:
    """Bytes by axis of the busiest pipeline rank."""
    between, first, last = places(at.table)
    second = replace(between, rank=np.minimum(1.0, at.table.pp - 1), blocks=at.table.stages[:, 3])
    found = [_Rank(at, place).bytes() for place in (between, first, last, second)]
    inner = at.table.pp > 2
    for one in (found[0], found[3]):  # there is no rank between two
        for axis, values in one.items():
            one[axis] = np.where(inner, values, 0.0)
    return {axis: np.max([one[axis] for one in found], axis=0) for axis in found[0]}


class _Rank:
    """One pipeline rank of every row."""

    def __init__(self, at: Columns, place: Place) -> None:
        self.at, self.place, self.t = at, place, at.table
        self.first, self.last = place.first > 0, place.last > 0
        self.sharded, self.ranks = fsdp(at.table)
        self.sizes = padded(at.table, self.ranks)  # [rows, REGIONS + 1, 4]
        self.tied = at.work("tied") > 0
        self.folded = self.t.schedules("folded")

    def bytes(self) -> dict[str, np.ndarray]:
        """By axis."""
        t, nothing = self.t, np.zeros(len(self.t))
        tied = np.where(self.tied & (t.pp > 1) & ~self.folded & (self.first | self.last), 1.0, 0.0)
        return {
            "tp": np.where(t.tp > 1, self.activations() + self.partial(SUM_TP) + self.partial(SUM_KV), 0.0),
            "dp": self.data_parallel(),
            "cp": nothing,
            "ep": nothing,
            "pp": self.messages() + tied * FP32 * self.sizes[:, TIED, ALL] / self.ranks,
        }

    # -- data parallel ----------------------------------------------------------------------------

    def roots(self, what: int = ALL) -> tuple[np.ndarray, np.ndarray]:
        """What a rank's stages hold outside of blocks: at the model's start, at its end."""
        start = self.first * self.sizes[:, w.BEFORE, what]
        apart = self.last & ~self.first & self.tied
        return start, self.last * self.sizes[:, w.AFTER, what] + apart * self.sizes[:, TIED, what]

    def data_parallel(self) -> np.ndarray:
        """Gradients of replicas; or gathers, reductions, and the sums between replicas of shards."""
        t, m = self.t, self.t.micros
        blocks = self.place.blocks * self.sizes[:, w.BLOCK, ALL]
        start, end = self.roots()
        whole = blocks + start + end
        plain = np.where(t.dp * t.cp > 1, FP32 * whole, 0.0)
        kept = (t.zero != 3) | (t.pp > 1)
        block_gathers = np.where(t.zero != 3, 1.0, np.where(t.pp > 1, self.computations(), 2 * m))
        gathered = blocks * block_gathers + (start + end) * np.where(kept, 1.0, m)
        reductions = np.where(t.zero == 1, 1.0, m)
        # an embedding whose two ends are both here (a V) is reduced when both have given all
        once = np.where(self.tied & self.folded & (t.pp > 1), 1.0, reductions)
        reduced = (blocks + end) * reductions + start * once
        sent = weight_bytes(self.at) * gathered + FP32 * reduced
        between = np.where(t.replicate > 1, FP32 * whole / self.ranks, 0.0)
        return np.where(self.sharded, np.where(self.ranks > 1, sent, 0.0) + between, plain)

    def computations(self) -> np.ndarray:
        """How often a stage computes in a step: forwards, backwards, and halves of those that are split."""
        t = self.t
        # DualPipeV splits 2 p - 1 - r of the backwards of rank r, over both of its stages
        halves = np.where(t.schedules("paired"), (2 * t.pp - 1 - self.place.rank) / 2, 0.0)
        return np.where(t.schedules("split_all"), 3 * t.micros, 2 * t.micros + halves)

    def partial(self, what: int) -> np.ndarray:
        """Gradients that tensor-parallel ranks sum: of what they hold alike, in fp32, the rank's own part."""
        start, end = self.roots(what)
        blocks = self.place.blocks * self.sizes[:, w.BLOCK, what]
        return np.asarray(FP32 * (blocks + start + end) / self.ranks)

    # -- tensor parallel, pipeline ----------------------------------------------------------------

    def activations(self) -> np.ndarray:
        """Into and out of what tensor parallelism cuts, every micro-batch."""
        t, at, n = self.t, self.at, self.place.blocks
        again = self.again()
        none = (t.recompute == RECOMPUTE.index("none")) & ~offloaded(t.offload, "activations")
        follows = at.work("post_norm")
        scattered = 8 * n + 2 * np.where(none, n, again) + again * (1 + follows)
        summed = 4 * n + again * (1 + follows)
        ends = np.asarray(self.first, dtype=float) + self.last
        times = np.where(t.sp > 0, scattered + 2 * ends, summed + ends)
        tokens = t.micro_batch * t.seq_len
        loss = self.last * t.tp * 2 * tokens * FP32
        norms = tokens * FP32 * 2 * at.work("statistics") * (2 * n + again)
        return np.asarray(t.micros * (times * at.work("stream") + loss + norms))

    def again(self) -> np.ndarray:
        """Blocks whose forward runs a second time: every k-th of a stage, and all of them under a budget."""
        t, n = self.t, self.place.blocks
        stages = np.maximum(t.chunks, 1.0)
        some = stages * np.ceil(n / stages * t.share - 1e-9)
        run = np.where(t.recompute == RECOMPUTE.index("share"), some, n)
        return np.where(t.recompute == RECOMPUTE.index("none"), 0.0, run)

    def messages(self) -> np.ndarray:
        """Over every border of a rank's stages with another rank: up, and the gradient down."""
        t, rank = self.t, self.place.rank
        loop = 2 * t.chunks - self.first - self.last
        fold = 4.0 - 2 * (rank == 0) - 2 * (rank == t.pp - 1)
        own = np.floor(self.at.work("stream") / np.where(t.sp > 0, t.tp, 1.0))
        return np.where(t.pp > 1, np.where(self.folded, fold, loop) * own * t.micros, 0.0)

"""One optimizer step from seconds of kernels and collectives: what runs after what, and hides behind it.

    a rank's micro-batch   t = blocks · (forward + backward + recompute + exposed tp, cp, ep) (+ embedding,
    + head)
                           never faster than the host launches it
    the pipeline           m · t_max + bubble(schedule, t_mean) + exposed messages
    data parallelism       what the last backward (first forward) doesn't hide; FSDP: of every micro-batch
    optimizer, step        bytes of the states, the host's share, stragglers

The bubble of equal stages is that of spec/schedules/bubble.py; unequal ones wait for the fullest.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from scalewright.plan import collectives as x
from scalewright.plan import work as w
from scalewright.plan.constants import Constants
from scalewright.plan.frameworks import HOSTS
from scalewright.plan.kernels import Prices, immature
from scalewright.plan.request import OFFLOADS, SCHEDULES
from scalewright.plan.table import RECOMPUTE, Facts, Table

PARTS = ("compute", "tp_exposed", "dp_exposed", "cp_exposed", "ep_exposed", "pp_bubble", "pp_exposed",
"optimizer",
         "recompute", "other")  # fmt: skip
AXES = ("tp", "dp", "cp", "ep", "pp")


@dataclass
class Step:
    """Seconds of a step by part, and bytes by axis; a number a row."""

    seconds: np.ndarray
    parts: dict[str, np.ndarray]
    bytes: dict[str, np.ndarray]
    flops: np.ndarray  # model FLOPs of a step, on all devices, attention as the mask leaves it
    hardware: np.ndarray  # with recomputation
    host: np.ndarray  # share of the computation that waits for the host
    detail: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass
class _Micro:
    """A micro-batch on one pipeline rank; seconds a row."""

    compute: np.ndarray
    recompute: np.ndarray
    tp: np.ndarray
    cp: np.ndarray
    ep: np.ndarray
    host: np.ndarray

    @property
    def total(self) -> np.ndarray:
        return np.asarray(self.compute + self.recompute + self.tp + self.cp + self.ep + self.host)


def rerun(table: Table, c: Constants) -> tuple[np.ndarray, np.ndarray]:
    """Shares of a block's forward that run again in the backward: all of it, and attention's core."""
    kind = table.recompute
    whole = np.select(
        [kind == RECOMPUTE.index(name) for name in ("full", "share", "modules", "policy")],
        [1.0, table.share, c["recompute.modules"], c["recompute.policy"]], 0.0,
    )  # fmt: skip
    core = np.isin(kind, [RECOMPUTE.index("core"), RECOMPUTE.index("selective")])
    return whole, core.astype(float)


def step(table: Table, facts: Facts, prices: Prices, c: Constants) -> Step:
    """The step of every row."""
    links = x.wires(facts.chips, table.unit, c)
    t = _Rows(table, facts, prices, c, links)
    fullest, first, last = (t.micro(at) for at in range(3))
    tops = np.stack([fullest.total, first.total, last.total])
    pp = table.pp
    slow = tops.max(0)
    # the mean stage: inner ones are as full as the fullest
    mean = np.where(pp > 1, (first.total + last.total + np.maximum(pp - 2, 0) * fullest.total) / pp, slow)
    mean = np.where(pp > 1, mean, slow)
    m, v = table.micros, table.chunks
    fill, message = _bubble(table, mean, t)
    steady = m * slow
    bubble = fill + (m * (slow - mean) if False else 0.0)
    which = tops.argmax(0)
    parts = {}
    for name in ("compute", "recompute", "tp", "cp", "ep", "host"):
        stacked = np.stack([getattr(one, name) for one in (fullest, first, last)])
        parts[name] = m * np.take_along_axis(stacked, which[None], 0)[0]
    dp, axis_bytes = t.data_parallel(slow)
    optimizer = t.optimizer()
    offload = t.offload(slow)
    fixed = np.full(len(table), c["host.step"]) * np.where(t.tpu > 0, 0.3, 1.0)
    plain = steady + bubble + message + dp + optimizer + offload + fixed
    nodes = np.maximum(table.devices / t.node, 1.0)
    late = plain * c["wait.straggler"] * np.log2(nodes)
    forward, hardware = t.flops()
    named = {
        "compute": parts["compute"], "tp_exposed": parts["tp"], "dp_exposed": dp, "cp_exposed": parts["cp"],
        "ep_exposed": parts["ep"], "pp_bubble": bubble, "pp_exposed": message,
        "optimizer": optimizer + offload,
        "recompute": parts["recompute"], "other": parts["host"] + fixed + late,
    }  # fmt: skip
    del v
    return Step(plain + late, named, axis_bytes, forward, hardware, parts["host"] / np.maximum(plain, 1e-12),
                {"slow": slow, "late": late, "fixed": fixed})  # fmt: skip


class _Rows:
    """What the parts of a step share: columns at hand, one a row."""

    def __init__(self, table: Table, facts: Facts, prices: Prices, c: Constants, links: x.Wires) -> None:
        self.t, self.c, self.links, self.facts, self.prices = table, c, links, facts, prices
        g = table.gather
        self.stream, self.sparse = g(facts.works["stream"]), g(facts.works["sparse"])
        self.blocks = g(facts.works["blocks"])
        self.tpu, self.node = g(facts.chips["tpu"]), np.maximum(g(facts.chips["node"]), 1.0)
        self.domain = g(facts.chips["domain"])
        self.trainer = {k: g(v) for k, v in facts.trainers.items()}
        self.rate = g(facts.chips["memory_rate"]) * c["memory.rate"]
        self.whole, self.core = rerun(table, c)
        self.forward = prices.seconds[:, :, w.FORWARD]
        self.backward = prices.seconds[:, :, w.INPUT] + prices.seconds[:, :, w.WEIGHT]

    def region(self, values: np.ndarray, region: int) -> np.ndarray:
        """A unit's number of one region as a column."""
        return np.asarray(values[self.t.unit, region])

    # -- a micro-batch ----------------------------------------------------------------------------

    def tensor_parallel(self) -> tuple[np.ndarray, np.ndarray]:
        """Exposed seconds of a block's exchanges, forward; and bytes of a block, forward and backward."""
        t, one = self.t, np.ones(len(self.t))
        ordinary = 2.0 - self.trainer_parallel()
        times = ordinary * (1 - self.sparse) + self.sparse * np.where(t.etp > 1, 2.0, 1.0)
        whole = x.all_reduce(self.stream, t.tp, one, self.links)
        seconds = np.where(t.sp > 0, 2 * x.gather(self.stream, t.tp, one, self.links), whole)
        hidden = self.c["overlap.tp"] * self.trainer["overlap_tp"]
        size = np.where(t.tp > 1, times * self.stream * np.where(t.sp > 0, 2.0, 1.0), 0.0)
        return times * seconds * (1 - hidden), size

    def trainer_parallel(self) -> np.ndarray:
        """1 where attention and MLP run side by side, so that one sum serves both."""
        return self.t.gather(self.facts.works["parallel"])

    def context_parallel(self) -> tuple[np.ndarray, np.ndarray]:
        """Exposed seconds of a block's exchange of keys and values, forward; and bytes sent."""
        t = self.t
        size = self.t.gather(self.facts.works["key_value"])
        core = self.prices.core[t.unit, w.BLOCK, 0]
        ring = (t.cp - 1) * x.send(size, t.tp, t.tp * t.cp, self.links)
        whole = x.gather(size * t.cp, t.cp, t.tp, self.links)
        turn = x.all_to_all(2 * self.stream / t.tp + size, t.cp, t.tp, self.links)
        exposed = np.select(
            [t.cp_kind == 0, t.cp_kind == 1],
            [np.maximum(ring - core * (t.cp - 1) / t.cp, 0.1 * ring), turn], whole,
        )  # fmt: skip
        return np.where(t.cp > 1, exposed, 0.0), np.where(t.cp > 1, size * (t.cp - 1), 0.0)

    def expert_parallel(self) -> tuple[np.ndarray, np.ndarray]:
        """Exposed seconds of a block's dispatch and combine, forward; and bytes sent."""
        t = self.t
        size = t.gather(self.facts.works["routed"]) * self.trainer["capacity_factor"]
        # a token goes to every domain once, whatever the experts there, where the dispatcher knows of domains
        k = x.inside(t.ep, np.ones(len(t)), self.links)
        domains, top_k = t.ep / k, t.gather(self.facts.works["top_k"])
        met = domains * (1 - (1 - 1 / domains) ** top_k) / top_k
        far = np.where((self.trainer["dedup"] > 0) & (domains > 1), met, 1.0)
        once = x.all_to_all(size, t.ep, np.ones(len(t)), self.links, far)
        hidden = self.c["overlap.ep"] * self.trainer["overlap_ep"]
        sent = np.where(t.ep > 1, 2 * size * self.sparse, 0.0)
        return 2 * once * self.sparse * (1 - hidden), sent

    def micro(self, stage: int) -> _Micro:
        """A micro-batch on the fullest (0), first (1) or last (2) pipeline rank."""
        t, n = self.t, self.t.stages[:, stage]
        f, b = self.region(self.forward, w.BLOCK), self.region(self.backward, w.BLOCK)
        core = self.prices.core[t.unit, w.BLOCK, 0]
        compute = n * (f + b)
        only = t.pp == 1
        if stage != 2:
            compute += (only | (stage == 1)) * (
                self.region(self.forward, w.BEFORE) + self.region(self.backward, w.BEFORE)
            )
        if stage != 1:
            ends = self.region(self.forward, w.AFTER) + self.region(self.backward, w.AFTER)
            ends = ends + self.region(self.forward, w.EXTRA) + self.region(self.backward, w.EXTRA)
            compute += (only | (stage == 2)) * ends
        tp, _ = self.tensor_parallel()
        cp, _ = self.context_parallel()
        ep, _ = self.expert_parallel()
        times = 2 + self.whole
        again = n * (self.whole * f + self.core * core)
        host = self.host(n)
        device = compute + again + n * times * (tp + ep) + n * (3 + self.whole) * cp
        waits = (device**6 + host**6) ** (1 / 6) - device
        return _Micro(compute, again, n * times * tp, n * (3 + self.whole) * cp, n * times * ep, waits)

    def host(self, blocks: np.ndarray) -> np.ndarray:
        """Seconds that the host needs to launch a micro-batch of so many blocks."""
        c, t = self.c, self.t
        kind = self.trainer["host"].astype(int)
        one = c["host.launch"] * c.row("host", HOSTS)[kind]
        one = one * np.where(t.tp > 1, c["host.tp_factor"], 1.0) * (1 + 0.33 * self.whole)
        one = one * (1 + 0.8 * self.sparse * immature(self.trainer["year"], self.trainer["kernels"], c))
        wide = (kind == HOSTS.index("nanotron")) & (t.pp > 1) & (t.tp > 1) & (t.devices > self.node)
        slower = t.tp ** c["host.wide_tp"] * np.maximum(t.tp / self.node, 1.0) ** c["host.wide_cross"]
        one = np.where(wide, c["host.launch"] * c["host.nanotron"] * slower, one)
        return np.asarray(one * (blocks + 1))

    # -- the rest of a step -----------------------------------------------------------------------

    def held(self) -> tuple[np.ndarray, np.ndarray]:
        """Parameters of the fullest rank: those that data parallelism shares, and those of experts."""
        t = self.t
        n = t.stages[:, 0]
        dense = n * self.region(self.facts.works["dense"], w.BLOCK)
        ends = np.maximum(
            self.region(self.facts.works["dense"], w.BEFORE),
            self.region(self.facts.works["dense"], w.AFTER) + t.gather(self.facts.works["tied"]),
        )
        both = self.region(self.facts.works["dense"], w.BEFORE) + self.region(
            self.facts.works["dense"], w.AFTER
        )
        extra = self.region(self.facts.works["dense"], w.EXTRA)
        dense = dense + np.where(t.pp > 1, ends, both) + extra
        expert = n * self.region(self.facts.works["expert"], w.BLOCK) + self.region(
            self.facts.works["expert"], w.EXTRA
        )
        return dense, expert

    def data_parallel(self, slow: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Exposed seconds of gradients and parameters in a step, and the bytes of every axis."""
        t, c = self.t, self.c
        dense, expert = self.held()
        group = t.dp * t.cp
        shard = group / t.replicate
        experts = np.maximum(group * t.tp / (t.ep * t.etp), 1.0)
        grads, weights = self.trainer["grads"], 2.0
        fsdp = t.zero >= 3
        # gradients: all-reduce below ZeRO-1, else a reduce-scatter and later a gather of the weights
        blocks = t.stages[:, 0]
        pieces = np.where(self.trainer["by_block"] > 0, blocks, 1.0)
        reduce = self._both(dense * grads, expert * grads, group, experts, pieces)
        fetch = self._both(dense * weights, expert * weights, group, experts, pieces)
        twice = np.where(t.zero == 0, reduce, 0.0)
        beside = np.where(t.zero >= 1, self.trainer["overlap_zero1"], 1.0) * self.trainer["overlap_grads"]
        cover_back = slow * (2 / 3) * c["overlap.dp"] * beside
        cover_front = slow * (1 / 3) * c["overlap.dp"] * self.trainer["overlap_params"]
        plain = np.maximum(reduce + twice - cover_back, 0.05 * (reduce + twice))
        plain = plain + np.where(t.zero >= 1, np.maximum(fetch - cover_front, 0.05 * fetch), 0.0)
        plain = plain * (t.dp * t.cp > 1)
        each = self._fsdp(dense, expert, shard, experts, slow)
        seconds = np.where(fsdp, each, plain)
        # as users count: an all-reduce the tensor, a gather its output, a scatter its input
        each_step = np.where(t.zero == 0, grads, grads + weights)
        again = np.where(self.gathers_once() > 0, 1.0, t.micros)
        gathers = np.where(fsdp, again * (2 * weights + grads), each_step) * (group > 1)
        n = t.stages.mean(1)
        _, tp_bytes = self.tensor_parallel()
        _, cp_bytes = self.context_parallel()
        _, ep_bytes = self.expert_parallel()
        whole = self.whole
        sizes = {
            "dp": (dense + expert) * gathers, "tp": n * (2 + whole) * tp_bytes * t.micros,
            "cp": n * (3 + whole) * cp_bytes * t.micros, "ep": n * (2 + whole) * ep_bytes * t.micros,
            "pp": np.where(t.pp > 1, 2 * t.chunks * self._message() * t.micros, 0.0),
        }  # fmt: skip
        return seconds, sizes

    def _both(
        self,
        dense: np.ndarray,
        expert: np.ndarray,
        group: np.ndarray,
        experts: np.ndarray,
        pieces: np.ndarray,
    ) -> np.ndarray:
        """Seconds of a gather or scatter of the dense bytes over their group, the experts' over theirs."""
        t = self.t
        found = x.gather(dense, group, t.tp, self.links, pieces)
        return np.asarray(found + x.gather(expert, experts, t.ep * t.etp, self.links, pieces))

    def _fsdp(
        self, dense: np.ndarray, expert: np.ndarray, shard: np.ndarray, experts: np.ndarray, slow: np.ndarray
    ) -> np.ndarray:
        """Gathers before forward and backward, a reduction after it, of every micro-batch, block by block."""
        t, c = self.t, self.c
        grads, weights, blocks = self.trainer["grads"], 2.0, np.maximum(t.stages[:, 0], 1.0)
        fetch = self._both(dense * weights, expert * weights, shard, experts, blocks)
        reduce = self._both(dense * grads, expert * grads, shard, experts, blocks)
        traffic = 2 * fetch + reduce
        cover = slow * c["overlap.fsdp"]
        exposed = np.maximum(traffic - cover, 0.0) + (fetch + reduce) / blocks
        slowed = c["overlap.slow"] * np.minimum(traffic, cover)
        mine = dense * grads / np.maximum(shard, 1)
        across = x.all_reduce(mine, t.replicate, t.tp * shard, self.links)
        times = np.where(self.gathers_once() > 0, 1.0, t.micros)
        return np.where(shard > 1, times * (exposed + slowed), 0.0) + across * 0.5

    def gathers_once(self) -> np.ndarray:
        """Where FSDP keeps a stage's weights gathered for all micro-batches of a step, as pipelines do.

        Llama 3's trainer does (Dubey et al. 2024, §3.3.2); this package's own gathers for each.
        """
        return np.asarray((self.t.pp > 1) * (1 - self.trainer["regathers"]))

    def _message(self) -> np.ndarray:
        """Bytes of one activation between stages, as one rank sends it."""
        return self.stream / np.where(self.trainer["whole_p2p"] > 0, 1.0, self.t.tp)

    def optimizer(self) -> np.ndarray:
        """Seconds of the step of Adam: states read and written once, times what it really moves."""
        t, c = self.t, self.c
        dense, expert = self.held()
        group = t.dp * t.cp / np.where(t.zero >= 3, t.replicate, 1.0)
        mine = dense / np.where(t.zero >= 1, group, 1.0)
        experts = np.maximum(group * t.tp / (t.ep * t.etp), 1.0)
        mine = mine + expert / np.where(t.zero >= 1, experts, 1.0)
        moved = mine * (self.trainer["grads"] + 2 * self.trainer["held_optimizer"] + 4.0)
        seconds = moved * c["optimizer.bytes"] / self.rate
        away = (t.offload == OFFLOADS.index("optimizer")) | (t.offload == OFFLOADS.index("all"))
        host = t.gather(self.facts.chips["host_rate"]) * c["optimizer.host"]
        return np.asarray(np.where(away, mine * 12.0 / host + seconds * 3, seconds))

    def offload(self, slow: np.ndarray) -> np.ndarray:
        """Seconds of what goes to the host and back that the computation doesn't hide."""
        t = self.t
        host = t.gather(self.facts.chips["host_rate"]) * self.c["optimizer.host"]
        dense, expert = self.held()
        kept = t.stages[:, 0] * self.facts.works["kept"][t.unit, w.BLOCK, 0]
        weights = np.isin(t.offload, [OFFLOADS.index("parameters"), OFFLOADS.index("all")])
        states = np.isin(t.offload, [OFFLOADS.index("activations"), OFFLOADS.index("all")])
        size = weights * 2 * 2.0 * (dense + expert) / np.maximum(t.dp, 1) + states * 2 * kept
        return np.asarray(t.micros * np.maximum(size / host - 0.7 * slow, 0.0))

    def flops(self) -> tuple[np.ndarray, np.ndarray]:
        """Model FLOPs of a step on all devices together, and with what recomputation adds."""
        t = self.t
        per = self.prices.flops
        ranks = t.tp * t.cp * t.dp * t.micros
        block = self.region(per, w.BLOCK) * self.blocks
        ends = self.region(per, w.BEFORE) + self.region(per, w.AFTER) + self.region(per, w.EXTRA)
        forward = (block + ends) * ranks
        return 3 * forward, 3 * forward + self.whole * block * ranks


def _bubble(t: Table, mean: np.ndarray, rows: _Rows) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of the pipeline's fill and drain, and of its messages that nothing hides."""
    p, v, m = t.pp, t.chunks, t.micros
    kind = t.schedule
    stage = mean / v  # forward and backward of one chunk
    is_kind = {name: kind == index for index, name in enumerate(SCHEDULES)}
    f = stage / 3
    fill = np.select(
        [
            is_kind["gpipe"] | is_kind["1f1b"],
            is_kind["interleaved"],
            is_kind["zb-h1"] | is_kind["zb-interleaved"],
            is_kind["zbv"],
            is_kind["dualpipev"],
            is_kind["dualpipe"],
        ],
        [
            (p - 1) * mean,
            (p - 1 + (v - 1) * np.maximum(0, p - m)) * stage,
            (p - 1) * f,
            (p - 1) * f,
            (p - 1) * f,
            (p / 2 - 1) * mean / 3,
        ],
        0.0,
    )
    size = rows._message()
    once = x.send(size, t.devices / p, t.devices, rows.links) + rows.c["link.message"]
    hidden = rows.c["overlap.p2p"] * rows.trainer["overlap_p2p"]
    hops = 2 * (p - 1) + 2 * v * m * (1 - hidden)
    return np.where(p > 1, fill, 0.0), np.where(p > 1, hops * once, 0.0)

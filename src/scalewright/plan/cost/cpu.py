"""A step on CPU processes, from curves that a probe measured on the machine itself (spec/hardware).

    an operator     seconds(curve of its kind, its FLOPs or bytes), forward and backward
    a collective    seconds(curve of its kind, its bytes), as often as volumes.py lists it
    a micro-batch   blocks · (forward + backward + what runs again) + exchanges: Gloo works on the cores that
                    compute, so that nothing hides behind anything
    a step          micro-batches, pipeline's fill, gradients and parameters, update, what every step costs

The rest of the planner prices devices by peaks and links; this replaces the seconds of rows whose chip has
curves. Processes share caches, memory and the loopback: the probe ran as many of them at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from scalewright.plan.constants import Constants
from scalewright.plan.cost import timeline
from scalewright.plan.cost import work as w
from scalewright.plan.cost.activations import budgets
from scalewright.plan.cost.columns import Columns, Place, places
from scalewright.plan.cost.kernels import Prices
from scalewright.plan.cost.links import groups, seconds
from scalewright.plan.cost.table import RECOMPUTE, Facts, Table, Unit
from scalewright.plan.cost.timeline import PARTS, Step
from scalewright.plan.cost.volumes import Volumes
from scalewright.plan.curves import Curves, curves_of
from scalewright.spec import block
from scalewright.spec.block import Operator, Sizes
from scalewright.spec.hardware.timings import Timings
from scalewright.spec.model import ModelSpec
from scalewright.spec.operators import layer_kinds
from scalewright.spec.volumes import Transfer

FP32 = 4.0


@dataclass(frozen=True)
class Seconds:
    """One unit's seconds a micro-batch: [REGIONS] forward and backward, and of a block what runs again."""

    forward: np.ndarray
    backward: np.ndarray
    light: float  # a block's forward without matrix products
    core: float  # attention's core
    operators: float  # of a block


# -- kernels --------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def unit_seconds(model: ModelSpec, sizes: Sizes, precision: str, timings: Timings) -> Seconds:
    """The operators of a rank priced one by one; blocks as an average block."""
    curves = curves_of(timings)
    precision = precision if precision in curves.precisions else "fp32"
    forward, backward = np.zeros(w.REGIONS), np.zeros(w.REGIONS)
    light = core = many = 0.0
    for region, share, found in _regions(model, sizes):
        for operator in found:
            ahead, back = _operator(model, operator, curves, precision)
            forward[region] += share * ahead
            backward[region] += share * back
            if region == w.BLOCK:
                light += share * (0.0 if operator.shape and operator.kind != "attention" else ahead)
                core += share * (ahead if operator.kind == "attention" else 0.0)
                many += share
    return Seconds(forward, backward, light, core, many)


def _regions(model: ModelSpec, sizes: Sizes) -> list[tuple[int, float, Sequence[Operator]]]:
    found: list[tuple[int, float, Sequence[Operator]]] = [(w.BEFORE, 1.0, tuple(block.before(model, sizes)))]
    for first, many in layer_kinds(model):
        share = many / model.num_hidden_layers
        found.append((w.BLOCK, share, tuple(block.block(model, sizes, first))))
    found.append((w.AFTER, 1.0, tuple(block.after(model, sizes))))
    return [
        *found,
        *((w.EXTRA, 1.0, tuple(block.multi_token(model, sizes, i))) for i in range(model.mtp_layers)),
    ]


def _operator(model: ModelSpec, o: Operator, curves: Curves, precision: str) -> tuple[float, float]:
    """Seconds of an operator's forward and backward."""
    if o.kind == "attention":
        return _attention(o, curves, precision, "forward"), _attention(o, curves, precision, "backward")
    moved = o.read + o.written
    kind: str = o.kind
    size = moved
    if o.kind in ("linear", "grouped_linear", "router", "head", "scan"):
        kind, size = "linear", o.flops
    elif o.kind == "norm" and not model.norm_type.startswith("rmsnorm"):
        kind = "layer_norm"
    elif o.kind == "activation" and model.gated:
        kind = "gated"
    elif o.kind in ("dispatch", "combine"):  # rows that are moved; what sorts them isn't timed
        kind = "residual"
    back = size
    if o.kind == "embedding":
        back = sum(weight.size for weight in o.weights) * (FP32 if precision == "fp32" else 2.0)
    return (
        float(curves(kind, size, "forward", precision)),
        float(curves(kind, back, "backward", precision)),
    )


def _attention(o: Operator, curves: Curves, precision: str, phase: str) -> float:
    """Seconds of attention's core, between those of heads of 32 and of 64."""
    rows, keys, heads = o.shape or (1, 1, 1)
    wide = float(curves("attention", o.flops, phase, precision))
    narrow = float(curves("attention_narrow", o.flops, phase, precision)) or wide
    share = min(max(o.flops / (4.0 * rows * keys * heads) / 32 - 1, 0.0), 1.0)
    return narrow + share * (wide - narrow)


# -- a step ---------------------------------------------------------------------------------------


def step(table: Table, facts: Facts, prices: Prices, c: Constants) -> Step:
    """The step of every row: CPUs with curves by them, all others by peaks and links."""
    found = timeline.step(table, facts, prices, c)
    mine = np.array([unit.chip.timings is not None for unit in table.units])[table.unit]
    if not mine.any():
        return found
    parts = {name: np.where(mine, 0.0, found.parts[name]) for name in PARTS}
    for timings in {unit.chip.timings for unit in table.units if unit.chip.timings is not None}:
        rows = np.array([unit.chip.timings == timings for unit in table.units])[table.unit]
        at = np.flatnonzero(rows)
        columns = Columns(table.take(at), facts, prices, c)
        for name, values in _Step(columns, timings).parts().items():
            parts[name][at] = values
    detail = {name: np.where(mine, 0.0, values) for name, values in found.detail.items()}
    detail["fixed"] = np.where(mine, parts["other"], detail.get("fixed", 0.0))
    host = np.where(mine, 0.0, found.host)
    return replace(found, seconds=np.asarray(sum(parts.values())), parts=parts, host=host, detail=detail)


class Loopback:
    """The processes of one machine: seconds of collectives from curves."""

    def __init__(self, at: Columns, timings: Timings) -> None:
        self.at, self.curves = at, curves_of(timings)
        self.share = np.maximum(timings.processes - 1, 1) / timings.processes  # of a ring that was measured

    def __call__(self, transfer: Transfer) -> np.ndarray:
        """Seconds of one call; a message's curve is of the message itself."""
        size = np.asarray(transfer.bytes)
        if transfer.kind == "send":
            return self.curves("send", size)
        group, _ = groups(self.at, transfer.axis)
        ring = (group - 1) / np.maximum(group, 1) / self.share
        taken = ring * self.curves(transfer.kind, size) + self.at.c["cpu.message"]
        return np.where((group > 1) & (size > 0), taken, 0.0)


class _Step:
    """The parts of a step of some rows that share one machine's curves."""

    def __init__(self, at: Columns, timings: Timings) -> None:
        table, facts, curves = at.table, at.facts, curves_of(timings)
        self.at, self.t, self.curves, self.c = at, table, curves, at.c
        self.volumes, self.network = Volumes(at), Loopback(at, timings)
        priced = [_of(unit, timings) for unit in table.units]
        g = table.gather
        self.forward = np.array([one.forward for one in priced])[table.unit]
        self.backward = np.array([one.backward for one in priced])[table.unit]
        self.light = g(np.array([one.light for one in priced]))
        self.core = g(np.array([one.core for one in priced]))
        self.operators = g(np.array([one.operators for one in priced]))
        self.key_value = g(facts.works["key_value"])
        self.group = table.dp * table.cp  # that shares gradients
        again = [table.recompute == RECOMPUTE.index(name) for name in ("full", "share", "budget")]
        self.whole = np.select(again, [1.0, table.share, budgets(table)[1]], 0.0)
        self.works = {name: facts.works[name][table.unit] for name in ("dense", "expert", "tied")}
        self.width = np.where(g(np.array([u.precision in ("fp32", "tf32") for u in table.units])), 4.0, 2.0)
        self.split, self.folded = table.schedules("splits"), table.schedules("folded")

    def parts(self) -> dict[str, np.ndarray]:
        """Seconds by part."""
        t, c = self.t, self.c
        seats = places(t)
        ranks = [self._micro(seat) for seat in seats]
        totals = np.stack([sum(parts.values()) for parts in ranks])
        totals[0] = np.where(t.pp > 2, totals[0], 0.0)
        totals[2] = np.where(t.pp > 1, totals[2], 0.0)
        slow, which = totals.max(0), totals.argmax(0)
        others = np.where(t.pp > 2, t.pp - 2, 0) * totals[0] + totals[1] + totals[2] - slow
        chosen = {
            name: t.accumulation * np.choose(which, [one[name] for one in ranks]) for name in ranks[0]
        }  # fmt: skip
        return {
            **{name: chosen[name] for name in ("compute", "recompute", "tp_exposed", "cp_exposed")},
            "dp_exposed": np.max([self._data_parallel(seat) for seat in seats], axis=0) + self._report(),
            "pp_bubble": np.where(t.pp > 1, others * self._fill(), 0.0),
            "pp_exposed": self._messages(seats),
            "optimizer": self._optimizer(),
            "other": chosen["other"] + c["cpu.step"],
        }

    def _micro(self, place: Place) -> dict[str, np.ndarray]:
        """A micro-batch on a pipeline rank."""
        t, n, first, last = self.t, place.blocks, place.first, place.last
        ends = {w.BEFORE: first, w.AFTER: last, w.EXTRA: last}
        compute = n * (self.forward[:, w.BLOCK] + self.backward[:, w.BLOCK])
        for region, share in ends.items():
            compute = compute + share * (self.forward[:, region] + self.backward[:, region])
        again = self._again() * n
        sent = self.volumes.tensor_parallel(place)
        exchange = seconds(self.network, sent) / t.accumulation if sent else np.zeros(len(t))
        held = self._elements(n, first, last)
        adds = np.where((t.zero_stage == 0) & (self.group > 1), 1.0, (t.accumulation - 1) / t.accumulation)
        adds = np.where(t.zero_stage >= 2, adds / np.maximum(self.group / t.dp_replicate, 1), adds)
        turned = (3 + self.whole) * (t.cp - 1) * self.curves("send", self.key_value)
        loops = n * self.operators * (self.c["cpu.call"] + self.split * self.c["cpu.split"])
        other = loops + adds * self._each(held, "add")
        cp = np.where(t.cp > 1, n * turned, 0.0)
        return {
            "compute": compute,
            "recompute": again,
            "tp_exposed": exchange,
            "cp_exposed": cp,
            "other": other,
        }

    def _again(self) -> np.ndarray:
        """What a block's backward redoes of its forward, and what looking at each operator costs."""
        kind = self.t.recompute
        whole = self.forward[:, w.BLOCK]
        looked = self.operators * self.c["cpu.watched"] * self.curves("watched", 1.0)
        select = [
            kind == RECOMPUTE.index("full"),
            np.isin(kind, [RECOMPUTE.index("share"), RECOMPUTE.index("budget")]),
            kind == RECOMPUTE.index("core"), kind == RECOMPUTE.index("selective"),
        ]  # fmt: skip
        return np.asarray(np.select(select, [whole, self.whole * whole, self.core, self.light + looked], 0.0))

    # -- exchanges --------------------------------------------------------------------------------

    def _data_parallel(self, place: Place) -> np.ndarray:
        """Every collective, one after the other; FSDP's hooks and lists around each are Python's.

        Reading and writing flat buffers is in the curves.
        """
        sent = self.volumes.data_parallel(place)
        hooks = [one.calls * self.c["cpu.shard"] for one in sent if one.axis == "fsdp"]
        return np.asarray(seconds(self.network, sent) + np.sum(hooks, axis=0))

    def _messages(self, seats: Sequence[Place]) -> np.ndarray:
        """Of the rank with the most; as many come in, and Gloo takes the same cores for them."""
        sent = [self.volumes.pipeline(seat) for seat in seats]
        if not sent[0]:
            return np.zeros(len(self.t))
        between, *ends = [seconds(self.network, some) for some in sent]
        return np.asarray(2 * np.max([np.where(self.t.pp > 2, between, 0.0), *ends], axis=0))

    def _report(self) -> np.ndarray:
        """The loss and the norm of a step: small sums over all ranks."""
        small = Transfer("world", "all_reduce", np.full(len(self.t), 1024.0), 2.0, "nothing")
        return seconds(self.network, [small])

    def _fill(self) -> np.ndarray:
        """The share of the other ranks' time a micro-batch that a pipeline starts and ends with."""
        t = self.t
        third = np.where(self.split, 1 / 3, 1.0)
        return np.asarray(third / np.where(self.folded | self.split, 1.0, t.virtual_stages))

    # -- numbers ----------------------------------------------------------------------------------

    def _elements(self, blocks: np.ndarray, first: np.ndarray | bool, last: np.ndarray | bool) -> np.ndarray:
        """Parameters of a pipeline rank."""
        both = self.works["dense"] + self.works["expert"]
        split = (self.t.pp > 1) & (np.asarray(last) > 0) & ~(np.asarray(first) > 0)
        found = blocks * both[:, w.BLOCK] + np.asarray(first) * both[:, w.BEFORE]
        return np.asarray(found + np.asarray(last) * both[:, w.AFTER] + split * self.works["tied"])

    def _each(self, elements: np.ndarray, what: str) -> np.ndarray:
        """Seconds of a pass over so many numbers, which lie in tensors of about a block's twelfth."""
        return np.asarray(np.where(elements > 0, self.curves(what, elements), 0.0))

    def _optimizer(self) -> np.ndarray:
        t = self.t
        n = t.stages[:, :3].max(1)
        held = self._elements(n, True, t.pp == 1)
        shard = np.where(t.zero_stage >= 1, np.maximum(self.group / np.maximum(t.dp_replicate, 1), 1.0), 1.0)
        copies = np.where(self.width < FP32, self._each(held / shard, "add"), 0.0)
        adamw = self._each(held / shard, "optimizer")  # what the probe times
        return np.asarray(adamw * self.at.trainer("update_on_host") + copies)


def _of(unit: Unit, timings: Timings) -> Seconds:
    """A unit's seconds; units of other machines are not asked for."""
    if unit.chip.timings != timings:
        return Seconds(np.zeros(w.REGIONS), np.zeros(w.REGIONS), 0.0, 0.0, 0.0)
    return unit_seconds(unit.model, unit.sizes, unit.precision, timings)

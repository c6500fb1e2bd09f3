"""Many requests side by side: a column for every number that the formulas read.

    requests --> units: distinct (model, sizes, device, trainer, precision), whose operators are priced once
             --> columns: one number a row, and the row's unit

A search fills the columns itself, from products of axes; one request is a table of one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np

from scalewright.plan import work as w
from scalewright.plan.chips import FAMILIES, WIDTHS, Chip
from scalewright.plan.constants import constants
from scalewright.plan.frameworks import ATTENTION, HOSTS, KERNELS, SPLITS, Framework
from scalewright.plan.request import CP_KINDS, OFFLOADS, SCHEDULES, Request
from scalewright.spec.block import Sizes
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import balanced_layers
from scalewright.spec.schedules.action import V_SHAPED, stage_ranks

RECOMPUTE = ("none", "core", "selective", "full", "share", "modules", "policy", "unknown")
OWN = "scalewright"  # the trainer whose bytes are known exactly
FOLDED = (*V_SHAPED, "dualpipe")  # schedules whose first rank holds both ends of the model
NODE_WISE = ("deepep", "hybridep", "flex")  # dispatchers that send a token to a node once
LAYOUT_COLUMNS = (
    "seq_len", "devices", "tp", "sp", "pp", "chunks", "cp", "ep", "etp", "replicate", "zero",
    "micro_batch", "micros",
    "share",
)  # fmt: skip


@dataclass(frozen=True)
class Unit:
    """What decides the price of an operator list."""

    model: ModelSpec
    sizes: Sizes
    chip: Chip
    framework: Framework
    precision: str
    attention: str
    options: tuple[tuple[str, str], ...]

    @property
    def work(self) -> w.Work:
        """The operators of these sizes, from the cache."""
        return w.work(self.model, self.sizes)


@dataclass
class Table:
    """Columns of equal length; `unit` indexes `units`."""

    units: tuple[Unit, ...]
    unit: np.ndarray
    seq_len: np.ndarray
    devices: np.ndarray
    tp: np.ndarray
    sp: np.ndarray
    pp: np.ndarray
    chunks: np.ndarray
    cp: np.ndarray
    ep: np.ndarray
    etp: np.ndarray
    replicate: np.ndarray
    zero: np.ndarray
    micro_batch: np.ndarray
    micros: np.ndarray
    share: np.ndarray
    schedule: np.ndarray  # index into SCHEDULES
    recompute: np.ndarray  # index into RECOMPUTE
    offload: np.ndarray  # index into OFFLOADS
    cp_kind: np.ndarray  # index into CP_KINDS
    stages: np.ndarray  # [rows, 5] as `stage_blocks`
    dp: np.ndarray

    def __len__(self) -> int:
        return len(self.unit)

    def take(self, rows: np.ndarray) -> Table:
        """A table of some of the rows."""
        columns = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name != "units"}
        return Table(units=self.units, **columns)

    def gather(self, values: np.ndarray) -> np.ndarray:
        """A number of each unit as a column."""
        return np.asarray(values[self.unit])


def unit_of(request: Request) -> Unit:
    """The unit that a request's operators belong to."""
    return Unit(
        request.model, request.sizes, request.chip, request.framework, request.precision, request.attention,
        tuple(sorted(request.options.items())),
    )  # fmt: skip


def table(requests: Sequence[Request]) -> Table:
    """Requests as columns."""
    units: dict[Unit, int] = {}
    unit = np.array([units.setdefault(unit_of(r), len(units)) for r in requests], dtype=np.intp)
    columns = {
        name: np.array([float(getattr(r, name)) for r in requests]) for name in LAYOUT_COLUMNS
    }  # fmt: skip
    stages = np.array([stage_blocks(r) for r in requests], dtype=float).reshape(len(requests), 5)
    return Table(
        units=tuple(units), unit=unit, stages=stages,
        schedule=np.array([SCHEDULES.index(r.schedule) if r.schedule in SCHEDULES else 1 for r in requests]),
        recompute=np.array([RECOMPUTE.index(r.recompute) for r in requests]),
        offload=np.array([OFFLOADS.index(r.offload) for r in requests]),
        cp_kind=np.array([CP_KINDS.index(r.cp_kind) for r in requests]),
        dp=np.array([float(r.dp) for r in requests]), **columns,
    )  # fmt: skip


# -- where the blocks go --------------------------------------------------------------------------


def stage_blocks(request: Request) -> tuple[float, float, float, float, float]:
    """Blocks of the fullest rank between the ends, the first, the last, the second; and the fullest's number.

    All stages of a rank together. Memory is highest on one of these four: earlier ranks have more
    micro-batches under way, fuller ones more weights.
    """
    stages = stage_counts(request)
    return _rank_blocks(stages, request.schedule, request.pp, request.chunks)


@lru_cache(maxsize=65536)
def _rank_blocks(
    stages: tuple[int, ...], schedule: str, pp: int, chunks: int
) -> tuple[float, float, float, float, float]:
    owners = stage_ranks(schedule, pp, chunks) if pp > 1 else (0,) * len(stages)
    per = [0.0] * pp
    for stage, rank in enumerate(owners):
        per[rank] += stages[stage % len(stages)]
    if len(owners) > len(stages):  # dualpipe has every stage twice, and half of the micro-batches in each
        per = [count / 2 for count in per]
    between = per[1:-1] or [max(per)]
    fullest = max(between)
    rank = min(1 + between.index(fullest), pp - 1)
    return fullest, per[0], per[-1], per[min(1, pp - 1)], float(rank)


def stage_counts(request: Request) -> tuple[int, ...]:
    """Blocks of every pipeline stage, in the model's order (dualpipe: of each of its pp parts)."""
    if request.stage_layers:
        return request.stage_layers
    parts = request.pp * (1 if request.schedule == "dualpipe" else request.chunks)
    return cut_stages(request.model, request.framework.split, request.pp, parts // request.pp)


@lru_cache(maxsize=65536)
def cut_stages(model: ModelSpec, split: str, pp: int, chunks: int) -> tuple[int, ...]:
    """How a trainer cuts the blocks into pp x chunks stages.

    equal   as many in each; where that doesn't go, all are full but the last ones
    even    the same, but embedding, head and multi-token layers take a block's place each, as in
            Megatron Core's pipeline layout of DeepSeek-V3, `Et|(tt|)*30mL`
    balanced  this package's own: weights balanced, the head's with the last block (spec/placement.py)
    cost    nanotron's rule: a rank takes blocks until they exceed its share of the summed cost, head included
    """
    layers, stages = model.num_hidden_layers, pp * chunks
    if stages == 1:
        return (layers,)
    if split == "balanced" and stages <= layers:
        return balanced_layers(model, stages)
    if split == "cost" and chunks == 1:
        return _cut_by_cost(model, pp)
    extra = model.mtp_layers
    if layers % stages and split == "even" and (layers + 2 + extra) % stages == 0:
        inner = (layers + 2 + extra) // stages
        if inner > 1 + extra:
            return (inner - 1, *[inner] * (stages - 2), inner - 1 - extra)
    full = -(-layers // stages)
    return tuple(max(0, min(full, layers - full * stage)) for stage in range(stages))


def _cut_by_cost(model: ModelSpec, pp: int) -> tuple[int, ...]:
    """nanotron's `build_model`: block after block to a rank, until the share of the cost is exceeded."""
    d, f = model.hidden_size, model.intermediate_size
    block, head = 4.0 * d * d + 3.0 * d * f, float(model.vocab_size * d)
    total = model.num_hidden_layers * block + head
    counts, rank = [0] * pp, 0
    for layer in range(model.num_hidden_layers):
        counts[rank] += 1
        if (layer + 1) * block > total * (rank + 1) / pp:
            rank += 1
    return tuple(counts)


# -- numbers of units -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Facts:
    """Numbers of every unit, as arrays over units."""

    chips: dict[str, np.ndarray]
    trainers: dict[str, np.ndarray]
    works: dict[str, np.ndarray]


def unit_facts(units: Sequence[Unit]) -> Facts:
    """What the formulas read of devices, trainers and operator lists, gathered once a table."""
    return Facts(_chip_facts(units), _trainer_facts(units), _work_facts(units))


def _array(units: Sequence[Unit], of: object) -> np.ndarray:
    return np.array([float(of(u)) for u in units])  # type: ignore[operator]


def _chip_facts(units: Sequence[Unit]) -> dict[str, np.ndarray]:
    names = ("family", "memory_rate", "units", "capacity", "domain", "link_rate", "link_delay",
    "pair_rate", "node",
             "fabric_rate", "fabric_delay", "host_rate")  # fmt: skip
    found = {name: _array(units, lambda u, n=name: getattr(u.chip, n)) for name in names}
    peaks = [(u.chip.peak(u.precision), u.chip.peak("fp32" if u.precision in ("fp32", "tf32") else "bf16"))
             for u in units]  # fmt: skip
    found["peak"] = np.array([main[1] for main, _ in peaks])
    found["width"] = np.array([float(WIDTHS[main[0]]) for main, _ in peaks])
    found["peak16"] = np.array([plain[1] for _, plain in peaks])
    found["width16"] = np.array([float(WIDTHS[plain[0]]) for _, plain in peaks])
    found["measured"] = _array(units, lambda u: u.chip.measured)
    found["power"] = _array(units, _power)
    found["tpu"] = _array(units, lambda u: u.chip.kind == "tpu")
    found["xgmi"] = found["pair_rate"] < found["link_rate"]
    return found


def _power(unit: Unit) -> float:
    """The device's power limit over its generation's usual one; what isn't known counts as usual."""
    usual = constants().get(f"power.{FAMILIES[unit.chip.family]}", 0.0)
    limit = dict(unit.options).get("power_w")
    mine = float(limit) if limit else constants().get(f"power.{unit.chip.name}", usual)
    return mine / usual if usual else 1.0


def _trainer_facts(units: Sequence[Unit]) -> dict[str, np.ndarray]:
    def option(u: Unit, name: str) -> str | None:
        return dict(u.options).get(name)

    def kernels(u: Unit) -> str:
        usual = u.framework.kernels
        compiled = option(u, "compile") in ("1", "true") and usual in ("eager", "fused")
        return "compiled" if compiled else usual

    def host(u: Unit) -> str:
        compiled = option(u, "compile") in ("1", "true") and u.framework.host not in ("xla",)
        graphs = option(u, "cuda_graphs") in ("1", "true")
        return "xla" if graphs else "compiled" if compiled else u.framework.host

    found = {
        name: _array(units, lambda u, n=name: getattr(u.framework, n))
        for name in ("overlap_grads", "overlap_zero1", "overlap_params", "overlap_p2p", "grads", "logits",
        "year", "known", "dropout",
                     "buffers_gib", "gathered", "shared", "usable")
    }  # fmt: skip
    found["overlap_tp"] = _array(
        units,
        lambda u: (
            u.framework.overlap_tp
            if option(u, "tp_overlap") is None and option(u, "async_tp") is None
            else (option(u, "tp_overlap") in ("1", "true") or option(u, "async_tp") in ("1", "true"))
        ),
    )
    found["overlap_ep"] = _array(units, lambda u: option(u, "ep_overlap") in ("1", "true"))
    found["kernels"] = _array(units, lambda u: KERNELS.index(kernels(u)))
    found["host"] = _array(units, lambda u: HOSTS.index(host(u)))
    found["attention"] = _array(units, lambda u: ATTENTION.index(u.attention))
    found["split"] = _array(units, lambda u: SPLITS.index(u.framework.split))
    found["dedup"] = _array(units, lambda u: u.framework.year >= 2025 or option(u, "dispatcher") in NODE_WISE)
    found["own"] = _array(units, lambda u: u.framework.name == OWN)
    # this package's own: 16-bit copies beside the fp32 masters
    found["copies"] = _array(units, lambda u: 2.0 * (u.framework.name == OWN and WIDTHS[u.precision] > 0))
    found["by_block"] = _array(units, lambda u: u.framework.buckets == "block")
    found["whole_p2p"] = _array(units, lambda u: u.framework.p2p == "whole")
    found["capacity_factor"] = _array(units, lambda u: float(option(u, "capacity") or 1.0))
    for index, name in enumerate(("held_weights", "held_grads", "held_optimizer")):
        found[name] = _array(units, lambda u, i=index: u.framework.held[i])
    return found


def _work_facts(units: Sequence[Unit]) -> dict[str, np.ndarray]:
    works = [u.work for u in units]
    names = ("stream", "sparse", "routed", "key_value", "blocks")
    found = {name: np.array([float(getattr(one, name)) for one in works]) for name in names}
    found["kept"] = np.array([one.kept for one in works])  # [units, REGIONS, KEPT]
    found["dense"] = np.array([one.dense for one in works])  # [units, REGIONS]
    found["expert"] = np.array([one.expert for one in works])
    found["tied"] = np.array([w.tied_elements(u.model, u.sizes.tp) for u in units])
    found["vocab"] = np.array([float(u.model.vocab_size) for u in units])
    found["top_k"] = np.array([float(u.model.moe.top_k) if u.model.moe else 1.0 for u in units])
    found["parallel"] = np.array([float(u.model.residual != "sequential") for u in units])
    found["heads"] = np.array([float(u.model.num_attention_heads) for u in units])
    return found

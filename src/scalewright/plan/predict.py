"""The predicted cost of one layout or of a table of them; a single layout is a table of one row.

predict(model, cluster, layout, seq_len) -> Prediction      predict_rows(rows) -> one dict a row
predict_table(requests) -> Predictions (columns)            Prediction.dump() -> plain data
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from scalewright.plan.chips import constants_of
from scalewright.plan.constants import Constants
from scalewright.plan.cost.evaluate import Outcome, evaluate, prepare
from scalewright.plan.cost.memory import GIB, KINDS, SIGMA, Risk, risk
from scalewright.plan.cost.spread import Unseen, spread, unseen
from scalewright.plan.cost.timeline import PARTS
from scalewright.plan.cost.volumes import AXES
from scalewright.plan.records import LayoutKeys
from scalewright.plan.request import COPIED, Request, from_layout, from_question
from scalewright.plan.rows.cells import best_usual, text
from scalewright.plan.rows.rows import has_no_layout, request_of
from scalewright.spec.errors import UserError
from scalewright.spec.flops import flops_per_token
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.question import Question
from scalewright.spec.step_parts import PART_TERMS
from scalewright.spec.tensors import count

T = TypeVar("T")
CONVENTION = (
    "model FLOPs: matrix products with head, without recomputation; attention as causal mask and window leave"
    " it; forward and twice that for the backward; divided by the dense peak of the compute precision"
)


@dataclass
class Predictions:
    """The predictions for a list of requests, as columns."""

    requests: Sequence[Request]
    outcome: Outcome
    spread: dict[str, np.ndarray]  # standard deviations of log seconds by cause (cost/spread.py)

    @property
    def p50(self) -> np.ndarray:
        """Seconds of a step."""
        return self.outcome.step.seconds

    def sigma(self, without: Collection[str] = ()) -> np.ndarray:
        """The standard deviation of log seconds, of all causes but these."""
        return np.asarray(np.sqrt(sum(part**2 for cause, part in self.spread.items() if cause not in without)))

    @cached_property
    def p10(self) -> np.ndarray:
        """Seconds that one step of ten stays below."""
        return self.p50 * np.exp(-SIGMA * self.sigma())

    @cached_property
    def p90(self) -> np.ndarray:
        """Seconds that nine steps of ten stay below."""
        return self.p50 * np.exp(SIGMA * self.sigma())

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[Prediction]:
        return (Prediction(self, row) for row in range(len(self)))

    def __getitem__(self, row: int) -> Prediction:
        return Prediction(self, range(len(self))[row])


@dataclass(frozen=True)
class Prediction:
    """One row of `table`."""

    table: Predictions
    row: int

    @property
    def request(self) -> Request:
        """The request of this row."""
        return self.table.requests[self.row]

    def _of(self, column: np.ndarray, unit: float = 1.0) -> float:
        """This row's number."""
        return float(column[self.row]) / unit

    @property
    def step_time_s(self) -> float:
        """Seconds of a step, the median."""
        return self._of(self.table.p50)

    @property
    def band_s(self) -> tuple[float, float]:
        """Seconds of a step: p10 and p90."""
        return self._of(self.table.p10), self._of(self.table.p90)

    @property
    def fits(self) -> bool:
        """Whether the worst rank's median peak is within the usable memory of the device."""
        return bool(self._of(self.table.outcome.fits))

    @property
    def host_gib(self) -> tuple[float, float]:
        """GiB of a host's memory for each device: needed, and usable."""
        outcome = self.table.outcome
        return self._of(outcome.host, GIB), self._of(outcome.step.at.chip.host_bytes, GIB)

    @property
    def fits_host(self) -> bool:
        """Whether a node's host has the memory for what its devices offload, and for snapshots."""
        needed, usable = self.host_gib
        return needed <= usable

    @property
    def risk(self) -> Risk:
        """Whether it fits, by the band of the memory: fits, likely, unlikely or no."""
        if not self.fits_host:
            return "no"
        low, high = self.peak_band_gib
        return risk(self.usable_gib, low, self.peak_gib, high)

    def needs_gib(self, headroom: float | None) -> tuple[float, float]:
        """GiB needed (the band's p90) and usable; with a headroom the median, and the usable memory less that share."""
        if headroom is None:
            return self.peak_band_gib[1], self.usable_gib
        return self.peak_gib, self.usable_gib * (1.0 - headroom)

    @property
    def peak_gib(self) -> float:
        """GiB on the worst rank, the median."""
        return self._of(self.table.outcome.memory.peak, GIB)

    @property
    def peak_band_gib(self) -> tuple[float, float]:
        """GiB on the worst rank: p10 and p90."""
        return self._of(self.table.outcome.memory.low, GIB), self._of(self.table.outcome.memory.high, GIB)

    @property
    def usable_gib(self) -> float:
        """GiB that the device's trainer can use."""
        return self._of(self.table.outcome.memory.usable, GIB)

    @property
    def breakdown(self) -> dict[str, float]:
        """Seconds by part of a step; their sum is the median."""
        return {part: self._of(self.table.outcome.step.parts[part]) for part in PARTS}

    @property
    def memory_gib(self) -> dict[str, float]:
        """GiB on the worst rank by kind, and their sum as `peak`."""
        parts = self.table.outcome.memory.parts
        return {"peak": self.peak_gib, **{kind: self._of(parts[kind], GIB) for kind in KINDS}}

    @property
    def comm_bytes(self) -> dict[str, float]:
        """Bytes that the busiest device of each axis sends in a step (plan/cost/volumes.py)."""
        return {axis: self._of(self.table.outcome.step.bytes[axis]) for axis in AXES}

    @property
    def tokens(self) -> float:
        """Tokens of a step."""
        return self.request.global_batch * self.request.seq_len

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second, of all devices together."""
        return self.tokens / self.step_time_s

    def dump(self) -> dict[str, Any]:
        """The keys of an answer as plain data, without the explanations (plan/answer.py)."""
        request, seconds = self.request, self.step_time_s
        host = {"host_memory_gib": dict(zip(("needed", "usable"), self.host_gib, strict=True))}
        on_host = request.offload != "none" or request.host_copies > 0
        assumed = request.chip.host_assumed if on_host else []
        peak = request.chip.peak(request.precision)[1]
        step, kinds = self.table.outcome.step, self.table.outcome.memory.kinds
        model_rate, hardware_rate = (self._of(flops) / seconds / request.held_devices for flops in step.flops)
        p10, p90 = self.band_s
        return {
            "model": dict(_model_facts(request.model, request.seq_len)),
            "layout": layout_keys(request),
            "fits": self.fits,
            "risk": self.risk,
            "step_time_s": {"p10": p10, "p50": seconds, "p90": p90},
            "tokens_per_s": self.tokens_per_s,
            "tokens_per_s_per_device": self.tokens_per_s / request.held_devices,
            "tflops_per_device": model_rate / 1e12,
            "flops_convention": CONVENTION,
            "mfu": model_rate / peak,
            "hfu": hardware_rate / peak,
            "memory_gib": self.memory_gib,
            "memory_kind": "allocated",
            "memory_reserved_gib": self._of(kinds["reserved"], GIB),
            "memory_smi_gib": self._of(kinds["smi"], GIB),
            "memory_p10_p90_gib": list(self.peak_band_gib),
            "time_breakdown_s": self.breakdown,
            "comm_bytes": self.comm_bytes,
            "bottleneck": bottleneck(self),
            "assumed": [*request.assumed, *assumed],
            **(host if on_host else {}),
        }


@lru_cache(maxsize=4096)
def _model_facts(model: ModelSpec, seq_len: int) -> dict[str, float]:
    counts, per_token = count(model), flops_per_token(model, seq_len)
    return {"params": counts.total, "active_params": counts.active, "flops_per_token": per_token}


def layout_keys(request: Request) -> LayoutKeys:
    """The request's layout, in the keys of run files and flags."""
    batch = request.global_batch
    return {
        **{key: getattr(request, key) for key in (*COPIED, "dp", "stage_layers", "precision", "offload")},
        "global_batch": int(batch) if batch == int(batch) else batch,
        "recompute": _recompute(request),
    }


def _recompute(request: Request) -> Any:
    if request.recompute == "budget":
        return {"budget": request.share}
    if request.recompute == "share":
        return {"every": round(1 / request.share)}
    named = ("core", "modules", request.framework.selective)  # what trainers mean by the word
    return "selective" if request.recompute in named else request.recompute


def bottleneck(prediction: Prediction) -> str:
    """One line: the shares of computing and of the largest other part (from 3% up), the larger first."""
    shares = {name: seconds / prediction.step_time_s for name, seconds in prediction.breakdown.items()}
    computing = ("compute", shares.pop("compute"))
    name, share = max(shares.items(), key=lambda part: part[1])
    parts = [computing, (PART_TERMS[name], share)] if share >= 0.03 else [computing]
    (first, largest), *others = sorted(parts, key=lambda part: -part[1])
    rest = [f"{term}: {100 * share:.0f}%" for term, share in others]
    return "; ".join([f"{first}: {100 * largest:.0f}% of the step", *rest])


def predict_table(requests: Sequence[Request], c: Constants | None = None, new: Unseen | None = None) -> Predictions:
    """Predicts many requests at once: at least thousands a second; `new`: what other runs lack."""
    c = c or constants_of(request.chip for request in requests)
    prepared = prepare(requests, c)
    outcome = evaluate(prepared, c)
    return Predictions(requests, outcome, spread(outcome.step, requests, prepared.unknown, c, new or unseen(requests)))


Asking = Generator[Sequence[Request], list[Prediction], T]  # yields once the requests that it wants priced


def together(asking: Sequence[Asking[T]]) -> list[T]:
    """What these return, once one table has priced the requests of all, which costs little more than one of them."""
    wanted = [next(ask) for ask in asking]
    requests, results = [request for some in wanted for request in some], []
    predictions = iter(predict_table(requests) if requests else ())
    for ask, some in zip(asking, wanted, strict=True):
        try:
            ask.send(list(islice(predictions, len(some))))
        except StopIteration as end:
            results.append(end.value)
    return results


def price(question: Question, layout: Layout | None = None) -> Prediction:
    """The cost of a run in its own layout, or in another. Raises UserError for a cluster that can't run it."""
    return predict_table([from_question(question, layout)])[0]


def predict(
    model: ModelSpec, cluster: ClusterSpec, layout: Layout, seq_len: int | None = None, **facts: Any
) -> Prediction:
    """The cost of a layout; `facts`: as in `from_layout`. Raises UserError for a cluster that can't run it."""
    cluster.check_devices(layout.devices)
    length = model.context if seq_len is None else seq_len
    return predict_table([from_layout(model, cluster, layout, length, **facts)])[0]


def predict_rows(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The `dump()` of each row (in the columns of measured_runs.csv) with its id; or {id, error}."""
    rows = list(rows)
    resolved = resolve_rows(rows)
    requests = [request for request in resolved if isinstance(request, Request)]
    predictions = iter(predict_table(requests)) if requests else iter(())
    return [
        {"id": text(row, "id")}
        | ({"error": str(request)} if isinstance(request, UserError) else next(predictions).dump())
        for row, request in zip(rows, resolved, strict=True)
    ]


def resolve_rows(rows: Sequence[Mapping[str, Any]]) -> list[Request | UserError]:
    """Each row's request, or why there is none; a row without a layout gets the fastest usual one that fits."""
    resolved: list[Request | UserError] = []
    bare: dict[int, tuple[Request, Mapping[str, Any]]] = {}  # rows without a layout, by their index
    for index, row in enumerate(rows):
        try:
            resolved.append(request := request_of(row))
            if has_no_layout(row):
                bare[index] = request, row
        except UserError as error:
            resolved.append(error)
    if bare:
        for index, request in zip(bare, best_usual(list(bare.values())), strict=True):
            resolved[index] = request
    return resolved

"""One layout's cost, or a table's: the planner's answer in the words that users get.

    predict(model, cluster, layout, seq_len) -> Prediction          predict_rows(rows) -> one dict a row
    predict_table(requests) -> Predictions (columns)                 Prediction.dump() -> plain data

Both go through the same functions over arrays: a single layout is a table of one row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalewright.plan.band import quantiles, spread
from scalewright.plan.constants import Constants, constants
from scalewright.plan.evaluate import Outcome, evaluate, prepare
from scalewright.plan.memory import GIB, KINDS
from scalewright.plan.request import Request, from_layout
from scalewright.plan.rows import has_no_layout, request_of, text
from scalewright.plan.timeline import AXES, PARTS
from scalewright.spec.cluster import ClusterSpec
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.operators import flops_per_token
from scalewright.spec.tensors import count

CONVENTION = (
    "model FLOPs: matrix products with head, without recomputation; attention as causal mask and window leave it; "
    "forward and twice that for the backward; divided by the dense peak of the compute precision"
)


@dataclass
class Predictions:
    """A table's answers, columns beside the requests."""

    requests: Sequence[Request]
    outcome: Outcome
    p10: np.ndarray
    p90: np.ndarray

    @property
    def p50(self) -> np.ndarray:
        """Seconds of a step."""
        return self.outcome.step.seconds

    def __len__(self) -> int:
        return len(self.requests)

    def __getitem__(self, row: int) -> Prediction:
        return Prediction(self, range(len(self))[row])


@dataclass(frozen=True)
class Prediction:
    """One row's answer."""

    of: Predictions
    row: int

    @property
    def request(self) -> Request:
        """What was asked."""
        return self.of.requests[self.row]

    @property
    def step_time_s(self) -> float:
        """The median."""
        return float(self.of.p50[self.row])

    @property
    def fits(self) -> bool:
        """Whether the worst rank stays below what a device really allocates."""
        return bool(_memory(self.of).fits[self.row])

    @property
    def peak_gib(self) -> float:
        """Memory of the worst rank."""
        return float(_memory(self.of).peak[self.row] / GIB)

    @property
    def breakdown(self) -> dict[str, float]:
        """Seconds by part; they add up to the median."""
        return {part: float(self.of.outcome.step.parts[part][self.row]) for part in PARTS}

    @property
    def comm_bytes(self) -> dict[str, float]:
        """Bytes by axis, per device and step."""
        return {axis: float(self.of.outcome.step.bytes[axis][self.row]) for axis in AXES}

    @property
    def tokens(self) -> float:
        """Tokens of a step."""
        return self.request.global_batch * self.request.seq_len

    def dump(self) -> dict[str, Any]:
        """Plain data: keys as users get them, without what only explains (see plan/explain.py)."""
        request, seconds, i = self.request, self.step_time_s, self.row
        counted = count(request.model)
        per_token = flops_per_token(request.model, request.seq_len)
        rate = self.tokens / seconds
        peak = request.chip.peak(request.precision)[1]
        step = self.of.outcome.step
        model_rate, hardware_rate = (float(x[i]) / seconds / request.devices for x in (step.flops, step.hardware))
        held = _memory(self.of)
        return {
            "model": {"params": counted.total, "active_params": counted.active, "flops_per_token": per_token},
            "layout": layout_keys(request),
            "fits": self.fits,
            "step_time_s": {"p10": float(self.of.p10[i]), "p50": seconds, "p90": float(self.of.p90[i])},
            "tokens_per_s": rate,
            "tokens_per_s_per_device": rate / request.devices,
            "tflops_per_device": model_rate / 1e12,
            "flops_convention": CONVENTION,
            "mfu": model_rate / peak,
            "hfu": hardware_rate / peak,
            "memory_gib": {"peak": self.peak_gib, **{k: float(held.parts[k][i] / GIB) for k in KINDS}},
            "time_breakdown_s": self.breakdown,
            "comm_bytes": self.comm_bytes,
            "bottleneck": bottleneck(self),
            "assumed": list(request.assumed),
        }


def _memory(found: Predictions) -> Any:
    held = found.outcome.memory
    assert held is not None, "priced without memory"
    return held


def layout_keys(request: Request) -> dict[str, Any]:
    """The layout in the words of files and flags."""
    batch = request.global_batch
    return {
        "devices": request.devices, "tp": request.tp, "sp": request.sp, "pp": request.pp,
        "virtual_stages": request.chunks, "schedule": request.schedule, "stage_layers": request.stage_layers,
        "cp": request.cp, "cp_kind": request.cp_kind, "ep": request.ep, "etp": request.etp, "dp": request.dp,
        "dp_replicate": request.replicate, "zero_stage": request.zero, "micro_batch": request.micro_batch,
        "global_batch": int(batch) if batch == int(batch) else batch, "recompute": request.recompute,
        "precision": request.precision, "offload": request.offload,
    }  # fmt: skip


_WORDS = {
    "compute": "matrix products, attention and memory-bound kernels", "recompute": "recomputation of activations",
    "tp_exposed": "tensor-parallel exchange", "dp_exposed": "gradients and parameters that nothing hides",
    "cp_exposed": "context-parallel exchange", "ep_exposed": "dispatch to experts and back",
    "pp_bubble": "the pipeline's fill and drain", "pp_exposed": "messages between pipeline stages",
    "optimizer": "the optimizer's step", "other": "the host, stragglers and what a step always costs",
}  # fmt: skip


def bottleneck(found: Prediction) -> str:
    """One line: what takes the most time beside computing, and how much computing there is."""
    parts, total = found.breakdown, found.step_time_s
    rest = {name: value for name, value in parts.items() if name != "compute"}
    name = max(rest, key=lambda key: rest[key])
    compute = 100 * parts["compute"] / total
    if rest[name] < 0.03 * total:
        return f"compute: {compute:.0f}% of the step is {_WORDS['compute']}"
    return f"{name}: {100 * rest[name] / total:.0f}% of the step is {_WORDS[name]}; {compute:.0f}% computes"


def predict_table(requests: Sequence[Request], c: Constants | None = None) -> Predictions:
    """Prices many requests at once; at least thousands a second."""
    c = c or constants()
    prepared = prepare(requests, c)
    outcome = evaluate(prepared, c)
    p10, p90 = quantiles(outcome.step.seconds, spread(outcome, requests, prepared.unknown, c))
    return Predictions(requests, outcome, p10, p90)


def predict(
    model: ModelSpec,
    cluster: ClusterSpec,
    layout: Layout,
    seq_len: int | None = None,
    *,
    framework: str = "scalewright",
    version: str | None = None,
    options: Mapping[str, str] | None = None,
    c: Constants | None = None,
) -> Prediction:
    """The cost of one layout. Raises UserError when the cluster is too small or lacks the precision."""
    cluster.check_devices(layout.devices)
    request = from_layout(model, cluster, layout, seq_len or model.context, framework, version, options)
    return predict_table([request], c)[0]


def predict_rows(rows: Iterable[Mapping[str, Any]], c: Constants | None = None) -> list[dict[str, Any]]:
    """Rows in the columns of the measured runs, each as `dump()` with its id; or {id, error}."""
    answers: list[dict[str, Any]] = []
    requests: list[Request] = []
    places: list[int] = []
    for row in rows:
        try:
            requests.append(resolve(row, c))
            places.append(len(answers))
            answers.append({"id": text(row, "id")})
        except UserError as error:
            answers.append({"id": text(row, "id"), "error": str(error)})
    if requests:
        found = predict_table(requests, c)
        for index, place in enumerate(places):
            answers[place] |= found[index].dump()
    return answers


def resolve(row: Mapping[str, Any], c: Constants | None = None) -> Request:
    """A row's request; where the row says nothing of the layout, the fastest of the usual ones that fit."""
    request = request_of(row)
    if not has_no_layout(row):
        return request
    from scalewright.plan.usual import best_usual  # only rows without a layout need it

    return best_usual(request, row, c)

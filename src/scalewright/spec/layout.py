"""The layout: how a run is split over devices; planner, trainer and report use the same object.

    devices = pp x dp_replicate x dp_shard x cp x tp          (outermost first)
    dp      = dp_replicate x dp_shard = devices / (tp x pp x cp)
    experts: ep x etp x efsdp = dp_shard x cp x tp

Checks of these numbers alone are here, those against the model and the sequence length in `layout_check.py`.
Each error names the two values in conflict and one that works.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ModelWrapValidatorHandler, model_validator

from scalewright.spec.base import Spec
from scalewright.spec.errors import UserError
from scalewright.spec.schedules.kinds import KINDS

Precision = Literal["auto", "fp32", "tf32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4", "int8"]
ScheduleName = Literal[
    "gpipe", "1f1b", "interleaved", "zb-h1", "zb-interleaved", "zbv", "dualpipev", "pipedream", "dualpipe"
]
MOST = 1 << 20  # devices, or sequences of a batch: ten times what anyone has


class RecomputeEvery(Spec):
    """Full recomputation of every n-th block."""

    every: int = Field(ge=1)


class RecomputeBudget(Spec):
    """Recompute so that activations take at most this share of what `none` keeps."""

    budget: float = Field(ge=0, le=1)


Recompute = Literal["none", "selective", "full"] | RecomputeEvery | RecomputeBudget


class Layout(Spec):
    """The sizes of every mesh axis, the batch, and the techniques that trade time for memory."""

    devices: int = Field(1, ge=1, le=MOST)
    tp: int = Field(1, ge=1)
    sp: bool = False  # null in a file: derived by `_filled`, as the other three there
    pp: int = Field(1, ge=1)
    virtual_stages: int = Field(1, ge=1)
    schedule: ScheduleName = "1f1b"
    stage_layers: tuple[int, ...] | None = None
    cp: int = Field(1, ge=1)
    cp_kind: Literal["ring", "ulysses", "allgather"] = "ring"
    ep: int = Field(1, ge=1)
    etp: int = Field(1, ge=1)
    dp_replicate: int = Field(1, ge=1)
    zero_stage: Literal[0, 1, 2, 3] = 0
    micro_batch: int = Field(1, ge=1, le=MOST)
    global_batch: int = Field(1, ge=1, le=MOST)
    recompute: Recompute = "none"
    precision: Precision = "auto"
    offload: Literal["none", "optimizer", "parameters", "activations", "all"] = "none"

    @model_validator(mode="wrap")
    @classmethod
    def _derive(cls, data: Any, validate: ModelWrapValidatorHandler[Layout]) -> Layout:
        """Fills the nulls of sp, virtual_stages, zero_stage and global_batch; they don't count as set."""
        if not isinstance(data, dict):
            return validate(data)
        stated = {key for key, value in data.items() if value is not None}
        layout = validate(cls._filled(data))
        layout.__pydantic_fields_set__.intersection_update(stated)
        return layout

    @staticmethod
    def _filled(given: Mapping[str, Any]) -> dict[str, object]:
        data = dict(given)

        def get(key: str, default: int = 1) -> int:
            value = data.get(key, default)
            return value if isinstance(value, int) and value > 0 else default

        tp, pp, cp = get("tp"), get("pp"), get("cp")
        _check_recompute(data.get("recompute"))
        if isinstance(data.get("stage_layers"), str):
            data["stage_layers"] = _read_stage_layers(data["stage_layers"], pp * get("virtual_stages"))
        if data.get("sp") is None:
            data["sp"] = tp > 1
        if data.get("virtual_stages") is None:
            data["virtual_stages"] = 2 if _is_chunked(data.get("schedule", "1f1b")) else 1
        if data.get("zero_stage") is None:
            data["zero_stage"] = _usual_zero(get("devices"), pp, data.get("offload"))
        if data.get("global_batch") is None:
            data["global_batch"] = get("micro_batch") * max(1, get("devices") // (tp * pp * cp))
        return data

    @model_validator(mode="after")
    def _check(self) -> Layout:
        product = self.tp * self.pp * self.cp
        if self.devices % product:
            sizes = [(n, v) for n, v in (("tp", self.tp), ("pp", self.pp), ("cp", self.cp)) if v > 1]
            parts = " x ".join(f"{n} {v}" for n, v in sizes) + (f" = {product}" if len(sizes) > 1 else "")
            axis, size = sizes[0]
            alone = f", or {axis} {nearest_divisor(self.devices, size)}" if len(sizes) == 1 else ""
            how = f"use devices {max(1, round(self.devices / product)) * product}{alone}"
            raise UserError(f"devices {self.devices} is not divisible by {parts}", "layout", how)
        if self.dp % self.dp_replicate:
            problem = f"dp_replicate {self.dp_replicate} does not divide dp {self.dp} (devices / (tp x pp x cp))"
            raise UserError(problem, "layout", f"use dp_replicate {nearest_divisor(self.dp, self.dp_replicate)}")
        expert_ranks = self.dp_shard * self.cp * self.tp
        if expert_ranks % (self.ep * self.etp):
            problem = f"ep {self.ep} x etp {self.etp} does not divide dp_shard x cp x tp = {expert_ranks}"
            raise UserError(problem, "layout", f"use ep {nearest_divisor(expert_ranks, self.ep)} and etp 1")
        samples = self.micro_batch * self.dp
        if self.global_batch % samples:
            parts = f"micro_batch {self.micro_batch} x dp {self.dp} = {samples}"
            how = f"use global_batch {max(1, round(self.global_batch / samples)) * samples}"
            raise UserError(f"global_batch {self.global_batch} is not divisible by {parts}", "layout", how)
        if self.sp and self.tp == 1:
            raise UserError("sp is true but tp is 1", "layout", "use sp false")
        if self.pp == 1 and self.virtual_stages > 1:
            chunked = _is_chunked(self.schedule)
            key = f"schedule {self.schedule}" if chunked else f"virtual_stages {self.virtual_stages}"
            how = "use schedule 1f1b and virtual_stages 1" + ("" if self.devices % 2 else ", or pp 2")
            raise UserError(f"{key} needs a pipeline but pp is 1", "layout", how)
        return self

    def stated(self) -> dict[str, object]:
        """The keys that were set, as plain data: neither defaults nor derived."""
        return {key: value for key, value in self.dump().items() if key in self.model_fields_set}

    @property
    def dp(self) -> int:
        """Data-parallel ranks: what is left of the devices."""
        return self.devices // (self.tp * self.pp * self.cp)

    @property
    def dp_shard(self) -> int:
        """Ranks that share one copy of the parameters."""
        return self.dp // self.dp_replicate

    @property
    def accumulation(self) -> int:
        """Micro-batches per data-parallel rank and optimizer step."""
        return self.global_batch // (self.micro_batch * self.dp)

    @property
    def stages(self) -> int:
        """Parts that the model is cut into, virtual stages counted (dualpipe has each part twice)."""
        return KINDS[self.schedule].parts(self.pp, self.virtual_stages)


def _read_stage_layers(text: str, stages: int) -> list[int]:
    """`0,1x126,0`: none, one layer in each of 126 stages, none; also as `0,126x1,0` where that makes `stages`."""
    runs = [
        re.fullmatch(r"(\d{1,6})(?:[x*](\d{1,6}))?", part.replace(" ", "")) for part in text.strip("[] ").split(",")
    ]
    sizes = [(int(run[1]), int(run[2] or 1), run[2]) for run in runs if run]
    if len(sizes) < len(runs) or sum(max(size[:2]) for size in sizes if size[2]) > MOST:
        how = "give whole numbers: 10,11,11,10, or layers x stages: 0,1x126,0"
        raise UserError(f"stage_layers is '{text}'", "layout.stage_layers", how)
    turned = [(each, times) if by is None else (times, each) for each, times, by in sizes]
    plain, other = ([each for each, times, *_ in parts for _ in range(times)] for parts in (sizes, turned))
    return other if len(other) == stages != len(plain) else plain


def _is_chunked(schedule: Any) -> bool:
    """Whether a schedule has several stages per rank; False for an unknown one, which validation refuses."""
    return isinstance(schedule, str) and schedule in KINDS and KINDS[schedule].chunked


def _usual_zero(devices: int, pp: int, offload: Any) -> int:
    # with a pipeline, stage 3 would gather the parameters again for every micro-batch; offloaded ones need it
    return 3 if offload in ("parameters", "all") else 0 if devices == 1 else 1 if pp > 1 else 3


def _check_recompute(value: Any) -> None:
    """Raises UserError for a number out of range; pydantic's message for the whole union is less clear."""
    if not isinstance(value, dict) or len(value) != 1:
        return
    (kind, number), *_ = value.items()
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return
    if kind == "budget" and not 0 <= number <= 1:
        how = f"use recompute {{budget: {min(1.0, max(0.0, number))}}}"
        raise UserError(f"recompute budget {number} is not a share between 0 and 1", "layout", how)
    if kind == "every" and number < 1:
        how = "use recompute {every: 1}, or none"
        raise UserError(f"recompute every {number} is not a number of blocks, 1 or more", "layout", how)


def nearest_divisor(number: int, target: int) -> int:
    """The divisor of `number` nearest to `target`."""
    return min((d for d in range(1, number + 1) if number % d == 0), key=lambda d: (abs(d - target), d))

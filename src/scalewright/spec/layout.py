"""How a run is split over devices: the same object in the planner, the trainer and the report.

    devices = pp x dp_replicate x dp_shard x cp x tp          (outermost first)
    dp      = dp_replicate x dp_shard = devices / (tp x pp x cp)
    experts: ep x etp x efsdp = dp_shard x cp x tp

Checks that need only these numbers are made here; those that need the model or the sequence length, in
`check_layout`. Each error names the two values in conflict and one that would work.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from scalewright.spec.base import Spec
from scalewright.spec.errors import UserError
from scalewright.spec.model import ModelSpec

Precision = Literal["auto", "fp32", "tf32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4", "int8"]
Schedule = Literal[
    "gpipe", "1f1b", "interleaved", "zb-h1", "zb-interleaved", "zbv", "dualpipev", "pipedream", "dualpipe"
]
CHUNKED = frozenset({"interleaved", "zb-interleaved", "zbv", "dualpipev", "dualpipe"})


class RecomputeEvery(Spec):
    """Full recomputation of every n-th block."""

    every: int = Field(ge=1)


class RecomputeBudget(Spec):
    """Recompute so that activations take at most this share of what `none` keeps."""

    budget: float = Field(ge=0, le=1)


Recompute = Literal["none", "selective", "full"] | RecomputeEvery | RecomputeBudget


class Layout(Spec):
    """The sizes of every mesh axis, the batch, and the techniques that trade time for memory."""

    devices: int = Field(1, ge=1)
    tp: int = Field(1, ge=1)
    sp: bool | None = None
    pp: int = Field(1, ge=1)
    virtual_stages: int | None = Field(None, ge=1)
    schedule: Schedule = "1f1b"
    stage_layers: tuple[int, ...] | None = None
    cp: int = Field(1, ge=1)
    cp_kind: Literal["ring", "ulysses", "allgather"] = "ring"
    ep: int = Field(1, ge=1)
    etp: int = Field(1, ge=1)
    dp_replicate: int = Field(1, ge=1)
    zero_stage: Literal[0, 1, 2, 3] | None = None
    micro_batch: int = Field(1, ge=1)
    global_batch: int | None = Field(None, ge=1)
    recompute: Recompute = "none"
    precision: Precision = "auto"
    offload: Literal["none", "optimizer", "parameters", "activations", "all"] = "none"

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, data: Any) -> Any:
        """Fills the nulls: sp, virtual_stages, zero_stage and global_batch."""
        if not isinstance(data, dict):
            return data
        data = dict(data)

        def get(key: str, default: int = 1) -> int:
            value = data.get(key, default)
            return value if isinstance(value, int) and value > 0 else default

        tp, pp, cp = get("tp"), get("pp"), get("cp")
        if data.get("sp") is None:
            data["sp"] = tp > 1
        if data.get("virtual_stages") is None:
            data["virtual_stages"] = 2 if data.get("schedule", "1f1b") in CHUNKED else 1
        if data.get("zero_stage") is None:
            data["zero_stage"] = 0 if get("devices") == 1 else 3
        if data.get("global_batch") is None:
            data["global_batch"] = get("micro_batch") * max(1, get("devices") // (tp * pp * cp))
        return data

    @model_validator(mode="after")
    def _check(self) -> Layout:
        product = self.tp * self.pp * self.cp
        if self.devices % product:
            parts = " x ".join(
                f"{n} {v}" for n, v in (("tp", self.tp), ("pp", self.pp), ("cp", self.cp)) if v > 1
            )
            raise UserError(
                f"devices {self.devices} is not divisible by {parts}"
                + (f" = {product}" if " x " in parts else ""),
                "layout",
                f"use devices {max(1, round(self.devices / product)) * product}",
            )
        if self.dp % self.dp_replicate:
            raise UserError(
                f"dp_replicate {self.dp_replicate} does not divide dp {self.dp} (devices / (tp x pp x cp))",
                "layout",
                f"use dp_replicate {_nearest_divisor(self.dp, self.dp_replicate)}",
            )
        expert_ranks = self.dp_shard * self.cp * self.tp
        if expert_ranks % (self.ep * self.etp):
            raise UserError(
                f"ep {self.ep} x etp {self.etp} does not divide dp_shard x cp x tp = {expert_ranks}",
                "layout",
                f"use ep {_nearest_divisor(expert_ranks, self.ep)} with etp 1",
            )
        samples = self.micro_batch * self.dp
        if self.batch % samples:
            raise UserError(
                f"global_batch {self.batch} is not divisible by "
                f"micro_batch {self.micro_batch} x dp {self.dp} = {samples}",
                "layout",
                f"use global_batch {max(1, round(self.batch / samples)) * samples}",
            )
        if self.sp and self.tp == 1:
            raise UserError("sp is true but tp is 1", "layout", "set sp false, or tp 2")
        if self.pp == 1 and (self.virtual_stages or 1) > 1 and self.schedule in CHUNKED:
            raise UserError(
                f"schedule {self.schedule} needs a pipeline but pp is 1",
                "layout",
                "use pp 2, or schedule 1f1b",
            )
        return self

    @property
    def dp(self) -> int:
        """Data-parallel ranks: what is left of the devices."""
        return self.devices // (self.tp * self.pp * self.cp)

    @property
    def dp_shard(self) -> int:
        """Ranks that share one copy of the parameters."""
        return self.dp // self.dp_replicate

    @property
    def batch(self) -> int:
        """Sequences per optimizer step (`global_batch`, resolved)."""
        return self.global_batch or self.micro_batch * self.dp

    @property
    def accumulation(self) -> int:
        """Micro-batches per data-parallel rank and optimizer step."""
        return self.batch // (self.micro_batch * self.dp)

    @property
    def stages(self) -> int:
        """Parts that the model is cut into, virtual stages counted (dualpipe has each part twice)."""
        return self.pp * (1 if self.schedule == "dualpipe" else self.virtual_stages or 1)


def check_layout(layout: Layout, model: ModelSpec, seq_len: int | None = None) -> None:
    """Raises UserError when this model (or this sequence length) can't be split so."""
    if problem := _tp_problem(layout.tp, model):
        fitting = [
            tp
            for tp in range(1, model.num_attention_heads + 1)
            if not _tp_problem(tp, model) and layout.devices % (tp * layout.pp * layout.cp) == 0
        ]
        best = min(fitting or [1], key=lambda tp: (abs(tp - layout.tp), tp))
        raise UserError(problem, "layout", f"use tp {best}")
    if layout.stages > model.num_hidden_layers:
        raise UserError(
            f"{layout.stages} pipeline stages (pp {layout.pp} x virtual_stages {layout.virtual_stages}) "
            f"are more than {model.num_hidden_layers} layers",
            "layout",
            f"use pp {_largest_pp(layout, model)}",
        )
    if layout.pp > 1:
        from scalewright.spec.schedule import check_schedule  # it reads layouts itself

        check_schedule(layout)
    if layout.stage_layers is not None:
        _check_stage_layers(layout, model)
    if layout.ep > 1:
        experts = model.moe.num_experts if model.moe else 0
        if experts % layout.ep or not experts:
            how = (
                f"use ep {_nearest_divisor(experts, layout.ep)}"
                if experts
                else "use ep 1: this model has no experts"
            )
            raise UserError(f"num_experts {experts} is not divisible by ep {layout.ep}", "layout", how)
    if seq_len is not None:
        _check_sequence(layout, model, seq_len)


def _tp_problem(tp: int, model: ModelSpec) -> str | None:
    """Why a model can't be split over `tp` ranks; None when it can."""
    if model.num_attention_heads % tp:
        return f"num_attention_heads {model.num_attention_heads} is not divisible by tp {tp}"
    if model.intermediate_size % tp:
        return f"intermediate_size {model.intermediate_size} is not divisible by tp {tp}"
    kv = model.kv_heads
    if max(kv, tp) % min(kv, tp):
        return f"num_key_value_heads {kv} and tp {tp}: neither divides the other"
    return None


def _largest_pp(layout: Layout, model: ModelSpec) -> int:
    """The most pipeline ranks that the layers are enough for and that divide the devices."""
    most = max(1, model.num_hidden_layers // (layout.virtual_stages or 1))
    return max(pp for pp in range(1, most + 1) if layout.devices % (pp * layout.tp * layout.cp) == 0)


def _check_stage_layers(layout: Layout, model: ModelSpec) -> None:
    given = layout.stage_layers or ()
    if len(given) != layout.stages:
        raise UserError(
            f"stage_layers has {len(given)} entries but there are {layout.stages} stages",
            "layout",
            f"give {layout.stages} numbers, or null to balance by cost",
        )
    if sum(given) != model.num_hidden_layers:
        raise UserError(
            f"stage_layers sums to {sum(given)} but the model has {model.num_hidden_layers} layers",
            "layout",
            "make them sum to the layers, or null to balance by cost",
        )


def _check_sequence(layout: Layout, model: ModelSpec, seq_len: int) -> None:
    split = (
        layout.cp * (2 if layout.cp > 1 and layout.cp_kind == "ring" else 1) * (layout.tp if layout.sp else 1)
    )
    if seq_len % split:
        raise UserError(
            f"seq_len {seq_len} is not divisible by the {split} parts that cp {layout.cp} and sp cut it into",
            "layout",
            f"use seq_len {max(1, round(seq_len / split)) * split}",
        )
    if layout.cp > 1 and layout.cp_kind == "ulysses" and model.num_attention_heads % (layout.tp * layout.cp):
        raise UserError(
            f"num_attention_heads {model.num_attention_heads} is not divisible by tp x cp = "
            f"{layout.tp * layout.cp}, which cp_kind ulysses needs",
            "layout",
            f"use cp {_nearest_divisor(model.num_attention_heads // layout.tp, layout.cp)}, or cp_kind ring",
        )


def _nearest_divisor(number: int, wanted: int) -> int:
    """The divisor of `number` nearest to `wanted`."""
    return min((d for d in range(1, number + 1) if number % d == 0), key=lambda d: (abs(d - wanted), d))

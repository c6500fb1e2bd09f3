"""What is asked of the planner, resolved: one run, every number known, and what had to be assumed for it.

    model x cluster x layout x trainer x length --> Request --> a row of the table that the formulas read

A `Layout` of the spec becomes one, and so does a row of a table of measured runs, which may hold what no
legal layout would (a batch that doesn't divide, micro-batches that aren't whole on average).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scalewright.plan.chips import Chip, chip_of
from scalewright.plan.curves import narrow_is_fast
from scalewright.plan.frameworks import FUSED_ATTENTION, Framework, find_framework
from scalewright.spec.block import Sizes
from scalewright.spec.cluster import ClusterSpec
from scalewright.spec.layout import Layout, RecomputeBudget, RecomputeEvery
from scalewright.spec.model import ModelSpec

SCHEDULES = (
    "gpipe",
    "1f1b",
    "interleaved",
    "zb-h1",
    "zb-interleaved",
    "zbv",
    "dualpipev",
    "pipedream",
    "dualpipe",
)
OFFLOADS = ("none", "optimizer", "parameters", "activations", "all")
CP_KINDS = ("ring", "ulysses", "allgather")


@dataclass(frozen=True)
class Request:
    """One run to be priced; `micros` are the micro-batches of a step on one data-parallel rank."""

    model: ModelSpec
    chip: Chip
    framework: Framework
    precision: str
    seq_len: int
    devices: int
    tp: int = 1
    sp: bool = False
    pp: int = 1
    chunks: int = 1
    schedule: str = "1f1b"
    cp: int = 1
    cp_kind: str = "ring"
    ep: int = 1
    etp: int = 1
    replicate: int = 1
    zero: int = 0
    micro_batch: int = 1
    micros: float = 1.0
    recompute: str = "none"  # none, core, selective, full, share, unknown
    share: float = 1.0  # of the blocks that recompute, where recompute is "share"
    offload: str = "none"
    stage_layers: tuple[int, ...] | None = None
    flash: bool | None = None  # null: the trainer's own default
    options: Mapping[str, str] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()

    @property
    def dp(self) -> int:
        """Data-parallel ranks."""
        return max(1, self.devices // (self.tp * self.pp * self.cp))

    @property
    def global_batch(self) -> float:
        """Sequences of a step."""
        return self.micros * self.micro_batch * self.dp

    @property
    def attention(self) -> str:
        """The kernel of attention: the trainer's, unless the run says otherwise."""
        usual = self.framework.attention
        if self.flash is None:
            return usual
        if self.flash:
            return usual if usual in FUSED_ATTENTION else "flash"
        return usual if usual in ("unfused", "softmax") else "softmax"

    @property
    def sizes(self) -> Sizes:
        """What one rank sees of a micro-batch."""
        width = 4 if self.precision in ("fp32", "tf32") else 2
        return Sizes(
            self.micro_batch, self.seq_len, self.tp, self.sp and self.tp > 1, self.cp, self.ep, self.etp,
            width,
            "fused",
        )  # fmt: skip


def auto_precision(chip: Chip, precision: str) -> str:
    """`auto`: bf16 where the device has it fast, else fp32 (as the trainer resolves it)."""
    if precision != "auto":
        return precision
    if chip.timings is not None:
        return "bf16" if narrow_is_fast(chip.timings) else "fp32"
    return "bf16" if "bf16" in dict(chip.peaks) and chip.kind != "cpu" else "fp32"


def from_layout(
    model: ModelSpec,
    cluster: ClusterSpec,
    layout: Layout,
    seq_len: int,
    framework: str = "scalewright",
    version: str | None = None,
    options: Mapping[str, str] | None = None,
) -> Request:
    """A layout of the spec as a request; what is illegal is found by the layout's own checks."""
    given = dict(options or {})
    trainer = find_framework(framework, version)
    gbps = given.get("node_gbps")
    chip = chip_of(cluster, float(gbps) if gbps else None)
    kind, share = "none", 1.0
    if isinstance(layout.recompute, RecomputeEvery):
        kind, share = "share", 1 / layout.recompute.every
    elif isinstance(layout.recompute, RecomputeBudget):
        kind, share = "share", 1 - layout.recompute.budget
    else:
        kind = layout.recompute
        if kind == "selective" and trainer.name != "scalewright":
            kind = trainer.selective  # elsewhere the word means something else
    precision = auto_precision(chip, layout.precision)
    chip.peak(precision)  # raises when the device can't
    return Request(
        model, chip, trainer, precision, seq_len, layout.devices, layout.tp,
        bool(layout.sp), layout.pp, layout.virtual_stages or 1, layout.schedule, layout.cp, layout.cp_kind,
        layout.ep, layout.etp, layout.dp_replicate, layout.zero_stage or 0, layout.micro_batch,
        float(layout.accumulation), kind, share, layout.offload, layout.stage_layers, None, given, (),
    )  # fmt: skip

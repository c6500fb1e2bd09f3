"""A request: one run to predict, with every number resolved and the assumptions made for it.

    model, cluster, layout, trainer, length --> Request --> a row of the formulas' table

It is built from a `Layout` of the spec, or from a row of measured runs (plan/rows), whose values needn't be
legal in a layout: a batch that doesn't divide, or a fractional mean number of micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from scalewright.plan.chips import WIDTHS, Chip, chip_of
from scalewright.plan.curves import narrow_is_fast
from scalewright.plan.frameworks import FUSED_ATTENTION, OURS, Framework, find_framework
from scalewright.plan.switches import NO_SWITCHES, Switches, read_switches
from scalewright.spec.compress import Compress, applicable, check_compress
from scalewright.spec.diloco import DilocoSpec
from scalewright.spec.errors import UserError
from scalewright.spec.expert_volumes import kept_share
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.layout import Layout, RecomputeBudget, RecomputeEvery
from scalewright.spec.model import ModelSpec
from scalewright.spec.optimizers import ADAMW, Optimizer
from scalewright.spec.primitives import Kernels, Sizes
from scalewright.spec.question import Question
from scalewright.spec.run import CheckpointSpec, DataSpec, OptimizerSpec
from scalewright.spec.schedules.kinds import KINDS

SCHEDULES = tuple(KINDS)
OFFLOADS = ("none", "optimizer", "parameters", "activations", "all")
CP_KINDS = ("ring", "ulysses", "allgather")
# Keys of a layout that a request copies
COPIED = (
    "devices", "tp", "sp", "pp", "virtual_stages", "schedule", "cp", "cp_kind", "ep", "etp", "dp_replicate",
    "zero_stage", "micro_batch",
)  # fmt: skip


@dataclass(frozen=True)
class Request:
    """One run to predict; `accumulation`: micro-batches of a step on one data-parallel rank."""

    model: ModelSpec
    chip: Chip
    framework: Framework
    precision: str
    seq_len: int
    devices: int  # with a share of the batch
    idle_devices: int = 0  # of the run, beside them, without a share of the batch
    tp: int = 1
    sp: bool = False
    pp: int = 1
    virtual_stages: int = 1
    schedule: str = "1f1b"
    cp: int = 1
    cp_kind: str = "ring"
    ep: int = 1
    etp: int = 1
    dp_replicate: int = 1
    zero_stage: int = 0
    micro_batch: int = 1
    accumulation: float = 1.0
    recompute: str = "none"  # one of cost.table.RECOMPUTE
    share: float = 1.0  # with recompute "share": of blocks that recompute; with "budget": the budget
    offload: str = "none"
    stage_layers: tuple[int, ...] | None = None
    flash: bool | None = None  # null: the trainer's own default
    switches: Switches = NO_SWITCHES
    optimizer: Optimizer = ADAMW  # other trainers are priced with AdamW only
    compress: Compress = "none"  # of gradients; of this package's own trainer
    documents: bool = True  # several per row of tokens, masked from each other (our default)
    diloco: DilocoSpec | None = None  # replicas are islands
    host_copies: int = 0  # of all that a checkpoint holds, in the memory of the hosts
    assumed: tuple[str, ...] = ()

    @property
    def dp(self) -> int:
        """Data-parallel ranks."""
        return max(1, self.devices // (self.tp * self.pp * self.cp))

    @property
    def held_devices(self) -> int:
        """All devices of the run; rates per device divide by these."""
        return self.devices + self.idle_devices

    @property
    def global_batch(self) -> float:
        """Sequences of a step."""
        return self.accumulation * self.micro_batch * self.dp

    @property
    def attention(self) -> str:
        """The attention kernel: the trainer's, unless `flash` states one."""
        usual = self.framework.attention
        if self.flash is None or self.flash == (usual in FUSED_ATTENTION):
            return usual
        return "flash" if self.flash else "softmax"

    @property
    def sizes(self) -> Sizes:
        """The sizes of a micro-batch on one rank."""
        return Sizes(
            batch=self.micro_batch,
            **{name: getattr(self, name) for name in ("seq_len", "tp", "cp", "ep", "etp")},
            sp=self.sp and self.tp > 1,
            width=4 if self.precision in ("fp32", "tf32") else 2,
            attention="fused",
            kernels=self._kernels,
            documents=self.documents and self._kernels != "fused",
        )

    @property
    def _kernels(self) -> Kernels:
        if self.framework.name != OURS:
            return "fused"
        return "cuda" if self.chip.kind == "gpu" else "cpu"


def auto_precision(chip: Chip, precision: str) -> str:
    """The precision, `auto` resolved as the trainer does: bf16 where that is fast, fp16 on older GPUs, else fp32."""
    if precision != "auto":
        return precision
    if chip.timings is not None:
        return "bf16" if narrow_is_fast(chip.timings) else "fp32"
    return chip.half if chip.kind != "cpu" else "fp32"


def from_layout(
    model: ModelSpec,
    cluster: ClusterSpec,
    layout: Layout,
    seq_len: int,
    framework: str = OURS,
    version: str | None = None,
    options: Mapping[str, str] | None = None,
    *,
    optimizer: Optimizer = ADAMW,
    compress: Compress = "none",
    documents: bool = True,
    diloco: DilocoSpec | None = None,
    host_copies: int = 0,
) -> Request:
    """A layout of the spec as a request, its legality unchecked. Raises UserError for a precision that isn't there;
    a GPU without bf16 would emulate it many times as slowly as fp16, and trainers stop at their start."""
    switches = read_switches(options or {}, "--options")
    trainer = find_framework(framework, version, cluster.device.kind, WIDTHS.get(layout.precision, 0) > 1)
    chip = chip_of(cluster, switches.node_gbps, switches.fabric)
    kind, share = recompute_of(layout, trainer, switches)
    precision = auto_precision(chip, layout.precision)
    runs_in, _ = chip.peak(precision)  # raises UserError where the device has nothing wider either
    if chip.kind == "gpu" and precision == "bf16" != runs_in:
        raise UserError(f"{chip.name} has no bf16", "layout.precision", f"use {runs_in}, or auto")
    return Request(
        model=model,
        chip=chip,
        framework=trainer,
        precision=precision,
        seq_len=seq_len,
        **{key: getattr(layout, key) for key in (*COPIED, "offload", "stage_layers")},
        accumulation=float(layout.accumulation),
        recompute=kind,
        share=share,
        switches=switches,
        optimizer=optimizer,
        compress=compress,
        documents=documents,
        diloco=diloco if layout.dp_replicate > 1 else None,
        host_copies=host_copies,
    )


def from_question(question: Question, layout: Layout | None = None) -> Request:
    """The request of a run in its own layout, or in another: the one place where a run's facts are read.

    A user's own optimizer that wasn't measured counts as AdamW, which keeps the most state; so does each of another
    trainer's, as those are priced with it alone. A capacity counts as far as it drops tokens at even loads. Raises
    UserError for a layout that the cluster can't hold in this precision, or compression that the run's own layout has
    no use for; another layout, without use for it, is priced without.
    """
    if question.cluster is None:
        raise UserError("--cluster is missing", "plan", "give the machine: --cluster dgx-h100, or local")
    taken, run, options = layout or question.layout, question.run, dict(question.options)
    question.cluster.check_devices(taken.devices)
    trainer = question.framework, question.version, options
    asked = partial(from_layout, question.model, question.cluster, taken, question.seq_len, *trainer)
    if not question.has_facts:
        return asked()
    factor = run.train.balance.capacity_factor
    share = kept_share(factor, question.model.moe, question.seq_len) if factor is not None else 1.0
    if share < 1:
        options.setdefault("capacity", f"{share:.12g}")
    compress, islands = run.train.compress, run.diloco is not None
    if layout is None:
        check_compress(compress, taken, islands=islands)
    return asked(
        optimizer=run.optimizer.record if isinstance(run.optimizer, OptimizerSpec) else question.optimizer or ADAMW,
        documents=isinstance(run.data, DataSpec) and run.data.masked,
        compress=applicable(compress, taken, islands=islands),
        diloco=run.diloco,
        host_copies=copies_on_hosts(run.checkpoint, taken.devices > question.cluster.devices_per_node),
    )


def copies_on_hosts(checkpoint: CheckpointSpec, several: bool) -> int:
    """How often the memory of all hosts holds what a checkpoint holds: once for saves beside training, twice for steps
    in memory, and twice for their copies on other nodes, where there are several (checkpoint/memory/)."""
    beside = bool(checkpoint.async_ and checkpoint.every)
    steps = 2 if checkpoint.memory_every else 0
    return beside + steps * (2 if several and checkpoint.memory_buddy != 0 else 1)


def recompute_of(layout: Layout, trainer: Framework, switches: Switches) -> tuple[str, float]:
    """A layout's recomputation as a request's `recompute` and `share`."""
    kind = layout.recompute
    if isinstance(kind, RecomputeEvery):
        return "share", 1 / kind.every
    if isinstance(kind, RecomputeBudget):
        return "budget", kind.budget
    if kind == "selective" and trainer.name != OURS:  # other trainers mean something else by it
        return "modules" if switches.recompute_modules else trainer.selective, 1.0
    return kind, 1.0

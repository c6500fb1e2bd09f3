"""Rows of a table of measured runs as requests: the columns' conventions, and what a blank cell stands for.

    framework, model, layers, ..., tp, pp, mbs, gbs, ...  -->  Request (+ what was assumed), or why not

A blank is filled by the rules of the table's own notes (sharding zero1, micro-batch 1 with a pipeline, ...)
and each is named in `assumed`. `source` and `id` are never looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from scalewright.plan.chips import Chip, chip_of
from scalewright.plan.frameworks import Framework, find_framework
from scalewright.plan.request import SCHEDULES, Request, auto_precision
from scalewright.plan.rows.cells import (
    ROW_OPTIONS,
    Blanks,
    Row,
    check_sizes,
    number,
    read_options,
    says,
    text,
)
from scalewright.plan.rows.row_model import model_of
from scalewright.plan.switches import NAMES, Switches, read_switches
from scalewright.spec.errors import UserError, unknown
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.model import ModelSpec

SHARDING = {"none": 0, "ddp": 0, "zero0": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3, "hsdp": 3}
SHARDING |= {str(stage): stage for stage in range(4)}
DEVICES = 256
FLAGS = {"1": True, "true": True, "0": False, "false": False}


@dataclass(frozen=True)
class Split:
    """How a row's run was cut; counts."""

    devices: int
    idle_devices: int
    tp: int
    pp: int
    cp: int
    ep: int
    etp: int
    zero_stage: int
    dp_replicate: int
    micro_batch: int
    accumulation: float  # micro-batches of a step on one data-parallel rank
    virtual_stages: int
    sp: bool


def request_of(row: Row) -> Request:
    """The request of a row; raises UserError with the reason where the row can't be expressed."""
    check_sizes(row)
    assumed = Blanks()
    options = read_options(text(row, "options"))
    switches = read_switches(options)
    assumed += [f"option {key} has no price" for key in options if key not in (*NAMES, *ROW_OPTIONS)]
    model = model_of(row, options, assumed)
    chip = _chip(text(row, "device"), switches.node_gbps)
    named = text(row, "framework") or "unknown", text(row, "software_version") or None
    framework = find_framework(*named, chip.kind)
    if not framework.known:
        assumed.append("framework (not known: its date's usual trainer)")
    seq = assumed.fill(row, "seq", 4096 if model.context >= 4096 else model.context)
    if says(options, "parallel_block"):
        model = model.replace(residual="parallel")
    split = _split(row, framework, chip, assumed, options)
    if model.moe is not None and number(row, "ep") is None:
        assumed.append("ep 1")
    _check_split(model, split, seq)
    recompute, share = _recompute(row, framework, options, switches, assumed)
    precision, flash = _precision(row, framework, chip, assumed), _flash(row, framework, assumed)
    return Request(
        model=model,
        chip=chip,
        framework=framework,
        precision=precision,
        seq_len=seq,
        devices=split.devices,
        idle_devices=split.idle_devices,
        tp=split.tp,
        sp=split.sp,
        pp=split.pp,
        virtual_stages=split.virtual_stages,
        schedule=_schedule(options, split.virtual_stages),
        cp=split.cp,
        ep=split.ep,
        etp=split.etp,
        dp_replicate=split.dp_replicate,
        zero_stage=split.zero_stage,
        micro_batch=split.micro_batch,
        accumulation=split.accumulation,
        recompute=recompute,
        share=share,
        offload="all" if "offload" in text(row, "framework").lower() else "none",
        flash=flash,
        switches=switches,
        assumed=tuple(assumed),
    )


def has_no_layout(row: Row) -> bool:
    """Whether the row says nothing of how the run was split."""
    return not any(text(row, key) for key in ("dp", "tp", "pp"))


@lru_cache(maxsize=512)
def _chip(device: str, gbps: float | None) -> Chip:
    if not device:
        raise UserError("no device is given", "row", "fill the column `device`")
    return chip_of(load_cluster(device), gbps)


# -- precision, recomputation, schedule, attention ------------------------------------------------


def _precision(row: Row, framework: Framework, chip: Chip, assumed: Blanks) -> str:
    """As stated; before 2022 fp16, then bf16. Raises UserError where the device can't."""
    word = text(row, "precision").lower()
    if not word:
        word = "fp16" if framework.year < 2022 else "bf16"
        assumed.append(f"precision {word}")
    precision = auto_precision(chip, word)
    chip.peak(precision)
    return precision


def _recompute(
    row: Row, framework: Framework, options: Mapping[str, str], switches: Switches, assumed: Blanks
) -> tuple[str, float]:
    """What runs again in the backward, and of what share of a block where that is the kind.

    Published tables use `selective` for attention's inside (Korthikanti et al. 2022) or XLA's policy; modules
    that are named, and a share of a block's multiply-adds, are more exact than either word.
    """
    word = text(row, "recompute").lower()
    if "recompute_share" in options:
        share = float(options["recompute_share"])
        return ("share", min(share, 1.0)) if share > 0 else ("none", 1.0)
    if word in ("none", "0", "false"):
        return "none", 1.0
    if word == "full":
        return "full", 1.0
    if switches.recompute_modules:
        return "modules", 1.0
    if word == "selective":
        return framework.selective, 1.0
    assumed.append("recompute (the least that fits)")
    return "unknown", 1.0


def _schedule(options: Mapping[str, str], chunks: int) -> str:
    word = options.get("schedule", "").lower().replace("_", "-")
    schedule = word or ("interleaved" if chunks > 1 else "1f1b")
    if schedule not in SCHEDULES:
        raise unknown("schedule", schedule, SCHEDULES, "row")
    return schedule


def _flash(row: Row, framework: Framework, assumed: Blanks) -> bool | None:
    flash = FLAGS.get(text(row, "flash").lower())
    if flash is None and framework.attention in ("unfused", "softmax"):
        assumed.append("flash 0 (the trainer's default of its date)")
    return flash


# -- the layout -----------------------------------------------------------------------------------


def _split(row: Row, framework: Framework, chip: Chip, assumed: Blanks, options: Mapping[str, str]) -> Split:
    """Sizes of the axes and the batch, blanks filled."""
    devices, sizes = _axes(row, chip, assumed)
    tp, pp, cp = sizes["tp"], sizes["pp"], sizes["cp"]
    dp = devices // (tp * pp * cp)
    micro, batch = _batch(row, dp, pp, assumed)
    idle = 0
    if batch < micro * dp:  # a stated batch is never changed: who has no sequence of it waits
        used = max(1, int(batch // micro))
        assumed.append(
            f"{dp - used} of {dp} data-parallel ranks idle: gbs {batch:g} in micro-batches of {micro}"
        )
        idle, devices, dp = (dp - used) * tp * pp * cp, used * tp * pp * cp, used
    sp, chunks = number(row, "sp"), number(row, "vpp")
    if chunks is None and pp > 1:
        assumed.append("vpp 1")
    return Split(
        devices, idle, tp, pp, cp, ep=max(1, int(number(row, "ep") or 1)), etp=int(options.get("etp", 1)),
        zero_stage=_zero(text(row, "sharding").lower(), framework, chip.kind, assumed),
        dp_replicate=_replicas(text(row, "sharding"), options, dp, tp * cp, chip, assumed),
        micro_batch=micro, accumulation=max(1.0, batch / (micro * dp)),
        virtual_stages=max(1, int(chunks or 1)) if pp > 1 else 1,
        sp=bool(sp) if sp is not None else tp > 1 and framework.year >= 2023,
    )  # fmt: skip


def _axes(row: Row, chip: Chip, assumed: Blanks) -> tuple[int, dict[str, int]]:
    """Devices, tp, pp and cp; what a stated dp leaves for blank axes goes to tp inside a node, then to pp."""
    given = number(row, "dp")
    known = {key: int(number(row, key) or 1) for key in ("tp", "pp", "cp")}
    product = known["tp"] * known["pp"] * known["cp"]
    devices = assumed.fill(row, "n_devices", product * int(given) if given else DEVICES)
    rest = devices // (int(given) * product) if given and devices % (int(given) * product) == 0 else 1
    usual = {"tp": 1, "pp": 1, "cp": 1}
    if rest > 1 and number(row, "tp") is None:
        usual["tp"] = rest if number(row, "pp") is not None or rest <= chip.node else chip.node
        rest = rest // usual["tp"] if rest % usual["tp"] == 0 else 1
    if rest > 1 and number(row, "pp") is None:
        usual["pp"] = rest
    sizes = {key: max(1, assumed.fill(row, key, value)) for key, value in usual.items()}
    product = sizes["tp"] * sizes["pp"] * sizes["cp"]
    if product > devices or devices % product:
        problem = f"tp x pp x cp = {product} does not divide n_devices {devices}"
        raise UserError(problem, "row", "make the sizes agree")
    if given and int(given) != devices // product:
        problem = f"dp {int(given)} x {product} is not n_devices {devices}"
        raise UserError(problem, "row", "make the sizes agree")
    return devices, sizes


def _batch(row: Row, dp: int, pp: int, assumed: Blanks) -> tuple[int, float]:
    """Sequences of a micro-batch and of a step."""
    batch, micro = number(row, "gbs"), number(row, "mbs")
    if micro is None:
        each = (batch or 4 * dp) / dp
        micro = 1 if pp > 1 else max(n for n in (1, 2, 4) if n <= max(1.0, each))
        assumed.append(f"mbs {micro}")
    if batch is None:
        batch = micro * dp * (4 * pp if pp > 1 else 1)
        assumed.append(f"gbs {int(batch)}")
    return int(micro), batch


def _replicas(
    sharding: str, options: Mapping[str, str], dp: int, stride: int, chip: Chip, assumed: Blanks
) -> int:
    """Copies that FSDP keeps: one a slice of a TPU pod, or by the size of its group; of HSDP one a node."""
    group, slices = options.get("ici_fsdp"), options.get("slices")
    if group and int(group) < dp:
        return max(1, dp // int(group))
    if slices and dp % int(slices) == 0:
        return int(slices)
    inside = max(1, chip.node // stride)
    if sharding.lower() == "hsdp" and not group and dp > inside and dp % inside == 0:
        assumed.append(f"dp_replicate {dp // inside} (HSDP shards inside a node)")
        return dp // inside
    return 1


def _zero(word: str, framework: Framework, kind: str, assumed: Blanks) -> int:
    """A word's ZeRO stage; for a blank FSDP on TPUs and where the trainer has it, else at most ZeRO-1."""
    if word in SHARDING:
        return SHARDING[word]
    if word:
        raise UserError(f"sharding is '{word}'", "row", "use one of " + ", ".join(SHARDING))
    zero = 3 if kind == "tpu" or framework.zero_stage == 3 else min(1, framework.zero_stage)
    assumed.append("sharding " + {0: "none", 1: "zero1", 3: "fsdp"}[zero])
    return zero


def _check_split(model: ModelSpec, split: Split, seq: int) -> None:
    """Raises UserError for a layout that the model can't be cut into."""
    limits: dict[str, tuple[int, int, str]] = {
        "pp": (split.pp, model.num_hidden_layers, "layers"),
        "tp": (split.tp, model.num_attention_heads, "heads"),
        "cp": (split.cp, seq, "tokens"),
        "ep": (split.ep, model.moe.num_experts if model.moe else 1, "experts"),
    }
    for axis, (size, most, of) in limits.items():
        if size > most:
            raise UserError(f"{axis} {size} is more than {most} {of}", "row", f"use {axis} {most} or less")

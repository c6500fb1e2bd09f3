"""A row of a table of runs as a request: the columns' conventions, and the defaults of blank cells.

    framework, model, layers, ..., tp, pp, mbs, gbs, ...  -->  Request with `assumed`, or a UserError

Defaults follow the table's notes (sharding zero1, micro-batch 1 with a pipeline, ...); each is listed in
`assumed`. `source` and `id` are never read.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from scalewright.plan.chips import WIDTHS, Chip, chip_of
from scalewright.plan.frameworks import Framework, find_framework
from scalewright.plan.request import SCHEDULES, Request, auto_precision
from scalewright.plan.rows.cells import ROW_OPTIONS, Assumptions, Row, check_sizes, number, read_options, text
from scalewright.plan.rows.row_model import model_of
from scalewright.plan.switches import FLAGS, NAMES, Switches, read_switches
from scalewright.spec.errors import UserError, unknown
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.model import ModelSpec

SHARDING = {"none": 0, "ddp": 0, "zero0": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3, "hsdp": 3}
SHARDING |= {str(stage): stage for stage in range(4)}
NO_PRICE = "has no price"  # of an option that is read, and changes nothing
DEVICES = 256  # where neither devices nor dp is stated


def request_of(row: Row) -> Request:
    """The request of a row; raises UserError where the row can't be expressed as one."""
    check_sizes(row)
    assumed, options = Assumptions(), read_options(text(row, "options"))
    switches = read_switches(options)
    assumed += [f"option {key} {NO_PRICE}" for key in options if key not in (*NAMES, *ROW_OPTIONS)]
    model = model_of(row, options, assumed)
    chip = _chip(text(row, "device"), switches.node_gbps, switches.fabric)
    named = text(row, "framework") or "unknown", text(row, "software_version") or None
    framework = find_framework(*named, chip.kind, WIDTHS.get(text(row, "precision").lower(), 0) > 1)
    if not framework.known:
        assumed.append("framework (not known: its date's usual trainer)")
    seq = assumed.fill(row, "seq", 4096 if model.context >= 4096 else model.context)
    if FLAGS.get(options.get("parallel_block", "").lower()):
        model = model.replace(residual="parallel")
    split = _split(row, framework, chip, assumed, options)
    if model.moe is not None and number(row, "ep") is None:
        assumed.append("ep 1")
    _check_split(model, split, seq)
    recompute, share = _recompute(row, framework, options, switches, assumed)
    precision = _precision(row, framework, chip, assumed)
    flash = FLAGS.get(text(row, "flash").lower())
    if flash is None and framework.attention in ("unfused", "softmax"):
        assumed.append("flash 0 (the trainer's default of its date)")
    return Request(
        model=model,
        chip=chip,
        framework=framework,
        precision=precision,
        seq_len=seq,
        **split,
        schedule=_schedule(options, split["virtual_stages"]),
        recompute=recompute,
        share=share,
        offload="all" if "offload" in text(row, "framework").lower() else "none",
        flash=flash,
        switches=switches,
        assumed=tuple(assumed),
    )


def has_no_layout(row: Row) -> bool:
    """Whether the row states no sizes of axes."""
    return not any(text(row, key) for key in ("dp", "tp", "pp"))


@lru_cache(maxsize=512)
def _chip(device: str, gbps: float | None, fabric: str | None) -> Chip:
    if not device:
        raise UserError("no device is given", "row", "fill the column `device`")
    return chip_of(load_cluster(device), gbps, fabric)


def _precision(row: Row, framework: Framework, chip: Chip, assumed: Assumptions) -> str:
    """As stated; the default is fp16 before 2022, then bf16. Raises UserError where the device lacks it."""
    word = text(row, "precision").lower()
    if not word:
        word = "fp16" if framework.year < 2022 else "bf16"
        assumed.append(f"precision {word}")
    precision = auto_precision(chip, word)
    chip.peak(precision)
    return precision


def _recompute(
    row: Row, framework: Framework, options: Mapping[str, str], switches: Switches, assumed: Assumptions
) -> tuple[str, float]:
    """A request's `recompute` and `share`.

    Published tables use `selective` for core attention (Korthikanti et al. 2022) or XLA's policy; the options for
    modules and for a share of a block's multiply-adds are more exact.
    """
    word = text(row, "recompute").lower()
    if "recompute_share" in options:
        share = float(options["recompute_share"])
        return ("share", min(share, 1.0)) if share > 0 else ("none", 1.0)
    if word in ("none", "0", "false", "full"):
        return "full" if word == "full" else "none", 1.0
    if switches.recompute_modules:
        return "modules", 1.0
    if word == "selective":
        return framework.selective, 1.0
    assumed.append("recompute (the least that fits)")
    return "unknown", 1.0


def _schedule(options: Mapping[str, str], chunks: int) -> str:
    schedule = options.get("schedule", "").lower().replace("_", "-") or ("interleaved" if chunks > 1 else "1f1b")
    if schedule not in SCHEDULES:
        raise unknown("schedule", schedule, SCHEDULES, "row")
    return schedule


def _split(
    row: Row, framework: Framework, chip: Chip, assumed: Assumptions, options: Mapping[str, str]
) -> dict[str, Any]:
    """Sizes of the axes and the batch as a request has them, with defaults."""
    devices, sizes = _axes(row, chip, assumed)
    tp, pp, cp = sizes["tp"], sizes["pp"], sizes["cp"]
    dp = devices // (tp * pp * cp)
    micro, batch = _batch(row, dp, pp, assumed)
    idle = 0
    if batch < micro * dp:  # a stated batch is never changed: ranks without a sequence idle
        used = max(1, int(batch // micro))
        assumed.append(f"{dp - used} of {dp} data-parallel ranks idle: gbs {batch:g} in micro-batches of {micro}")
        idle, devices, dp = (dp - used) * tp * pp * cp, used * tp * pp * cp, used
    sp, chunks = number(row, "sp"), number(row, "vpp")
    if chunks is None and pp > 1:
        assumed.append("vpp 1")
    return sizes | {
        "devices": devices,
        "idle_devices": idle,
        "ep": max(1, int(number(row, "ep") or 1)),
        "etp": int(options.get("etp", 1)),
        "zero_stage": _zero(text(row, "sharding").lower(), framework, chip.kind, assumed),
        "dp_replicate": _replicas(text(row, "sharding"), options, dp, tp * cp, chip, assumed),
        "micro_batch": micro,
        "accumulation": max(1.0, batch / (micro * dp)),
        "virtual_stages": max(1, int(chunks or 1)) if pp > 1 else 1,
        "sp": bool(sp) if sp is not None else tp > 1 and framework.sequence_parallel,
    }


def _axes(row: Row, chip: Chip, assumed: Assumptions) -> tuple[int, dict[str, int]]:
    """Devices, tp, pp and cp; devices that a stated dp leaves go to tp inside a node, then to pp."""
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
    problem = None
    if product > devices or devices % product:
        problem = f"tp x pp x cp = {product} does not divide n_devices {devices}"
    elif given and int(given) != devices // product:
        problem = f"dp {int(given)} x {product} is not n_devices {devices}"
    if problem:
        raise UserError(problem, "row", "make the sizes agree")
    return devices, sizes


def _batch(row: Row, dp: int, pp: int, assumed: Assumptions) -> tuple[int, float]:
    batch, micro = number(row, "gbs"), number(row, "mbs")
    if micro is None:
        each = (batch or 4 * dp) / dp
        micro = 1 if pp > 1 else max(n for n in (1, 2, 4) if n <= max(1.0, each))
        assumed.append(f"mbs {micro}")
    if batch is None:
        batch = micro * dp * (4 * pp if pp > 1 else 1)
        assumed.append(f"gbs {int(batch)}")
    return int(micro), batch


def _replicas(sharding: str, options: Mapping[str, str], dp: int, stride: int, chip: Chip, assumed: Assumptions) -> int:
    """Replicas of FSDP: by the size of its group, or one per slice of a TPU pod; for HSDP one per node."""
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


def _zero(word: str, framework: Framework, kind: str, assumed: Assumptions) -> int:
    """The ZeRO stage of a word; the default is FSDP on TPUs and where usual, else at most ZeRO-1."""
    if word in SHARDING:
        return SHARDING[word]
    if word:
        raise UserError(f"sharding is '{word}'", "row", "use one of " + ", ".join(SHARDING))
    zero = 3 if kind == "tpu" or framework.zero_stage == 3 else min(1, framework.zero_stage)
    assumed.append("sharding " + {0: "none", 1: "zero1", 3: "fsdp"}[zero])
    return zero


def _check_split(model: ModelSpec, split: Mapping[str, int], seq: int) -> None:
    """Raises UserError for an axis larger than the model allows."""
    limits = {"pp": (model.num_hidden_layers, "layers"), "tp": (model.num_attention_heads, "heads")}
    limits |= {"cp": (seq, "tokens"), "ep": (model.moe.num_experts if model.moe else 1, "experts")}
    for axis, (most, unit) in limits.items():
        if (size := split[axis]) > most:
            raise UserError(f"{axis} {size} is more than {most} {unit}", "row", f"use {axis} {most} or less")

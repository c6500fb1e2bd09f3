"""Defaults for what the user left out; each is listed in the answer's `assumed`.

    given {nodes: 64, tp: 8}  -->  layout {devices: 512, tp: 8, zero_stage: 3, ...}
                                   assumed ["zero_stage 3", "micro_batch 2 (the largest that fits)", ...]

A layout's defaults are those of `train`, except another trainer's ZeRO stage, which is usual with it, the schedule of
virtual stages, and the micro-batch: a question or another trainer's script without one asks what the device can do, and
a run file without one runs with 1. `complete` is the one place that fills in a layout: of `predict`, and of the layouts
that `plan --near` and `plan --why-not` are asked about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from math import gcd, isfinite
from typing import Any

from scalewright.plan.chips import WIDTHS
from scalewright.plan.frameworks import OURS, Framework, check_name, find_framework, of_framework
from scalewright.plan.predict import predict_table
from scalewright.plan.records import LayoutKeys
from scalewright.plan.request import Request, from_question
from scalewright.plan.rows.cells import MOST
from scalewright.spec.capabilities import Capabilities
from scalewright.spec.common.formatting import counted
from scalewright.spec.diloco import DilocoSpec
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.layout import Layout
from scalewright.spec.layout_check import check_layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.optimizers import ADAMW, Optimizer, find_optimizer
from scalewright.spec.question import Question
from scalewright.spec.run import PythonRef

LIMITS = {
    "devices": MOST["n_devices"], "nodes": MOST["n_devices"], "seq_len": MOST["seq"], "micro_batch": MOST["mbs"],
    "global_batch": MOST["gbs"], "tp": MOST["tp"], "pp": MOST["pp"], "cp": MOST["cp"], "ep": MOST["ep"],
    "etp": MOST["ep"], "virtual_stages": MOST["vpp"], "dp_replicate": MOST["n_devices"],
}  # fmt: skip
LARGEST = 512  # of the micro-batches that are tried


def check_whole(name: str, value: Any) -> int:
    """A size as a whole number within reason; raises UserError for NaN, fractions and typos."""
    most = LIMITS.get(name, 10**15)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not isfinite(value) or value != int(value) or not 1 <= value <= most:
        where = "layout" if name in Layout.model_fields else name
        raise UserError(f"{name} is {value!r}", where, f"give a whole number from 1 to {most}")
    return int(value)


def resolve_length(model: ModelSpec, seq_len: Any) -> tuple[int, list[str]]:
    """The sequence length: as given, or the model's context."""
    if seq_len is not None:
        return check_whole("seq_len", seq_len), []
    return model.context, [f"seq_len {model.context} (the model's context)"]


def resolve_sizes(given: Mapping[str, Any], cluster: ClusterSpec, length: int) -> LayoutKeys:
    """The given keys as a layout has them: `nodes` and `global_batch_tokens` are converted."""
    keys = {key: value for key, value in given.items() if value is not None}
    for name in LIMITS:
        if name in keys:
            keys[name] = check_whole(name, keys[name])
    if (nodes := keys.pop("nodes", None)) is not None:
        _agree(keys, "devices", nodes * cluster.devices_per_node, f"nodes {nodes}")
    if (tokens := keys.pop("global_batch_tokens", None)) is not None:
        tokens = check_whole("global_batch_tokens", tokens)
        if tokens % length:
            near = max(1, round(tokens / length)) * length
            problem = f"global_batch_tokens {tokens} is not divisible by seq_len {length}"
            raise UserError(problem, "layout", f"use {near} ({counted(near // length, 'sequences')})")
        _agree(keys, "global_batch", tokens // length, f"global_batch_tokens {tokens}")
    return keys


def plan_sizes(
    sizes: Mapping[str, Any], counts: Sequence[int], cluster: ClusterSpec
) -> tuple[dict[str, int], list[str]]:
    """The devices and the batch of a plan: as given; the largest of the counts, or all of the cluster."""
    devices = sizes.get("devices") or max(counts, default=None) or cluster.devices
    wanted = {"devices": "--devices, or --nodes"} if devices is None else {}
    if "global_batch" not in sizes:
        wanted["global_batch"] = "--global-batch in sequences, or --global-batch-tokens"
    if devices is None or wanted:
        are = "are" if len(wanted) > 1 else "is"
        raise UserError(f"{' and '.join(wanted)} {are} missing", "plan", f"give {'; '.join(wanted.values())}")
    notes = [] if "devices" in sizes else [f"devices {devices}"]
    return {"devices": devices, "global_batch": sizes["global_batch"]}, notes


def _agree(keys: LayoutKeys, name: str, value: int, source: str) -> None:
    """Sets a key that users can give in two ways; raises UserError where both are given and differ."""
    if keys.setdefault(name, value) != value:
        raise UserError(f"{name} {keys[name]} and {source}, which is {name} {value}", "layout", "give one of them")


def fill_devices(keys: LayoutKeys) -> list[str]:
    """Sets `devices` where not given: the fewest that these axes need."""
    if "devices" in keys:
        return []
    ranks = keys.get("tp", 1) * keys.get("cp", 1)
    experts = keys.get("ep", 1) * keys.get("etp", 1)
    shard = experts // gcd(experts, ranks)
    keys["devices"] = ranks * keys.get("pp", 1) * keys.get("dp_replicate", 1) * shard
    return [f"devices {keys['devices']}"]


def complete(keys: LayoutKeys, question: Question, *, micro_batch: bool = True) -> tuple[Layout, list[str]]:
    """A layout from some of its keys, checked against the run, and what was filled in; with `micro_batch` that, too.

    Raises UserError for keys that go together in no layout.
    """
    assert question.cluster is not None
    keys = dict(keys)
    notes = fill_devices(keys)
    trainer = find_framework(question.framework, question.version, question.cluster.device.kind)
    notes += [*usual_zero(keys, trainer, question.cluster), *usual_schedule(keys, of_framework(trainer))]
    if micro_batch:
        notes += fill_micro_batch(keys, question)
    layout = Layout.parse(keys, "layout")
    check_layout(layout, question.model, question.seq_len)
    return layout, notes


def usual_schedule(keys: LayoutKeys, trainer: Capabilities) -> list[str]:
    """Sets the schedule of a pipeline that has none: 1F1B, interleaved with chunks, or the trainer's first."""
    depth, chunks = keys.get("pp") or 1, keys.get("virtual_stages") or 1
    if keys.get("schedule") or depth == 1:
        return []
    usual = "interleaved" if chunks > 1 else "1f1b"
    keys["schedule"] = usual if trainer.allows("schedule", usual) else trainer.axes["schedule"][0]
    return [] if keys["schedule"] == "1f1b" else [f"schedule {keys['schedule']}"]


def usual_zero(keys: LayoutKeys, trainer: Framework, cluster: ClusterSpec) -> list[str]:
    """Sets another trainer's usual ZeRO stage where none is given; for ours the layout's default stays."""
    if trainer.name == OURS or "zero_stage" in keys or keys["devices"] == 1:
        return []
    sharded = cluster.device.kind == "tpu" or trainer.zero_stage >= 3
    keys["zero_stage"] = 3 if sharded else min(1, trainer.zero_stage)
    return [f"zero_stage {keys['zero_stage']} (usual with {trainer.name})"]


def fill_micro_batch(keys: LayoutKeys, question: Question) -> list[str]:
    """Sets `micro_batch` where not given: the largest that fits, of a pipeline with a micro-batch a stage at least."""
    if "micro_batch" in keys:
        return []
    batch = keys.get("global_batch")
    sizes = [2**n for n in range(9)] if batch is None else [n for n in range(1, LARGEST + 1) if batch % n == 0]
    layouts: list[Layout] = []
    for size in sizes:
        with suppress(UserError):  # not of this batch
            layout = Layout.parse({**keys, "micro_batch": size}, "layout")
            check_layout(layout, question.model, question.seq_len)
            layouts += [layout] * (layout.pp == 1 or layout.accumulation >= layout.pp)
    predictions = predict_table([from_question(question.with_layout(layout)) for layout in layouts]) if layouts else ()
    fitting = [p.request.micro_batch for p in predictions if p.risk == "fits"]
    keys["micro_batch"] = max(fitting, default=1)
    why = " (the largest that fits)" if fitting else ""
    if predictions and not fitting:
        needed, usable = min(predictions, key=lambda p: p.request.micro_batch).needs_gib(None)
        why = f" (none fits: it may need {needed:.4g} GiB of the {usable:.4g} there are)" if needed > usable else ""
    return [f"micro_batch {keys['micro_batch']}{why}"]


def assumptions(given: Iterable[str], layout: Layout, request: Request) -> list[str]:
    """The keys that matter in this layout and were not given, with their values."""
    given = set(given)
    relevant = {"sp": layout.tp > 1, "schedule": layout.pp > 1, "micro_batch": True, "global_batch": True}
    relevant |= {"zero_stage": layout.devices > 1, "recompute": True}
    words = {"sp": str(request.sp).lower(), "global_batch": f"{layout.global_batch} (micro_batch x dp)"}
    keys = [key for key, matters in relevant.items() if matters and key not in given]
    lines = [f"{key} {words.get(key, getattr(layout, key))}" for key in keys]
    if layout.precision == "auto":
        lines.append(f"precision {request.precision} (auto)")
    rate = request.chip.peak(request.precision)[0]
    if WIDTHS[rate] != WIDTHS[request.precision]:
        lines.append(f"rates of {rate}: {request.chip.name} has none in {request.precision}")
    return lines


def resolve_trainer(name: str | None, version: str | None) -> tuple[Framework, list[str]]:
    """The trainer whose step time is predicted, and notes on how its name was resolved."""
    if name is None:
        return find_framework(OURS), [f"framework {OURS}"]
    check_name(name)
    if version is not None and not any(letter.isdigit() for letter in version):
        how = "give the release's number, such as 25.11"
        raise UserError(f"software-version is '{version}'", "--software-version", how)
    trainer = find_framework(name, version)
    year = int(trainer.year)
    if trainer.known:
        dated = version is not None or str(year) in trainer.name or trainer.name == OURS
        meant = trainer.release or f"{trainer.name} of {year}"
        return trainer, [] if dated else [f"{meant} (--software-version selects another)"]
    return trainer, [f"framework {name}: priced as the usual trainer of {year}"]


def resolve_optimizer(
    name: str | tuple[PythonRef, Optimizer] | None, framework: str | None
) -> tuple[Optimizer, list[str]]:
    """The optimizer, AdamW where none is named; other trainers are priced with AdamW only. A user's own is measured."""
    ours = framework in (None, OURS)
    if name is None:
        return ADAMW, [f"optimizer {ADAMW.name}"] if ours else []
    record = name[1] if isinstance(name, tuple) else find_optimizer(name, "--optimizer")
    if not ours and record is not ADAMW:
        how = f"leave --framework out: {OURS}'s own trainer is planned with each of its optimizers"
        raise UserError(f"{framework} is priced with {ADAMW.name}, not with {record.shown}", "--optimizer", how)
    kept = f"{record.shown}: {record.width:g} bytes of state a parameter, {record.update} moved an update (measured)"
    return record, [f"optimizer {kept}"] if isinstance(name, tuple) else []


def resolve_diloco(keys: Mapping[str, Any] | None, framework: str | None) -> DilocoSpec | None:
    """A run file's `diloco`; null: replicas are no islands. Other trainers are priced without."""
    if keys is None:
        return None
    if framework not in (None, OURS):
        raise UserError(f"{framework} is priced without diloco", "--diloco", "leave --framework out")
    return DilocoSpec.parse(dict(keys), "--diloco")

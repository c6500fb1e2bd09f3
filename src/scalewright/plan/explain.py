"""Why a layout costs what it costs: what would help, what would make it fit, and what speaks for the number.

    what_if(prediction)       each link, peak, memory, batch and axis: the gain from twice (or half) of it
    smallest_fix(prediction)  when it doesn't fit: the single change that fits and costs the least time
    evidence(prediction)      the nearest measured runs, priced by the same constants, and what lies outside

All of them price changed requests in one table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from math import log2
from typing import Any

from scalewright.plan.capabilities import find_capabilities
from scalewright.plan.constants import Constants
from scalewright.plan.cost.band import MEASURED_DEVICES
from scalewright.plan.curves import beyond_timed, probe_words
from scalewright.plan.measured.facts import run_facts
from scalewright.plan.measured.runs import MEASURED, measured_seconds, read_table
from scalewright.plan.predict import Prediction, layout_keys, predict_table
from scalewright.plan.request import Request
from scalewright.plan.rows.cells import number, text
from scalewright.plan.rows.rows import request_of
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.layout_check import is_legal
from scalewright.spec.tensors import count

Change = tuple[str, Request]


# -- what if --------------------------------------------------------------------------------------


def what_if(found: Prediction, c: Constants | None = None) -> list[dict[str, Any]]:
    """Changes and what each gains in tokens per second and device (percent), best first.

    `kind` of each: "setting" (a key of the layout) or "hardware".
    """
    settings = _legal_ones(found.request, _axes(found.request))
    changes = [("setting", *change) for change in settings]
    changes += [("hardware", *change) for change in _hardware(found.request)]
    priced = predict_table([request for _, _, request in changes], c)
    rate = found.tokens / found.step_time_s / found.request.devices
    rows = []
    for (kind, words, request), one in zip(changes, priced, strict=True):
        new = one.tokens / one.step_time_s / request.devices
        note = "" if one.fits else ", does not fit"
        rows.append(
            {
                "change": words + note,
                "kind": kind,
                "step_time_s": one.step_time_s,
                "gain_pct": 100 * (new / rate - 1),
            }
        )
    return sorted(rows, key=lambda row: -row["gain_pct"])


def _hardware(r: Request) -> Iterator[Change]:
    chip = r.chip
    faster = replace(chip, peaks=tuple((name, 2 * rate) for name, rate in chip.peaks))
    yield "peak x2", replace(r, chip=faster)
    yield "memory bandwidth x2", replace(r, chip=replace(chip, memory_rate=2 * chip.memory_rate))
    if r.devices > 1:
        yield "links inside the domain x2", replace(r, chip=replace(chip, link_rate=2 * chip.link_rate))
    if r.devices > chip.domain:
        yield "network between nodes x2", replace(r, chip=replace(chip, fabric_rate=2 * chip.fabric_rate))


def _axes(r: Request) -> Iterator[Change]:
    yield "global_batch x2", replace(r, accumulation=2 * r.accumulation)
    if r.accumulation >= 2 and r.accumulation % 2 == 0:
        yield "micro_batch x2", replace(r, micro_batch=2 * r.micro_batch, accumulation=r.accumulation / 2)
    if r.micro_batch % 2 == 0:
        yield "micro_batch / 2", replace(r, micro_batch=r.micro_batch // 2, accumulation=r.accumulation * 2)
    for axis in ("tp", "pp", "cp"):
        size = getattr(r, axis)
        for words, changed in ((f"{axis} x2", 2 * size), (f"{axis} / 2", size // 2)):
            moved = resized(r, axis, changed)
            if moved is not None:
                yield words, moved
    if r.model.moe is not None:
        yield "ep x2", replace(r, ep=2 * r.ep)
        if r.ep % 2 == 0:
            yield "ep / 2", replace(r, ep=r.ep // 2)
    yield from _techniques(r)


def _techniques(r: Request) -> Iterator[Change]:
    """Another ZeRO stage, recomputation or schedule."""
    if r.dp * r.cp > 1:
        others = (stage for stage in range(4) if stage != r.zero_stage)
        yield from ((f"zero_stage {stage}", replace(r, zero_stage=stage)) for stage in others)
    for kind in ("none", "selective", "full"):
        own = r.framework.name == "scalewright" or kind != "selective"
        changed = replace(r, recompute=kind if own else r.framework.selective)
        if layout_keys(changed)["recompute"] != layout_keys(r)["recompute"]:
            yield f"recompute {kind}", changed
    if r.pp == 1 or r.stage_layers is not None:
        return
    two = r.virtual_stages if r.virtual_stages > 1 else 2
    for kind, chunks in (
        ("1f1b", 1),
        ("interleaved", two),
        ("zb-h1", 1),
        ("zb-interleaved", two),
        ("zbv", 2),
    ):
        if (kind, chunks) != (r.schedule, r.virtual_stages):
            more = f", virtual_stages {chunks}" if chunks > 1 else ""
            yield f"schedule {kind}{more}", replace(r, schedule=kind, virtual_stages=chunks)


def _legal_ones(r: Request, changes: Iterable[Change]) -> list[Change]:
    """The changes that the layout's rules allow and that the trainer has.

    All of them for a run that itself is beyond the rules or its trainer's capabilities.
    """
    some, trainer = list(changes), find_capabilities(r.framework.name)
    if _is_legal(r):
        some = [(words, one) for words, one in some if _is_legal(one)]
    if not trainer.missing(layout_keys(r)):
        some = [(words, one) for words, one in some if not trainer.missing(layout_keys(one))]
    return some


def _is_legal(r: Request) -> bool:
    """Whether it is a layout of the spec, with this model and length; measured runs needn't be."""
    keys = layout_keys(r)
    try:
        return is_legal(Layout.parse({k: v for k, v in keys.items() if k != "dp"}), r.model, r.seq_len)
    except UserError:
        return False


def resized(r: Request, axis: str, size: int) -> Request | None:
    """The request with an axis of another size and dp taking up the rest; None where that can't be."""
    if size < 1 or size == getattr(r, axis):
        return None
    sizes = {"tp": r.tp, "pp": r.pp, "cp": r.cp, axis: size}
    product = sizes["tp"] * sizes["pp"] * sizes["cp"]
    if r.devices % product or sizes["tp"] > r.model.num_attention_heads or r.seq_len % sizes["cp"]:
        return None
    dp = r.devices // product
    micros = r.global_batch / (r.micro_batch * dp)
    whole = micros == int(micros) and micros >= 1
    fits = sizes["pp"] * r.virtual_stages <= r.model.num_hidden_layers and r.stage_layers is None
    experts = dp // r.dp_replicate * sizes["cp"] * sizes["tp"]
    if not whole or not fits or dp % r.dp_replicate or experts % (r.ep * r.etp):
        return None
    chunks = r.virtual_stages if sizes["pp"] > 1 else 1
    schedule = r.schedule if sizes["pp"] > 1 else "1f1b"
    return replace(
        r,
        tp=sizes["tp"],
        pp=sizes["pp"],
        cp=sizes["cp"],
        accumulation=micros,
        virtual_stages=chunks,
        schedule=schedule,
        sp=sizes["tp"] > 1 and (r.sp or sizes["tp"] > r.tp),
    )


# -- what would fit -------------------------------------------------------------------------------


def smallest_fix(
    found: Prediction, c: Constants | None = None, *, peak_gib: float | None = None
) -> dict[str, Any] | None:
    """The single change after which it fits, at the least time; None when it fits already.

    Where no single change is enough, the leanest layout is named with what it would still lack. `peak_gib`:
    the peak as it was counted elsewhere; the changed layouts' are scaled by it.
    """
    usable = found.number("usable")
    scale = 1.0 if peak_gib is None else peak_gib / found.peak_gib
    if found.fits if peak_gib is None else peak_gib <= usable:
        return None
    changes = _legal_ones(found.request, _leaner(found.request))
    if not changes:
        return None
    priced = predict_table([request for _, request in changes], c)
    options: list[dict[str, Any]] = [
        {
            "change": words,
            "fits": one.fits if peak_gib is None else one.peak_gib * scale <= usable,
            "peak_gib": one.peak_gib * scale,
            "step_time_s": one.step_time_s,
        }
        for (words, _), one in zip(changes, priced, strict=True)
    ]
    fitting = [one for one in options if one["fits"]]
    if fitting:
        return min(fitting, key=lambda one: one["step_time_s"])
    return min(options, key=lambda one: one["peak_gib"]) if options else None


def _leaner(r: Request) -> Iterator[Change]:
    for stage in range(r.zero_stage + 1, 4):
        yield f"zero_stage {stage}", replace(r, zero_stage=stage)
    if r.recompute in ("none", "core"):
        yield "recompute selective", replace(r, recompute="selective")
    if r.recompute != "full":
        yield "recompute full", replace(r, recompute="full")
        yield "recompute full and zero_stage 3", replace(r, recompute="full", zero_stage=3)
    if r.micro_batch > 1:
        yield "micro_batch 1", replace(r, micro_batch=1, accumulation=r.accumulation * r.micro_batch)
    for axis in ("tp", "pp"):
        for times in (2, 4, 8):
            moved = resized(r, axis, times * getattr(r, axis))
            if moved is not None:
                yield f"{axis} {getattr(moved, axis)}", moved
    if r.offload == "none":
        yield "offload optimizer", replace(r, offload="optimizer")


# -- what speaks for it ---------------------------------------------------------------------------


def evidence(found: Prediction, many: int = 3, c: Constants | None = None) -> dict[str, Any]:
    """The nearest measured runs beside their predictions, and what of this one lies outside all of them.

    A CPU's evidence is its own probe: no published run says anything of it.
    """
    request = found.request
    if request.chip.timings is not None:
        outside = beyond_timed(request.chip.timings, request.precision, request.devices)
        probed = probe_words(request.chip.timings)
        name = request.framework.name
        return {
            "nearest": [], "extrapolates": outside, "never_measured": [], "framework": name, "probe": probed
        }  # fmt: skip
    near = sorted(_measured(), key=lambda run: _distance(run, request))[:many]
    priced = predict_table([run for run, _, _ in near], c)
    nearest = [
        {**run_facts(row, run), "measured": seconds, "predicted": one.step_time_s}
        for (run, seconds, row), one in zip(near, priced, strict=True)
    ]
    return {
        "nearest": nearest,
        "extrapolates": extrapolates(request),
        "never_measured": never_measured(request),
        "framework": request.framework.name,
    }


def never_measured(r: Request) -> list[str]:
    """The trainer and the device, where no run of theirs is in the table: the band is wider for it."""
    trainer = [] if r.framework.measured or not r.framework.known else [r.framework.name]
    return [*trainer, *([] if r.chip.name in MEASURED_DEVICES else [r.chip.name])]


@lru_cache(maxsize=1)
def _measured() -> tuple[tuple[Request, float, Mapping[str, str]], ...]:
    """Every bundled run with a stated time: its request, seconds and row."""
    runs = []
    for row in read_table(MEASURED):
        try:
            request = request_of(row)
            seconds, converted = measured_seconds(row, request)
        except UserError:
            continue
        stated = number(row, "step_time_s") or number(row, "tokens_per_s_per_device")
        if stated and not converted and not text(row, "stall") and not text(row, "suspect"):
            runs.append((request, seconds, row))
    return tuple(runs)


def _distance(run: tuple[Request, float, Mapping[str, str]], r: Request) -> float:
    """How unlike two runs are: doublings of size, and a few for another device, trainer or kind of model."""
    other = run[0]
    doublings = sum(
        abs(log2(max(a, 1) / max(b, 1)))
        for a, b in (
            (other.devices, r.devices), (other.model.hidden_size, r.model.hidden_size),
            (other.model.num_hidden_layers, r.model.num_hidden_layers), (other.tp, r.tp), (other.pp, r.pp),
            (other.seq_len, r.seq_len), (other.micro_batch, r.micro_batch),
        )
    )  # fmt: skip
    unlike = 4.0 * (other.chip.family.kernels != r.chip.family.kernels) + 1.0 * (
        other.chip.name != r.chip.name
    )
    unlike += 2.0 * (other.framework.name != r.framework.name) + 1.0 * (other.precision != r.precision)
    unlike += 4.0 * ((other.model.moe is None) != (r.model.moe is None))
    unlike += 1.0 * (other.zero_stage != r.zero_stage)
    return doublings + unlike


def extrapolates(r: Request) -> list[str]:
    """What of a run lies outside every measured one."""
    runs = [run for run, _, _ in _measured()]
    found = []
    sizes = (
        ("devices", r.devices, [x.devices for x in runs]),
        ("seq_len", r.seq_len, [x.seq_len for x in runs]),
        ("hidden_size", r.model.hidden_size, [x.model.hidden_size for x in runs]),
        ("tp", r.tp, [x.tp for x in runs]),
        ("pp", r.pp, [x.pp for x in runs]),
        ("cp", r.cp, [x.cp for x in runs]),
        ("ep", r.ep, [x.ep for x in runs]),
    )
    for name, value, seen in sizes:
        if not min(seen) <= value <= max(seen):
            found.append(f"{name} {value} (measured: {min(seen)} to {max(seen)})")
    if r.chip.family not in {x.chip.family for x in runs}:
        found.append(f"no run on {r.chip.family.name} devices")
    elif r.chip.name not in {x.chip.name for x in runs}:
        found.append(f"no run on {r.chip.name}, only on others of its generation")
    if r.framework.name not in {x.framework.name for x in runs}:
        found.append(f"no run of {r.framework.name}")
    if r.precision not in {x.precision for x in runs}:
        found.append(f"no run in {r.precision}")
    if r.schedule not in {x.schedule for x in runs}:
        found.append(f"no run with the schedule {r.schedule}")
    if r.model.mla and count(r.model).total < 1e10:
        found.append("no small model with latent attention")
    return found

"""Reasons for a prediction: changes that would help, the smallest fix, and the measured evidence.

    what_if(prediction)       the gain from doubling (or halving) each hardware rate, batch size and axis
    smallest_fix(prediction)  for a layout that doesn't fit: the cheapest single change after which it does
    evidence(prediction)      the nearest measured runs with their predictions, and what lies outside them

Each yields the requests that it wants priced: `together` of plan/predict.py prices those of several as one table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from scalewright.plan.curves import beyond_timed, probe_words
from scalewright.plan.features import measured, never
from scalewright.plan.fitting.runs import MEASURED, measured_seconds, read_table, run_facts
from scalewright.plan.frameworks import OURS, of_framework
from scalewright.plan.predict import Asking, Prediction, layout_keys
from scalewright.plan.records import Fix, Gain
from scalewright.plan.request import Request
from scalewright.plan.rows.cells import number, text
from scalewright.plan.rows.rows import request_of
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.layout_check import is_legal
from scalewright.spec.step_parts import RISK_TERMS
from scalewright.spec.tensors import count

NEVER = ("unmeasured", "device", "sibling", "feature")  # what widens a band for want of runs (cost/spread.py)
Change = tuple[str, Request]  # its words, the changed request


def what_if(prediction: Prediction) -> Asking[list[Gain]]:
    """Changes and the gain of each, best first."""
    asked = prediction.request
    changes = [("setting", *change) for change in _legal(asked, _settings(asked))]
    changes += [("hardware", *change) for change in _hardware(asked)]
    predictions = yield [request for _, _, request in changes]
    rate = prediction.tokens_per_s / asked.devices
    rows = [
        Gain(
            change=words if changed.risk == "fits" else f"{words}, {RISK_TERMS[changed.risk]}",
            kind=kind,
            step_time_s=changed.step_time_s,
            gain_pct=100 * (changed.tokens_per_s / request.devices / rate - 1),
        )
        for (kind, words, request), changed in zip(changes, predictions, strict=True)
    ]
    return sorted(rows, key=lambda row: -row["gain_pct"])


def _hardware(r: Request) -> Iterator[Change]:
    """Twice each rate of the devices and links in use."""
    chip = r.chip
    yield "peak x2", replace(r, chip=replace(chip, peaks=tuple((name, 2 * rate) for name, rate in chip.peaks)))
    yield "memory bandwidth x2", replace(r, chip=replace(chip, memory_rate=2 * chip.memory_rate))
    if r.devices > 1:
        yield "links inside the domain x2", replace(r, chip=replace(chip, link_rate=2 * chip.link_rate))
    if r.devices > chip.domain:
        yield "network between nodes x2", replace(r, chip=replace(chip, fabric_rate=2 * chip.fabric_rate))


def _settings(r: Request) -> Iterator[Change]:
    yield "global_batch x2", replace(r, accumulation=2 * r.accumulation)
    if r.accumulation >= 2 and r.accumulation % 2 == 0:
        yield "micro_batch x2", replace(r, micro_batch=2 * r.micro_batch, accumulation=r.accumulation / 2)
    if r.micro_batch % 2 == 0:
        yield "micro_batch / 2", replace(r, micro_batch=r.micro_batch // 2, accumulation=r.accumulation * 2)
    for axis in ("tp", "pp", "cp"):
        size = getattr(r, axis)
        for words, changed in ((f"{axis} x2", 2 * size), (f"{axis} / 2", size // 2)):
            if (moved := resized(r, axis, changed)) is not None:
                yield words, moved
    if r.model.moe is not None:
        yield "ep x2", replace(r, ep=2 * r.ep)
        if r.ep % 2 == 0:
            yield "ep / 2", replace(r, ep=r.ep // 2)
    if r.dp * r.cp > 1:
        others = (stage for stage in range(4) if stage != r.zero_stage)
        yield from ((f"zero_stage {stage}", replace(r, zero_stage=stage)) for stage in others)
    for kind in ("none", "selective", "full"):
        as_named = r.framework.name == OURS or kind != "selective"
        changed = replace(r, recompute=kind if as_named else r.framework.selective)
        if layout_keys(changed)["recompute"] != layout_keys(r)["recompute"]:
            yield f"recompute {kind}", changed
    if r.pp == 1 or r.stage_layers is not None:
        return
    v = max(2, r.virtual_stages)
    for kind, chunks in (("1f1b", 1), ("interleaved", v), ("zb-h1", 1), ("zb-interleaved", v), ("zbv", 2)):
        if (kind, chunks) != (r.schedule, r.virtual_stages):
            suffix = f", virtual_stages {chunks}" if chunks > 1 else ""
            yield f"schedule {kind}{suffix}", replace(r, schedule=kind, virtual_stages=chunks)


def _legal(r: Request, changes: Iterable[Change]) -> list[Change]:
    """The changes that are legal and that the trainer can run; a rule that the run itself breaks removes none."""
    legal, trainer = list(changes), of_framework(r.framework)
    if _is_legal(r):
        legal = [(words, changed) for words, changed in legal if _is_legal(changed)]
    if not trainer.missing(layout_keys(r)):
        legal = [(words, changed) for words, changed in legal if not trainer.missing(layout_keys(changed))]
    return legal


def _is_legal(r: Request) -> bool:
    keys = {key: value for key, value in layout_keys(r).items() if key != "dp"}
    try:
        return is_legal(Layout.parse(keys), r.model, r.seq_len)
    except UserError:
        return False


def resized(r: Request, axis: str, size: int) -> Request | None:
    """The request with this size of an axis and dp adjusted to it; None where that isn't possible."""
    if size < 1 or size == getattr(r, axis):
        return None
    tp, pp, cp = (size if axis == name else getattr(r, name) for name in ("tp", "pp", "cp"))
    if r.devices % (tp * pp * cp) or tp > r.model.num_attention_heads or r.seq_len % cp:
        return None
    dp = r.devices // (tp * pp * cp)
    micros = r.global_batch / (r.micro_batch * dp)
    whole = micros == int(micros) and micros >= 1
    fits = pp * r.virtual_stages <= r.model.num_hidden_layers and r.stage_layers is None
    if not whole or not fits or dp % r.dp_replicate or (dp // r.dp_replicate * cp * tp) % (r.ep * r.etp):
        return None
    chunks, schedule = (r.virtual_stages, r.schedule) if pp > 1 else (1, "1f1b")
    moved = replace(r, tp=tp, pp=pp, cp=cp, sp=tp > 1 and (r.sp or tp > r.tp), accumulation=micros)
    return replace(moved, virtual_stages=chunks, schedule=schedule)


def smallest_fix(prediction: Prediction, peak_gib: float | None = None) -> Asking[Fix | None]:
    """The fastest single change after which the layout fits; None when it does already, or its host is too small.

    Where no single change is enough, the one with the lowest peak. `peak_gib`: the layout's peak as counted
    elsewhere; the peaks of changed layouts are scaled by the same factor.
    """
    usable = prediction.usable_gib
    scale = 1.0 if peak_gib is None else peak_gib / prediction.peak_gib
    small = prediction.peak_gib * scale <= usable or not prediction.fits_host
    changes = [] if small else _legal(prediction.request, _leaner(prediction.request))
    predictions = yield [request for _, request in changes]
    fixes: list[Fix] = []
    for (words, _), changed in zip(changes, predictions, strict=True):
        peak = changed.peak_gib * scale
        fits = peak <= usable and changed.fits_host
        fixes.append({"change": words, "fits": fits, "peak_gib": peak, "step_time_s": changed.step_time_s})
    fitting = [fix for fix in fixes if fix["fits"]]
    if fitting:
        return min(fitting, key=lambda fix: fix["step_time_s"])
    return min(fixes, key=lambda fix: fix["peak_gib"], default=None)


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
            if (moved := resized(r, axis, times * getattr(r, axis))) is not None:
                yield f"{axis} {getattr(moved, axis)}", moved
    if r.offload == "none":
        yield "offload optimizer", replace(r, offload="optimizer")


def evidence(prediction: Prediction, most: int = 3) -> Asking[dict[str, object]]:
    """The nearest measured runs with their predictions, and in which respects this run lies outside them.

    A CPU's evidence is its own probe: there are no published runs on CPUs.
    """
    request = prediction.request
    name = request.framework.name
    if (timings := request.chip.timings) is not None:
        outside, probe = beyond_timed(timings, request.precision, request.devices), probe_words(timings)
        yield []
        return {"nearest": [], "extrapolates": outside, "never_measured": [], "framework": name, "probe": probe}
    runs = [_measured()[i] for i in np.argsort(_distances(request), kind="stable")[:most]]
    predictions = yield [run for run, _, _ in runs]
    nearest = [
        {**run_facts(row, run), "measured": seconds, "predicted": predicted.step_time_s}
        for (run, seconds, row), predicted in zip(runs, predictions, strict=True)
    ]
    outside, never = extrapolates(request), never_measured(request)
    keys = {"nearest": nearest, "extrapolates": outside, "never_measured": never, "framework": name}
    return keys | ({"band_wider": _wider(prediction)} if never else {})


def _wider(prediction: Prediction) -> float:
    """How many times as wide the band is, in log seconds, as if all of it had been measured."""
    table = prediction.table
    return round(float(table.sigma()[prediction.row] / table.sigma(NEVER)[prediction.row]), 2)


def never_measured(r: Request) -> list[str]:
    """The trainer, the device and the layout's features of which the table has no run, which widens the band."""
    trainer = [] if r.framework.measured or not r.framework.known else [r.framework.name]
    return [*trainer, *([] if r.chip.name in measured().chips else [r.chip.name]), *never(r)]


@lru_cache(maxsize=1)
def _measured() -> tuple[tuple[Request, float, Mapping[str, str]], ...]:
    """Every bundled run with a stated time: its request, seconds and row."""
    runs = []
    for row in read_table(MEASURED):
        stated = number(row, "step_time_s") or number(row, "tokens_per_s_per_device")
        if stated and not text(row, "stall") and not text(row, "suspect"):
            with suppress(UserError):
                runs.append((request := request_of(row), measured_seconds(row, request)[0], row))
    return tuple(runs)


@lru_cache(maxsize=1)
def _measured_facts() -> dict[str, np.ndarray]:
    """`_facts` of every measured run, as columns."""
    listed = [_facts(run) for run, _, _ in _measured()]
    return {name: np.array([facts[name] for facts in listed]) for name in listed[0]}


def _facts(r: Request) -> dict[str, Any]:
    """What runs are compared by."""
    sizes = ("devices", "seq_len", "tp", "pp", "cp", "ep", "micro_batch", "zero_stage", "precision", "schedule")
    chip, model = r.chip, {name: getattr(r.model, name) for name in ("hidden_size", "num_hidden_layers")}
    names = {"device": chip.name, "family": chip.family.name, "kernels": chip.family.kernels.name}
    trainer = {"framework": r.framework.name, "experts": r.model.moe is not None}
    return {**{name: getattr(r, name) for name in sizes}, **model, **names, **trainer}


def _distances(r: Request) -> np.ndarray:
    """The distance of every measured run: doublings of size, and penalties for other devices, trainers and models."""
    run, others = _facts(r), _measured_facts()
    sizes = ("devices", "hidden_size", "num_hidden_layers", "tp", "pp", "seq_len", "micro_batch")
    unlike = {"kernels": 4.0, "device": 1.0, "framework": 2.0, "precision": 1.0, "experts": 4.0, "zero_stage": 1.0}
    doublings = [np.abs(np.log2(np.maximum(others[name], 1) / max(run[name], 1))) for name in sizes]
    others_unlike = [weight * (others[name] != run[name]) for name, weight in unlike.items()]
    return np.asarray(np.sum([*doublings, *others_unlike], axis=0))


def extrapolates(r: Request) -> list[str]:
    """In which respects a run lies outside the measured ones."""
    run, others, outside = _facts(r), _measured_facts(), []
    for name in ("devices", "seq_len", "hidden_size", "tp", "pp", "cp", "ep"):
        least, most = others[name].min(), others[name].max()
        if not least <= run[name] <= most:
            outside.append(f"{name} {run[name]} (measured: {least} to {most})")
    if run["family"] not in others["family"]:
        outside.append(f"no run on {run['family']} devices")
    elif run["device"] not in others["device"]:
        outside.append(f"no run on {run['device']}, only on others of its generation")
    for words, name in (("of", "framework"), ("in", "precision"), ("with the schedule", "schedule")):
        if run[name] not in others[name]:
            outside.append(f"no run {words} {run[name]}")
    if r.model.mla and count(r.model).total < 1e10:
        outside.append("no small model with latent attention")
    return outside

"""Predictions against what was measured: per source, averaged over sources, beside the baselines.

    error = predicted / measured - 1        of a source: the median of its absolute value, its median, its
    mean, ... overall: the mean over sources with at least five rows, so that large sweeps don't decide

Rows marked `stall` or `suspect`, and rows whose time had to be converted from TFLOP/s or MFU, are scored
apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from scalewright.plan.constants import Constants
from scalewright.plan.cost.memory import GIB
from scalewright.plan.measured.baselines import baselines
from scalewright.plan.measured.profile import held_out_error
from scalewright.plan.measured.rank import rankings
from scalewright.plan.measured.runs import (
    MEASURED,
    OUT_OF_MEMORY,
    Runs,
    once_a_layout,
    oom_row,
    read_table,
    runs_of,
)
from scalewright.plan.predict import Predictions, predict_table

LEAST = 5  # rows that make a source count in the mean


def summary(error: np.ndarray, layout: np.ndarray, within: np.ndarray | None = None) -> dict[str, float]:
    """Figures of a set of relative errors, every layout counted once: by the median of its rows.

    `within`: whether each measurement lies between p10 and p90.
    """
    far, signed = once_a_layout(np.abs(error), layout), once_a_layout(error, layout)
    figures = {
        "rows": len(error),
        "layouts": len(far),
        "median_error_pct": 100 * float(np.median(far)),
        "mape_pct": 100 * float(np.mean(far)),
        "bias_pct": 100 * float(np.median(signed)),
        "p90_error_pct": 100 * float(np.quantile(far, 0.9)),
    }
    if within is not None:
        shares = [within[layout == number].mean() for number in np.unique(layout)]
        figures["coverage_pct"] = 100 * float(np.mean(shares))
    return figures


def score(
    rows: Iterable[Mapping[str, Any]] | None = None,
    oom: Iterable[Mapping[str, Any]] | None = None,
    c: Constants | None = None,
    seconds: np.ndarray | None = None,
    fit: int | None = None,
) -> dict[str, Any]:
    """Scores a table of measured runs, errors in percent; null: the bundled one, and its runs out of memory.

    `seconds` replaces the predicted times, row by row of those that could be expressed: those of a fit
    that left each row's source out, for one.
    """
    if rows is None:
        rows, oom = read_table(MEASURED), read_table(OUT_OF_MEMORY) if oom is None else oom
    runs = runs_of(rows)
    if not len(runs):
        return {"rows": 0, "expressed_pct": 0.0, "refused": runs.refused}
    found = predict_table(runs.requests, c)
    predicted = found.p50 if seconds is None else seconds
    answer = {"rows": len(runs) + len(runs.refused), **_times(runs, found, predicted)}
    answer["expressed_pct"] = 100 * len(runs) / answer["rows"]
    answer["refused"] = runs.refused
    answer["memory"] = _memory(runs, found)
    answer["ranking"] = [asdict(one) for one in rankings(*layout_groups(runs, predicted))]
    answer["worst"] = _worst(runs, predicted)
    if fit:
        answer["profile"] = held_out_error(runs, fit)
    if oom is not None:
        answer["fits"] = fits(runs, found, oom, c)
    return answer


def _times(runs: Runs, found: Predictions, predicted: np.ndarray) -> dict[str, Any]:
    error = predicted / runs.seconds - 1
    shift = predicted / found.p50
    within = (runs.seconds >= found.p10 * shift) & (runs.seconds <= found.p90 * shift)
    timed = np.isfinite(runs.seconds)
    plain, layout = runs.plain, runs.layout
    sources: dict[str, dict[str, float]] = {}
    apart: dict[str, dict[str, float]] = {}
    rivals = {name: np.abs(value / runs.seconds - 1) for name, value in baselines(found.outcome).items()}
    for source in dict.fromkeys(runs.source.tolist()):
        at = plain & (runs.source == source)
        if at.any():
            sources[source] = summary(error[at], layout[at], within[at])
            for name, far in rivals.items():
                sources[source][f"baseline_{name}_pct"] = 100 * float(np.median(far[at]))
        for word, mask in (
            ("converted", timed & runs.converted & ~runs.apart),
            ("stall or suspect", timed & runs.apart),
        ):
            at = mask & (runs.source == source)
            if at.any():
                apart[f"{source}: {word}"] = summary(error[at], layout[at])
    return {"overall": _overall(sources, rivals), "sources": sources, "apart": apart}


def _overall(sources: Mapping[str, Mapping[str, float]], rivals: Mapping[str, Any]) -> dict[str, Any]:
    counted = {name: figures for name, figures in sources.items() if figures["rows"] >= LEAST} or dict(
        sources
    )
    keys = (
        "median_error_pct",
        "mape_pct",
        "bias_pct",
        "coverage_pct",
        *(f"baseline_{name}_pct" for name in rivals),
    )
    means = {key: float(np.mean([one[key] for one in counted.values()])) for key in keys} if counted else {}
    if not counted:
        return {"sources": 0}
    best = min(rivals, key=lambda name: means[f"baseline_{name}_pct"])
    beaten = [one["median_error_pct"] < one[f"baseline_{best}_pct"] for one in counted.values()]
    share = 100 * float(np.mean(beaten))
    return {"sources": len(counted), **means, "best_baseline": best, "sources_better_than_it_pct": share}


def memory_of_kind(runs: Runs, predictions: Predictions) -> np.ndarray:
    """GiB of the kind that each row has measured: allocated, reserved, or nvidia-smi's."""
    held = predictions.outcome.memory
    assert held is not None
    kinds = [list(held.kinds).index(kind) for kind in runs.memory_kind]
    return np.asarray(np.choose(kinds, list(held.kinds.values())) / GIB)


def _memory(runs: Runs, found: Predictions) -> dict[str, Any]:
    error = memory_of_kind(runs, found) / runs.memory - 1
    sources = {}
    for source in dict.fromkeys(runs.source.tolist()):
        at = np.isfinite(error) & ~runs.apart & (runs.source == source)
        if at.any():
            sources[source] = summary(error[at], runs.layout[at])
    counted = [one["median_error_pct"] for one in sources.values() if one["rows"] >= LEAST]
    return {"median_error_pct": float(np.mean(counted)) if counted else None, "sources": sources}


def layout_groups(runs: Runs, predicted: np.ndarray) -> tuple[list[tuple[str, ...]], np.ndarray, np.ndarray]:
    """Rows that differ in nothing but the layout: one model, machine, batch and trainer."""
    use = np.flatnonzero(runs.plain)
    keys: list[tuple[str, ...]] = []
    for index in use:
        r = runs.requests[index]
        model = (r.model.name, str(r.model.num_hidden_layers))
        machine = (r.chip.name, str(r.devices))
        work = (str(r.seq_len), f"{r.global_batch:.0f}", r.precision)
        trainer = str(runs.rows[index].get("framework", ""))
        keys.append((str(runs.source[index]), *model, *machine, *work, trainer))
    return keys, predicted[use], runs.seconds[use]


def _worst(runs: Runs, predicted: np.ndarray, many: int = 20) -> list[dict[str, Any]]:
    error = predicted / runs.seconds - 1
    use = np.flatnonzero(np.isfinite(error) & runs.plain)
    worst = []
    for i in use[np.argsort(-np.abs(np.log1p(error[use])))][:many]:
        request = runs.requests[i]
        worst.append(
            {
                "id": str(runs.rows[i].get("id", "")),
                "source": str(runs.source[i]),
                "model": request.model.name,
                "device": request.chip.name,
                "devices": request.devices,
                "measured_s": float(runs.seconds[i]),
                "predicted_s": float(predicted[i]),
                "error_pct": 100 * float(error[i]),
            }
        )
    return worst


def fits(
    runs: Runs, found: Predictions, oom: Iterable[Mapping[str, Any]], c: Constants | None = None
) -> dict[str, float]:
    """Runs that ran, and those of their sweep that ran out of memory: the shares told right."""
    held = found.outcome.memory
    assert held is not None
    ran = np.isfinite(runs.memory) & np.array([r.framework.name == "nanotron" for r in runs.requests])
    failed = runs_of([oom_row(row) for row in oom if row.get("outcome") == "oom_or_crashed"])
    if not ran.any() or not len(failed):
        return {}
    out = predict_table(failed.requests, c).outcome.memory
    assert out is not None
    right_ran, right_out = float(held.fits[ran].mean()), float((~out.fits).mean())
    return {
        "ran": int(ran.sum()),
        "out_of_memory": len(failed),
        "ran_right_pct": 100 * right_ran,
        "out_of_memory_right_pct": 100 * right_out,
        "balanced_pct": 50 * (right_ran + right_out),
    }

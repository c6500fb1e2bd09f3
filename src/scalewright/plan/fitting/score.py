"""Errors of the predictions on measured runs: per source, averaged over sources, beside the baselines; ranking.

    error = predicted / measured - 1
    of a source: median and mean of its absolute value, its median (bias), its p90
    overall: the mean over sources with at least five rows, so that large sweeps don't dominate

    baselines: seconds = FLOPs / (devices · half of peak), whatever the layout; FLOPs the model's, or with
    full recomputation, attention unmasked; with the bubble: · (1 + (p - 1) / (m v))

    ranking of layouts, within groups of one model and machine
        tau      (pairs in the same order - in the opposite order) / sqrt(pairs untied in one x in the other)
        regret   measured time of the layout that is predicted fastest / shortest measured time - 1

Rows marked `stall` or `suspect`, and rows converted from TFLOP/s or MFU, are scored apart. Tau is tau-b (Kendall 1945);
a regret of 0.05 is a step 5% longer than necessary.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from scalewright.plan.cost.evaluate import Outcome
from scalewright.plan.cost.memory import GIB
from scalewright.plan.cost.spread import Unseen
from scalewright.plan.cost.table import RECOMPUTE
from scalewright.plan.fitting.calibrate import held_out_error
from scalewright.plan.fitting.runs import MEASURED, OUT_OF_MEMORY, Runs, once_a_layout, oom_row, read_table, runs_of
from scalewright.plan.predict import Predictions, predict_table

LEAST = 5  # rows a source needs to count in the mean
BASELINES = ("model", "hardware", "model_and_bubble", "hardware_and_bubble")


def summary(error: np.ndarray, layout: np.ndarray, within: np.ndarray | None = None) -> dict[str, float]:
    """Figures of relative errors, a layout once, by its rows' median; `within`: measured between p10 and p90."""
    absolute, signed = once_a_layout(np.abs(error), layout), once_a_layout(error, layout)
    figures = {
        "rows": len(error),
        "layouts": len(absolute),
        "median_error_pct": 100 * float(np.median(absolute)),
        "mape_pct": 100 * float(np.mean(absolute)),
        "bias_pct": 100 * float(np.median(signed)),
        "p90_error_pct": 100 * float(np.quantile(absolute, 0.9)),
    }
    if within is not None:
        shares = [within[layout == number].mean() for number in np.unique(layout)]
        figures["coverage_pct"] = 100 * float(np.mean(shares))
    return figures


def score(
    rows: Iterable[Mapping[str, Any]] | None = None,
    oom: Iterable[Mapping[str, Any]] | None = None,
    seconds: np.ndarray | None = None,
    fit: int | None = None,
    new: Unseen | None = None,
) -> dict[str, Any]:
    """Scores a table of measured runs, errors in percent; by default the bundled ones, with oom_runs.csv.

    `seconds` replaces the predicted times of the rows that could be expressed, as with those of `fit.left_out`; `new`:
    what a fit without a group never saw, for as wide a band.
    """
    if rows is None:
        rows, oom = read_table(MEASURED), read_table(OUT_OF_MEMORY) if oom is None else oom
    runs = runs_of(rows)
    if not len(runs):
        return {"rows": 0, "expressed_pct": 0.0, "refused": runs.refused}
    predictions = predict_table(runs.requests, None, new)
    predicted = predictions.p50 if seconds is None else seconds
    rows_in_all = len(runs) + len(runs.refused)
    answer = {
        "rows": rows_in_all,
        **_times(runs, predictions, predicted),
        "expressed_pct": 100 * len(runs) / rows_in_all,
        "refused": runs.refused,
        "memory": _memory(runs, predictions),
        "ranking": [asdict(ranking) for ranking in rankings(*layout_groups(runs, predicted))],
        "worst": _worst(runs, predicted),
    }
    if fit:
        answer["profile"] = held_out_error(runs, fit)
    if oom is not None:
        answer["fits"] = fits(runs, predictions, oom)
    return answer


def _times(runs: Runs, predictions: Predictions, predicted: np.ndarray) -> dict[str, object]:
    """Errors of the step times: overall, of each source, and of rows that are scored apart."""
    error, shift = predicted / runs.seconds - 1, predicted / predictions.p50
    within = (runs.seconds >= predictions.p10 * shift) & (runs.seconds <= predictions.p90 * shift)
    timed, layout = np.isfinite(runs.seconds), runs.layout
    masks = {"converted": timed & runs.converted & ~runs.apart, "stall or suspect": timed & runs.apart}
    rivals = {n: np.abs(value / runs.seconds - 1) for n, value in baselines(predictions.outcome).items()}
    sources: dict[str, dict[str, float]] = {}
    for source, rows in _by_source(runs, runs.plain):
        sources[source] = summary(error[rows], layout[rows], within[rows])
        for name, rival in rivals.items():
            sources[source][f"baseline_{name}_pct"] = 100 * float(np.median(rival[rows]))
    apart = {
        f"{source}: {word}": summary(error[rows], layout[rows])
        for source in dict.fromkeys(runs.source.tolist())
        for word, mask in masks.items()
        if (rows := mask & (runs.source == source)).any()
    }
    return {"overall": _overall(sources, rivals), "sources": sources, "apart": apart}


def _by_source(runs: Runs, mask: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Each source with the masked rows of it, where there are any."""
    for source in dict.fromkeys(runs.source.tolist()):
        if (rows := mask & (runs.source == source)).any():
            yield source, rows


def _overall(sources: Mapping[str, Mapping[str, float]], rivals: Iterable[str]) -> dict[str, float | str]:
    """Means over the sources with enough rows (over all where none has), beside the best baseline."""
    counted = [figures for figures in sources.values() if figures["rows"] >= LEAST] or [*sources.values()]
    if not counted:
        return {"sources": 0}
    figures_of = ("median_error_pct", "mape_pct", "bias_pct", "coverage_pct")
    keys = (*figures_of, *(f"baseline_{name}_pct" for name in rivals))
    means = {key: float(np.mean([figures[key] for figures in counted])) for key in keys}
    best = min(rivals, key=lambda name: means[f"baseline_{name}_pct"])
    beaten = [figures["median_error_pct"] < figures[f"baseline_{best}_pct"] for figures in counted]
    share = 100 * float(np.mean(beaten))
    return {"sources": len(counted), **means, "best_baseline": best, "sources_better_than_it_pct": share}


def memory_of_kind(runs: Runs, predictions: Predictions) -> np.ndarray:
    """Predicted GiB of the kind that each row states: allocated, reserved, or nvidia-smi's."""
    by_kind = predictions.outcome.memory.kinds
    kinds = [list(by_kind).index(kind) for kind in runs.memory_kind]
    return np.asarray(np.choose(kinds, list(by_kind.values())) / GIB)


def _memory(runs: Runs, predictions: Predictions) -> dict[str, object]:
    """Errors of the peak memory, of each source and on average."""
    error = memory_of_kind(runs, predictions) / runs.memory - 1
    known, layout = np.isfinite(error) & ~runs.apart, runs.layout
    sources = {source: summary(error[rows], layout[rows]) for source, rows in _by_source(runs, known)}
    counted = [figures["median_error_pct"] for figures in sources.values() if figures["rows"] >= LEAST]
    return {"median_error_pct": float(np.mean(counted)) if counted else None, "sources": sources}


def layout_groups(runs: Runs, predicted: np.ndarray) -> tuple[list[tuple[str, ...]], np.ndarray, np.ndarray]:
    """The group of each row (same model, machine, batch and trainer), its predicted and measured seconds."""
    use = np.flatnonzero(runs.plain)
    keys: list[tuple[str, ...]] = []
    for index in use:
        r = runs.requests[index]
        model = (r.model.name, str(r.model.num_hidden_layers))
        machine = (r.chip.name, str(r.devices))
        work = (str(r.seq_len), f"{r.global_batch:.0f}", r.precision)
        keys.append((str(runs.source[index]), *model, *machine, *work, str(runs.rows[index].get("framework", ""))))
    return keys, predicted[use], runs.seconds[use]


def _worst(runs: Runs, predicted: np.ndarray, most: int = 20) -> list[dict[str, str | float]]:
    error = predicted / runs.seconds - 1
    use = np.flatnonzero(np.isfinite(error) & runs.plain)
    return [
        {
            "id": str(runs.rows[i].get("id", "")),
            "source": str(runs.source[i]),
            "model": runs.requests[i].model.name,
            "device": runs.requests[i].chip.name,
            "devices": runs.requests[i].devices,
            "measured_s": float(runs.seconds[i]),
            "predicted_s": float(predicted[i]),
            "error_pct": 100 * float(error[i]),
        }
        for i in use[np.argsort(-np.abs(np.log1p(error[use])))][:most]
    ]


def fits(runs: Runs, predictions: Predictions, oom: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The shares of nanotron's runs, and of its runs out of memory, for which `fits` is right."""
    ran = np.isfinite(runs.memory) & np.array([r.framework.name == "nanotron" for r in runs.requests])
    failed = runs_of([oom_row(row) for row in oom if row.get("outcome") == "oom_or_crashed"])
    if not ran.any() or not len(failed):
        return {}
    out = predict_table(failed.requests).outcome.memory
    right_ran = float(predictions.outcome.memory.fits[ran].mean())
    right_out = float((~out.fits).mean())
    return {
        "ran": int(ran.sum()),
        "out_of_memory": len(failed),
        "ran_right_pct": 100 * right_ran,
        "out_of_memory_right_pct": 100 * right_out,
        "balanced_pct": 50 * (right_ran + right_out),
    }


def baselines(outcome: Outcome) -> dict[str, np.ndarray]:
    """Seconds of a step of every row by each baseline of `BASELINES`."""
    at, t = outcome.step.at, outcome.step.at.table
    block, ends = at.prices.square[t.unit, 1], at.prices.square[t.unit][:, (0, 2, 3)].sum(1)
    ranks, layers = t.tp * t.cp * t.dp * t.accumulation, at.work.blocks
    model = 3 * (block * layers + ends) * ranks
    hardware = model + np.where(t.recompute == RECOMPUTE.index("full"), block * layers * ranks, 0.0)
    rate = at.chip.peak * 0.5 * t.devices
    bubble = 1 + (t.pp - 1) / (t.accumulation * t.virtual_stages)
    seconds = (model / rate, hardware / rate, model / rate * bubble, hardware / rate * bubble)
    return dict(zip(BASELINES, seconds, strict=True))


@dataclass(frozen=True)
class Ranking:
    """Tau and regret of one group."""

    group: tuple[str, ...]
    layouts: int
    tau: float
    regret: float


def kendall_tau(a: np.ndarray, b: np.ndarray) -> float:
    """Kendall's tau-b of two arrays; nan where one of them is constant."""
    upper = np.triu_indices(len(a), 1)
    x, y = np.sign(a[:, None] - a[None, :])[upper], np.sign(b[:, None] - b[None, :])[upper]
    untied = float(np.sqrt((x != 0).sum() * (y != 0).sum()))
    return float((x * y).sum() / untied) if untied else float("nan")


def regret(predicted: np.ndarray, measured: np.ndarray) -> float:
    """The regret of choosing the layout predicted fastest; the mean where predictions tie."""
    return float(measured[predicted <= predicted.min() * (1 + 1e-9)].mean() / measured.min() - 1)


def rankings(
    groups: Sequence[tuple[str, ...]], predicted: np.ndarray, measured: np.ndarray, least: int = 5
) -> list[Ranking]:
    """Tau and regret of every group of at least `least` layouts."""
    members: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        members[group].append(index)
    pairs = {group: (predicted[rows], measured[rows]) for group, rows in members.items() if len(rows) >= least}
    return [Ranking(group, len(a), kendall_tau(a, b), regret(a, b)) for group, (a, b) in pairs.items()]

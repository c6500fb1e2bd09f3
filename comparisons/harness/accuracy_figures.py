"""The planner's figures on the measured runs: as shipped, and with lineages, clusters, ... left out.

    runs ──► shipped constants            ──► score                         (constants that saw every source)
         ├─► fitted without one lineage   ──► its rows scored as unknown trainers'
         ├─► ... one cluster              ──► its rows scored, bands as of devices that the others lack
         ├─► ... one source    ──► its rows scored, each source in turn
         ├─► ... one family of models     ──► the same
         ├─► ... one generation of devices ─► the same
         └─► llm-analysis                 ──► the rows that it can express

Everything that the page and the plots show is in one `Figures`.
"""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.plan.constants import facts
from scalewright.plan.cost.spread import Unseen
from scalewright.plan.fitting.calibrate import held_out_error
from scalewright.plan.fitting.fit import LEFT_OUT, groups_of, left_out, mean_error, of_unknown_trainers, source_errors
from scalewright.plan.fitting.runs import MEASURED, Runs, once_a_layout, read_table, runs_of
from scalewright.plan.fitting.score import LEAST, baselines, layout_groups, memory_of_kind, rankings, score, summary
from scalewright.plan.predict import Predictions, predict_table

PROFILE_ROWS = (4, 8, 16)
PROFILED = ("vtrain-multi", "bloom-chronicles", "llm-foundry-mpt", "dgxc-benchmarking", "megatron-bridge")
COLUMNS = ("id", "iteration_s", "forward_s", "memory_gib", "refused")


@dataclass
class Figures:
    """All numbers of the page; arrays have one entry a run that could be expressed."""

    runs: Runs
    found: Predictions
    left_out: dict[str, np.ndarray]  # seconds, by what was left out
    shipped: dict[str, Any]  # score() with the constants as shipped
    scored: dict[str, dict[str, Any]]  # score() of left_out
    profiles: dict[str, dict[int, dict[str, float]]]
    constants: dict[str, int]
    peer: dict[str, Any] = field(default_factory=dict)

    @property
    def plain(self) -> np.ndarray:
        """Runs that count: timed, neither stalled nor suspect, not converted from FLOPs."""
        return self.runs.plain

    def error(self, kind: str | None = "source") -> np.ndarray:
        """predicted / measured - 1, left out by `kind`, or as shipped (None)."""
        seconds = self.found.p50 if kind is None else self.left_out[kind]
        return np.asarray(seconds / self.runs.seconds - 1)


def collect(sources: list[str] | None = None) -> Figures:
    """Fits and scores everything: minutes on one core; `sources` takes only those, for a trial."""
    rows = [row for row in read_table(MEASURED) if not sources or row["source"] in sources]
    runs = runs_of(rows)
    outs = {kind: left_out(runs, kind) for kind in LEFT_OUT}
    profiles = {
        source: {many: held_out_error(_of(runs, source), many) for many in PROFILE_ROWS}
        for source in PROFILED
        if (runs.source == source).sum() > max(PROFILE_ROWS)
    }
    return Figures(
        runs, predict_table(runs.requests), outs, score(rows if sources else None),
        {kind: _scored(runs, kind, seconds) for kind, seconds in outs.items()}, profiles,
        {"fitted": sum(fact.fitted for fact in facts()), "all": len(facts())},
    )  # fmt: skip


def _scored(runs: Runs, kind: str, seconds: np.ndarray) -> dict[str, Any]:
    """`score` of seconds from a fit; bands are as wide as what the fit never saw makes them."""
    asked = of_unknown_trainers(runs) if kind == "lineage" else runs
    return score(asked.rows, seconds=seconds, new=unseen_by_others(runs, groups_of(runs, kind)))


def unseen_by_others(runs: Runs, groups: np.ndarray) -> Unseen:
    """Rows whose device, its family or trainer no group but their own has: what a fit without it never saw."""
    keys = [(r.chip.name, r.chip.family.kernels.name, r.framework.name) for r in runs.requests]
    masks = []
    for values in map(np.array, zip(*keys, strict=True)):
        found = {value: set(groups[runs.plain & (values == value)].tolist()) for value in set(values.tolist())}
        masks.append(np.array([found[v] <= {g} for v, g in zip(values.tolist(), groups.tolist(), strict=True)]))
    return Unseen(*masks)


def _of(runs: Runs, source: str) -> Runs:
    return runs.take(runs.source == source)


def cuts(figures: Figures) -> dict[str, dict[str, float]]:
    """Of each way to leave out: errors, bias and how many lie in the band; of mixtures, and of devices never seen.

    Means over sources, of at least five rows (of mixtures and new devices: five such rows).
    """
    runs, found = figures.runs, {}
    mixture = np.array([request.model.moe is not None for request in runs.requests])
    for kind, seconds in figures.left_out.items():
        new = unseen_by_others(runs, groups_of(runs, kind))
        asked = of_unknown_trainers(runs) if kind == "lineage" else runs
        band = predict_table(asked.requests, None, new)
        shift = seconds / band.p50
        inside = (runs.seconds >= band.p10 * shift) & (runs.seconds <= band.p90 * shift)
        error, entry = figures.error(kind), {}
        parts = {
            "all": np.ones(len(runs), bool),
            "dense": ~mixture,
            "mixtures": mixture,
            "new": new.device | new.family,
        }
        for name, part in parts.items():
            rows = [figures.plain & part & (runs.source == source) for source in dict.fromkeys(runs.source.tolist())]
            summed = [summary(error[at], runs.layout[at], inside[at]) for at in rows if at.sum() >= LEAST]
            for key in ("median_error_pct", "bias_pct", "coverage_pct"):
                entry[f"{name}_{key}"] = float(np.mean([one[key] for one in summed])) if summed else float("nan")
        found[kind] = entry
    return found


def by_group(figures: Figures, kind: str, trainers: bool = False) -> list[dict[str, Any]]:
    """For every group that was left out (or trainer): rows, median error and bias, left out and as shipped.

    A layout counts once, as in `score`.
    """
    names = np.array([request.framework.name for request in figures.runs.requests])
    groups = names if trainers else groups_of(figures.runs, kind)
    plain, layout = figures.plain, figures.runs.layout
    out, shipped = figures.error(kind), figures.error(None)
    found = []
    for group in dict.fromkeys(groups.tolist()):
        at = plain & (groups == group) & np.isfinite(out)
        if at.any():
            found.append({
                "group": group, "rows": int(at.sum()),
                "left_out": 100 * float(np.median(once_a_layout(np.abs(out[at]), layout[at]))),
                "bias": 100 * float(np.median(once_a_layout(out[at], layout[at]))),
                "shipped": 100 * float(np.median(once_a_layout(np.abs(shipped[at]), layout[at]))),
            })  # fmt: skip
    return found


def means(figures: Figures) -> dict[str, float]:
    """The mean over sources of the median error, by what was left out."""
    found = {"nothing": mean_error(figures.runs, figures.found.p50)}
    return found | {kind: mean_error(figures.runs, figures.left_out[kind]) for kind in LEFT_OUT}


def over_sources(figures: Figures, kind: str | None) -> dict[str, float]:
    """Of the sources' median errors: their mean, the mean without a tenth at either end, and their median."""
    seconds = figures.found.p50 if kind is None else figures.left_out[kind]
    errors = source_errors(figures.runs, seconds)
    cut = len(errors) // 10
    return {
        "mean": float(errors.mean()),
        "trimmed": float(errors[cut : len(errors) - cut].mean()),
        "median": float(np.median(errors)),
    }


def in_words(key: str) -> str:
    """A baseline's key as it is read."""
    return key.replace("_", " ")


def rival_errors(figures: Figures) -> dict[str, np.ndarray]:
    """Relative errors of the four baselines."""
    return {name: seconds / figures.runs.seconds - 1 for name, seconds in baselines(figures.found.outcome).items()}


# -- llm-analysis ---------------------------------------------------------------------------------


def ask_peer(runs: Runs) -> list[dict[str, Any]]:
    """Every run through llm-analysis; raises ImportError where it isn't installed."""
    from harness.llm_analysis_rows import predicted, refusal

    answers = []
    for row, request in zip(runs.rows, runs.requests, strict=True):
        why = refusal(request)
        answer: dict[str, Any] = {"id": row["id"], "refused": why or ""}
        if why is None:
            try:
                answer |= {name: f"{value:.6g}" for name, value in predicted(request).items()}
            except AssertionError as error:
                answer["refused"] = f"it says: {error}"
        answers.append(answer)
    return answers


def save_peer(answers: list[dict[str, Any]], path: Path) -> None:
    """Writes the answers as a table."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(answers)


def compare_peer(figures: Figures, answers: list[dict[str, Any]]) -> dict[str, Any]:
    """What llm-analysis can express and how far it is off, beside ours on the same rows."""
    by_id = {answer["id"]: answer for answer in answers}
    rows = [by_id.get(str(row["id"]), {}) for row in figures.runs.rows]
    seconds = {
        name: np.array([float(row.get(name) or np.nan) for row in rows])
        for name in ("iteration_s", "forward_s", "memory_gib")
    }
    asked = figures.plain & np.isfinite(seconds["iteration_s"])
    every = {**{name: seconds[name] for name in ("iteration_s", "forward_s")},
             "ours": figures.left_out["source"], "ours, shipped": figures.found.p50}  # fmt: skip
    sources = {}
    for source in dict.fromkeys(figures.runs.source[asked].tolist()):
        at = asked & (figures.runs.source == source)
        far = {name: np.abs(value[at] / figures.runs.seconds[at] - 1) for name, value in every.items()}
        sources[source] = {"rows": int(at.sum())} | {n: 100 * float(np.median(e)) for n, e in far.items()}
    counted = [entry for entry in sources.values() if entry["rows"] >= 5]
    return {
        "expressed": int(np.isfinite(seconds["iteration_s"]).sum()),
        "timed": int(asked.sum()),
        "refused": dict(Counter(row["refused"] for row in rows if row.get("refused")).most_common()),
        "sources": sources,
        "mean": {name: float(np.mean([entry[name] for entry in counted])) for name in every} if counted else {},
        "ranking": {name: _ranking(figures, value, asked) for name, value in every.items()},
        "memory": _peer_memory(figures, seconds["memory_gib"]),
    }


def _ranking(figures: Figures, seconds: np.ndarray, rows: np.ndarray) -> dict[str, Any]:
    """Ranking of vTrain's multi-node layouts by these predictions, among the rows that have them."""
    part = _of(_only(figures.runs, rows), "vtrain-multi")
    predicted = seconds[rows & (figures.runs.source == "vtrain-multi")]
    groups = rankings(*layout_groups(part, predicted)) if len(part) else []
    return {
        "groups": len(groups),
        "tau": float(np.mean([group.tau for group in groups])) if groups else None,
        "regret": [group.regret for group in groups],
    }


def _only(runs: Runs, rows: np.ndarray) -> Runs:
    return runs.take(rows)


def _peer_memory(figures: Figures, gib: np.ndarray) -> dict[str, Any]:
    """Median error of memory by source, its and ours, on the rows that both have."""
    ours = memory_of_kind(figures.runs, figures.found)
    found = {}
    at_all = np.isfinite(gib) & np.isfinite(figures.runs.memory) & ~figures.runs.apart
    for source in dict.fromkeys(figures.runs.source[at_all].tolist()):
        at = at_all & (figures.runs.source == source)
        real = figures.runs.memory[at]
        found[source] = {
            "rows": int(at.sum()),
            "it": 100 * float(np.median(np.abs(gib[at] / real - 1))),
            "ours": 100 * float(np.median(np.abs(ours[at] / real - 1))),
        }
    return found

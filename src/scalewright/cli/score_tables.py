"""A score for people: sources with ours beside the best baseline, then ranking, memory and the worst rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from scalewright.cli.plan_tables import emit
from scalewright.cli.terminal import print_table
from scalewright.spec.common.formatting import short_time

Figures = Mapping[str, Any]
BASELINE = re.compile(r"baseline_(\w+)_pct")  # the key of a baseline's error


def show_score(figures: Figures) -> None:
    emit(f"[bold]{figures['rows']:,} runs[/], {figures['expressed_pct']:.1f}% of them expressed")
    if "left_out" in figures:
        emit("each source is predicted by constants that were fitted without it")
    _sources(figures)
    _apart(figures.get("apart") or {})
    _ranking(figures.get("ranking") or [])
    _memory(figures)
    _worst(figures.get("worst") or [])
    _profile(figures.get("profile"))
    _refused(figures.get("refused") or [])


def _sources(figures: Figures) -> None:
    """Every source, and the means over those that are large enough, with the baselines."""
    sources, overall = figures.get("sources") or {}, figures.get("overall") or {}
    if not sources:
        emit("no measured step times")
        return
    best = overall.get("best_baseline")
    rows = [_source(name, errors, best) for name, errors in sources.items()]
    columns = ("source", "rows", "error", "mean error", "bias", "in p10-p90", f"baseline: {words(best)}")
    emit("\n[bold]step time[/] (error: the median of |predicted / measured - 1|)")
    print_table(columns, rows)
    if "median_error_pct" not in overall:
        return
    emit(
        f"\n[bold]mean over {overall['sources']} sources[/] (of five rows or more, or all when none is): "
        f"error [bold]{overall['median_error_pct']:.1f}%[/], mean error {overall['mape_pct']:.1f}%, "
        f"bias {overall['bias_pct']:+.1f}%, in p10-p90 {overall['coverage_pct']:.0f}%"
    )
    rivals = {match[1]: value for key, value in overall.items() if (match := BASELINE.fullmatch(key))}
    for name, value in sorted(rivals.items(), key=lambda item: item[1]):
        emit(f"  every device at {f'half of peak, {words(name)} FLOPs':<42} {value:>5.1f}%")
    if (better := overall.get("sources_better_than_it_pct")) is not None:
        emit(f"  better than the best of these on {better:.0f}% of the sources")
    for kind, value in (figures.get("left_out") or {}).items():
        emit(f"  each {kind} left out: {value:.1f}%")


def words(name: str | None) -> str:
    return (name or "").replace("_", " ")


def _source(name: str, errors: Figures, best: str | None) -> tuple[str, ...]:
    rival = errors.get(f"baseline_{best}_pct")
    return (
        name, f"{errors['rows']:,.0f}", pct(errors["median_error_pct"]), pct(errors["mape_pct"]),
        f"{errors['bias_pct']:+.1f}%", f"{errors.get('coverage_pct', 0):.0f}%",
        "" if rival is None else pct(rival),
    )  # fmt: skip


def _apart(sources: Figures) -> None:
    if not sources:
        return
    emit("\n[bold]kept apart[/] (marked stall or suspect, or a time converted from FLOP/s)")
    rows = [
        (name, f"{errors['rows']:.0f}", pct(errors["median_error_pct"])) for name, errors in sources.items()
    ]
    print_table(("source", "rows", "error"), rows)


def _ranking(groups: list[Figures]) -> None:
    """Layouts of one model on one machine: is their order right, and what would the pick cost?"""
    if not groups:
        return
    emit("\n[bold]ranking[/] (regret: what the layout predicted fastest costs more than the fastest)")
    rows = []
    for source in dict.fromkeys(group["group"][0] for group in groups):
        from_source = [group for group in groups if group["group"][0] == source]
        worst = max(from_source, key=lambda group: group["regret"])
        tau, regret = ([group[key] for group in from_source] for key in ("tau", "regret"))
        rows.append(
            (source, len(from_source), sum(group["layouts"] for group in from_source),
             f"{fmean(tau):.2f}", f"{min(tau):.2f}",
             pct(100 * fmean(regret)), pct(100 * max(regret)), _group(worst) if max(regret) else "")
        )  # fmt: skip
    columns = ("source", "groups", "layouts", "Kendall's tau", "worst", "regret", "worst", "worst group")
    print_table(columns, rows)


def _group(group: Figures) -> str:
    """`GPT-175B on 512 x a100-sxm-80`."""
    _, model, _, device, devices = group["group"][:5]
    return f"{model} on {devices} x {device}"


def _memory(figures: Figures) -> None:
    memory = figures.get("memory") or {}
    if memory.get("sources"):
        emit("\n[bold]peak memory[/]")
        rows = [
            (name, f"{errors['rows']:.0f}", pct(errors["median_error_pct"]), f"{errors['bias_pct']:+.1f}%")
            for name, errors in memory["sources"].items()
        ]
        print_table(("source", "rows", "error", "bias"), rows)
        if memory.get("median_error_pct") is not None:
            emit(f"\nmean over sources of five rows or more: [bold]{memory['median_error_pct']:.1f}%[/]")
    if fits := figures.get("fits"):
        emit(
            f"fits or not: {fits['ran_right_pct']:.1f}% right of {fits['ran']:,} that ran,"
            f" {fits['out_of_memory_right_pct']:.1f}% of {fits['out_of_memory']:,} out of memory;"
            f" balanced [bold]{fits['balanced_pct']:.1f}%[/]"
        )


def _worst(rows: list[Figures], many: int = 10) -> None:
    if not rows:
        return
    emit("\n[bold]worst rows[/]")
    cells = [
        (row["id"], row["source"], row["model"], f"{row['devices']:,} x {row['device']}",
         short_time(row["measured_s"]), short_time(row["predicted_s"]), f"{row['error_pct']:+.0f}%")
        for row in rows[:many]
    ]  # fmt: skip
    print_table(("id", "source", "model", "on", "measured", "predicted", "error"), cells)


def _profile(profile: Figures | None) -> None:
    if not profile:
        return
    emit(
        f"\n[bold]fitted on {profile['fitted_on']} runs[/], the other {profile['rows']:,}:"
        f" error {profile['before_median_error_pct']:.1f}% before,"
        f" [bold]{profile['median_error_pct']:.1f}%[/] after"
    )


def _refused(rows: list[Figures], many: int = 10) -> None:
    if not rows:
        return
    emit(f"\n[bold]not expressed: {len(rows)}[/]")
    for row in rows[:many]:
        emit(f"  {row['id'] or '(no id)'}: {row['error']}")
    if len(rows) > many:
        emit(f"  and {len(rows) - many} more; --json has them all")


def pct(value: float) -> str:
    return f"{value:.1f}%"

"""A score as blocks: sources with ours beside the best baseline, then ranking, memory and the worst rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import fmean

from scalewright.report.document import JSON
from scalewright.report.present.blocks import Block, Note, Shown, Table
from scalewright.spec.common.formatting import counted, short_time

BASELINE = re.compile(r"baseline_(\w+)_pct")  # the key of a baseline's error
MOST = 10  # rows of the worst, and of those that can't be expressed


def show_score(figures: JSON) -> Shown:
    """The answer of `score`."""
    title = f"{counted(figures['rows'], 'runs')}, {figures['expressed_pct']:.1f}% of them expressed"
    if "left_out" in figures:
        title += "; each source is predicted by constants that were fitted without it"
    parts = (_sources, _apart, _ranking, _memory, _worst, _profile, _refused)
    return Shown(title, [], [block for part in parts for block in part(figures)])


def _sources(figures: JSON) -> Iterator[Block]:
    """Every source, and the means over those that are large enough, with the baselines."""
    sources, overall = figures.get("sources") or {}, figures.get("overall") or {}
    if not sources:
        yield Note("no measured step times", [])
        return
    best = overall.get("best_baseline")
    rows = [_source(name, errors, best) for name, errors in sources.items()]
    heads = ("source", "rows", "error", "mean error", "bias", "in p10-p90", f"baseline: {words(best)}")
    yield Table(heads, rows, "step time (error: the median of |predicted / measured - 1|)")
    if "median_error_pct" not in overall:
        return
    rivals = {match[1]: value for key, value in overall.items() if (match := BASELINE.fullmatch(key))}
    lines = [
        f"every device at half of peak, {words(name)} FLOPs: {value:.1f}%"
        for name, value in sorted(rivals.items(), key=lambda rival: rival[1])
    ]
    if (better := overall.get("sources_better_than_it_pct")) is not None:
        lines.append(f"better than the best of these on {better:.0f}% of the sources")
    lines += [f"each {kind} left out: {value:.1f}%" for kind, value in (figures.get("left_out") or {}).items()]
    yield Note(
        f"mean over {overall['sources']} sources (of five rows or more, or all when none is): "
        f"error {overall['median_error_pct']:.1f}%, mean error {overall['mape_pct']:.1f}%, "
        f"bias {overall['bias_pct']:+.1f}%, in p10-p90 {overall['coverage_pct']:.0f}%",
        lines,
    )


def words(name: str | None) -> str:
    return (name or "").replace("_", " ")


def _source(name: str, errors: JSON, best: str | None) -> list[str]:
    rival = errors.get(f"baseline_{best}_pct")
    means = [percent(errors["median_error_pct"]), percent(errors["mape_pct"]), f"{errors['bias_pct']:+.1f}%"]
    baseline = "" if rival is None else percent(rival)
    return [name, f"{errors['rows']:,.0f}", *means, f"{errors.get('coverage_pct', 0):.0f}%", baseline]


def _apart(figures: JSON) -> Iterator[Block]:
    rows = [
        (name, f"{errors['rows']:.0f}", percent(errors["median_error_pct"]))
        for name, errors in (figures.get("apart") or {}).items()
    ]
    if rows:
        title = "kept apart (marked stall or suspect, or a time converted from FLOP/s)"
        yield Table(("source", "rows", "error"), rows, title)


def _ranking(figures: JSON) -> Iterator[Block]:
    """Layouts of one model on one machine: is their order right, and what would the pick cost?"""
    groups = figures.get("ranking") or []
    rows = []
    for source in dict.fromkeys(group["group"][0] for group in groups):
        ours = [group for group in groups if group["group"][0] == source]
        tau, regret = ([group[key] for group in ours] for key in ("tau", "regret"))
        _, model, _, device, devices = max(ours, key=lambda group: float(group["regret"]))["group"][:5]
        rows.append((source, len(ours), sum(group["layouts"] for group in ours), f"{fmean(tau):.2f}",
                     f"{min(tau):.2f}", percent(100 * fmean(regret)), percent(100 * max(regret)),
                     f"{model} on {devices} x {device}" if max(regret) else ""))  # fmt: skip
    if rows:
        heads = ("source", "groups", "layouts", "Kendall's tau", "worst", "regret", "worst", "worst group")
        yield Table(heads, rows, "ranking (regret: what the layout predicted fastest costs more than the fastest)")


def _memory(figures: JSON) -> Iterator[Block]:
    memory = figures.get("memory") or {}
    rows = [
        (name, f"{errors['rows']:.0f}", percent(errors["median_error_pct"]), f"{errors['bias_pct']:+.1f}%")
        for name, errors in (memory.get("sources") or {}).items()
    ]
    if rows:
        mean = memory.get("median_error_pct")
        note = f"mean over sources of five rows or more: {mean:.1f}%" if mean is not None else ""
        yield Table(("source", "rows", "error", "bias"), rows, "peak memory", note)
    if fits := figures.get("fits"):
        ran = f"{fits['ran_right_pct']:.1f}% right of {fits['ran']:,} that ran"
        failed = f"{fits['out_of_memory_right_pct']:.1f}% of {fits['out_of_memory']:,} out of memory"
        yield Note(f"fits or not: {ran}, {failed}; balanced {fits['balanced_pct']:.1f}%", [])


def _worst(figures: JSON) -> Iterator[Block]:
    rows = [
        (row["id"], row["source"], row["model"], f"{row['devices']:,} x {row['device']}",
         short_time(row["measured_s"]), short_time(row["predicted_s"]), f"{row['error_pct']:+.0f}%")
        for row in (figures.get("worst") or [])[:MOST]
    ]  # fmt: skip
    if rows:
        heads = ("id", "source", "model", "on", "measured", "predicted", "error")
        yield Table(heads, rows, "worst rows")


def _profile(figures: JSON) -> Iterator[Block]:
    if profile := figures.get("profile"):
        before, after = profile["before_median_error_pct"], profile["median_error_pct"]
        yield Note(f"fitted on {profile['fitted_on']} runs, the other {profile['rows']:,}: "
                   f"error {before:.1f}% before, {after:.1f}% after", [])  # fmt: skip


def _refused(figures: JSON) -> Iterator[Block]:
    rows = figures.get("refused") or []
    if rows:
        lines = [f"{row['id'] or '(no id)'}: {row['error']}" for row in rows[:MOST]]
        more = [f"and {len(rows) - MOST} more; --json has them all"] if len(rows) > MOST else []
        yield Note(f"not expressed: {len(rows)}", [*lines, *more])


def percent(value: float) -> str:
    return f"{value:.1f}%"

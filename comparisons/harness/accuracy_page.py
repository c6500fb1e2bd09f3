"""docs/accuracy.md and accuracy-tables.md as text: tables from `Figures`, prose from two templates beside this file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from new_runs import HISTORY
from new_runs import table as fresh_table

from harness.accuracy_elsewhere import elsewhere
from harness.accuracy_figures import Figures, by_group, cuts, in_words, means, over_sources, rival_errors
from harness.accuracy_reasons import FAR_SOURCES, row_reason
from scalewright.plan.constants import facts

RESULTS = Path(__file__).resolve().parents[1] / "results"
TEMPLATES = {"accuracy.md": "accuracy_page.md.jinja", "accuracy-tables.md": "accuracy_tables.md.jinja"}
RIVALS = ("model", "hardware", "model_and_bubble", "hardware_and_bubble")
WORST, WORST_OF_ONE = 24, 4  # rows among the worst, and of one source


def pages(figures: Figures, date: str) -> dict[str, str]:
    """File name -> text of the page for readers, and of the one with the tables behind it."""
    shipped, out = figures.shipped, figures.scored["source"]
    best = shipped["overall"]["best_baseline"]
    theirs = np.abs(rival_errors(figures)[best])[figures.plain]
    nearer = 100 * float((np.abs(figures.error())[figures.plain] < theirs).mean())
    far = [name for name, one in out["sources"].items() if one["rows"] >= 10 and one["median_error_pct"] > 25]
    refused = ": " + "; ".join(f"{refusal['id']}: {refusal['error']}" for refusal in shipped["refused"][:40])
    history = json.loads(HISTORY.read_text(encoding="utf-8"))
    alone = [f"`{fact.name}`" for fact in facts() if fact.one_source]
    words = {
        "date": date, "rows": f"{shipped['rows']:,}", "plain": f"{int(figures.plain.sum()):,}",
        "fitted": figures.constants["fitted"], "constants": figures.constants["all"], "nearer": pct(nearer),
        "fresh": "\n".join(fresh_table(history)), "newest": pct(history[-1]["median_error_pct"]),
        "newest_of": history[-1]["of"], "head": head(figures), "cuts": cut_table(figures), "means": over(figures),
        "trainers": groups(figures, "lineage", "trainers", trainers=True), "alone": ", ".join(alone) or "none",
        "clusters": groups(figures, "cluster", "clusters"), "lineages": groups(figures, "lineage", "lineages"),
        "effects": effects(),
        "families": groups(figures, "family", "families of models"),
        "generations": groups(figures, "generation", "generations of devices"),
        "sources": sources(figures), "far": ", ".join(far) or "none", "why_far": why_far(figures),
        "apart": apart(figures), "covered": pct(out["overall"]["coverage_pct"]),
        "covered_shipped": pct(shipped["overall"]["coverage_pct"]), "ranking": ranking(figures),
        "memory": memory(figures), "fits": fits(figures), "profiles": profiles(figures),
        "peer": peer(figures), "elsewhere": beyond(), "worst": worst(figures),
        "expressed": pct(shipped["expressed_pct"]),
        "refused": refused if shipped["refused"] else " are expressed",
    }  # fmt: skip
    return render(words)


def render(words: Mapping[str, Any]) -> dict[str, str]:
    """The pages with these words."""
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True)
    texts = {name: Path(__file__).with_name(file).read_text(encoding="utf-8") for name, file in TEMPLATES.items()}
    return {name: environment.from_string(text).render(words) for name, text in texts.items()}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def pct(value: float | None, signed: bool = False) -> str:
    """A figure in percent; a dash where there is none."""
    if value is None or not np.isfinite(value):
        return "–"
    return f"{value:+.1f}" if signed else f"{value:.1f}"


def head(f: Figures) -> str:
    """The figures that the planner is judged by, beside their aims."""
    mean, out, shipped = means(f), f.scored["source"]["overall"], f.shipped["overall"]
    best, new = shipped["best_baseline"], f.scored["lineage"]["overall"]
    fit = f.shipped.get("fits", {})
    vtrain = f.scored["source"]["sources"].get("vtrain-multi", {})
    rows = [
        ["step time: mean over sources of medians, the source left out", pct(mean["source"]), "≤ 14"],
        ["– constants as shipped, which saw every source", pct(mean["nothing"]), ""],
        [f"best baseline: half of peak, {in_words(best)} FLOPs", pct(shipped[f"baseline_{best}_pct"]), ""],
        ["sources on which we beat it, lineage left out", pct(new["sources_better_than_it_pct"]), "≥ 80"],
        ["bias, lineage left out: mean over sources of the median", pct(new["bias_pct"], True), "within ±5"],
        ["– the source left out", pct(out["bias_pct"], True), "within ±5"],
        ["vTrain's multi-node layouts, left out", pct(vtrain.get("median_error_pct")), "≤ 7"],
        ["rows expressed", pct(f.shipped["expressed_pct"]), "≥ 95"],
        ["memory: mean over sources of the median", pct(f.shipped["memory"]["median_error_pct"]), "≤ 8"],
        ["fits or not, balanced, of nanotron's runs", pct(fit.get("balanced_pct")), "≥ 97"],
    ]
    return table(["%", "here", "aim"], rows)


def cut_table(f: Figures) -> str:
    """What leaving out costs, and whether the band knows it."""
    words = {
        "lineage": "lineage of trainers, unknown", "cluster": "cluster", "source": "source",
        "family": "family of models", "generation": "generation of devices",
    }  # fmt: skip
    rows = []
    for kind, one in cuts(f).items():
        errors = [pct(one[f"{name}_median_error_pct"]) for name in ("all", "dense", "mixtures", "new")]
        inside = [pct(one[f"{name}_coverage_pct"]) for name in ("all", "dense", "mixtures", "new")]
        rows.append([words[kind], *errors, pct(one["all_bias_pct"], True), *inside])
    title = [
        "left out",
        "error",
        "dense",
        "mixtures",
        "new devices",
        "bias",
        "in p10–p90",
        "dense",
        "mixtures",
        "new devices",
    ]
    return table(title, rows)


def effects() -> str:
    """The newest table of effects: each change alone and together, on rows that were left out."""
    path = max(RESULTS.glob("*-effects.json"), default=None)
    if path is None:
        return "They weren't measured yet."
    measured = json.loads(path.read_text(encoding="utf-8"))
    return table(["", *measured["columns"]], [[name, *map(pct, row)] for name, row in measured["rows"].items()])


def over(f: Figures) -> str:
    """Means over sources of each way to leave out."""
    kinds = {"lineage": "lineage left out, unknown", "source": "source left out", None: "as shipped"}
    rows = [[name, *map(pct, over_sources(f, kind).values())] for kind, name in kinds.items()]
    return table(["median error of a source, %", "mean", "without a tenth at either end", "median"], rows)


def groups(f: Figures, kind: str, title: str, trainers: bool = False) -> str:
    """Errors of every group that was left out."""
    rows = [
        [row["group"], str(row["rows"]), pct(row["left_out"]), pct(row["bias"], True), pct(row["shipped"])]
        for row in by_group(f, kind, trainers)
    ]
    return table([title, "rows", "left out", "bias", "shipped"], rows)


def sources(f: Figures) -> str:
    """Every source beside the baselines, the largest first."""
    out, shipped = f.scored["source"]["sources"], f.shipped["sources"]
    rows = []
    for name, one in sorted(out.items(), key=lambda item: -item[1]["rows"]):
        figures = [one["median_error_pct"], one["p90_error_pct"], shipped[name]["median_error_pct"],
                   one["coverage_pct"], *(one[f"baseline_{rival}_pct"] for rival in RIVALS)]  # fmt: skip
        cells = [pct(value) for value in figures]
        rows.append([name, f"{one['rows']:.0f}", cells[0], pct(one["bias_pct"], True), *cells[1:]])
    title = ["source", "rows", "left out", "bias", "p90", "shipped", "in band", "half of peak, model",
             *(in_words(rival) for rival in RIVALS[1:])]  # fmt: skip
    return table(title, rows)


def why_far(f: Figures) -> str:
    """A line for every source that has a reason."""
    out = f.scored["source"]["sources"]
    lines = [f"- **{n}** ({pct(out[n]['median_error_pct'])}%): {FAR_SOURCES[n]}" for n in FAR_SOURCES if n in out]
    return "\n".join(lines)


def apart(f: Figures) -> str:
    """Rows that are scored apart."""
    rows = [
        [name, f"{one['rows']:.0f}", pct(one["median_error_pct"]), pct(one["bias_pct"], True)]
        for name, one in f.scored["source"]["apart"].items()
    ]
    return table(["apart", "rows", "left out", "bias"], rows)


def ranking(f: Figures) -> str:
    """Kendall's tau and regret by sweep, left out and as shipped."""
    rows = []
    for kind, scored in (("left out", f.scored["source"]), ("shipped", f.shipped)):
        for title, found in ranked(scored["ranking"]).items():
            if found:
                taus, costs = [g["tau"] for g in found], [100 * g["regret"] for g in found]
                layouts = str(sum(g["layouts"] for g in found))
                numbers = [f"{np.nanmean(taus):.2f}", f"{np.nanmin(taus):.2f}", pct(float(np.mean(costs)))]
                rows.append([f"{title}, {kind}", str(len(found)), layouts, *numbers, pct(max(costs))])
    return table(["", "groups", "layouts", "mean τ", "worst τ", "mean regret, %", "worst, %"], rows)


def ranked(found: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """The groups of at least ten layouts, by sweep."""

    def of(source: str, most: int = 10**6) -> list[Mapping[str, Any]]:
        mine = (g for g in found if g["group"][0] == source and g["layouts"] >= 10)
        return [g for g in mine if int(g["group"][4]) <= most]

    return {
        "vTrain multi-node": of("vtrain-multi"),
        "vTrain single node": of("vtrain-single"),
        "nanotron, up to 128 devices": of("ultrascale-playbook", 128),
        "nanotron, all": of("ultrascale-playbook"),
    }


def memory(f: Figures) -> str:
    """Errors of the memory of the worst rank."""
    rows = []
    for name, one in f.shipped["memory"]["sources"].items():
        figures = [pct(one["median_error_pct"]), pct(one["bias_pct"], True), pct(one["p90_error_pct"])]
        rows.append([name, f"{one['rows']:.0f}", *figures])
    return table(["source", "rows", "error", "bias", "p90"], rows)


def fits(f: Figures) -> str:
    """Whether runs that ran, and runs that didn't, are told apart."""
    found = f.shipped.get("fits")
    if not found:
        return ""
    ran, failed = pct(found["ran_right_pct"]), pct(found["out_of_memory_right_pct"])
    return (
        f"Of the {found['ran']:,} runs of nanotron's sweep that ran, {ran}% are predicted to fit; of its"
        f" {found['out_of_memory']:,} that ran out of memory, {failed}% not to:"
        f" {pct(found['balanced_pct'])}% balanced."
    )


def profiles(f: Figures) -> str:
    """What a few rows of a table do for the others."""
    whole = {s: by for s, by in f.profiles.items() if all("median_error_pct" in entry for entry in by.values())}
    if not whole:
        return "No source here has enough rows."
    rows = []
    for source, by in whole.items():
        pairs = ((entry["before_median_error_pct"], entry["median_error_pct"]) for entry in by.values())
        rows.append([source, *(f"{pct(before)} → {pct(after)}" for before, after in pairs)])
    return table(["source", *(f"K = {many}" for many in next(iter(whole.values())))], rows)


def peer(f: Figures) -> dict[str, Any]:
    """What the page says of llm-analysis; empty where nobody asked it."""
    found = f.peer
    if not found:
        return {}
    order = {"iteration_s": "iteration", "forward_s": "forward × 3", "ours": "ours, left out"}
    rows = [[name, str(one["rows"]), *(pct(one[key]) for key in order)] for name, one in found["sources"].items()]
    if found["mean"]:
        mean = [pct(found["mean"][key]) for key in order]
        rows.append(["**mean of sources with five rows**", str(found["timed"]), *mean])
    ranks = []
    for key, label in order.items():
        one = found["ranking"][key]
        if one["groups"]:
            ranks.append(
                [
                    label,
                    "–" if np.isnan(one["tau"]) else f"{one['tau']:.2f}",
                    " and ".join(pct(100 * cost) for cost in one["regret"]),
                ]
            )
    held = [[name, str(one["rows"]), pct(one["it"]), pct(one["ours"])] for name, one in found["memory"].items()]
    return {
        "version": found["version"], "file": found["file"], "expressed": f"{found['expressed']:,}",
        "timed": f"{found['timed']:,}",
        "refused": "; ".join(f"{why} ({many})" for why, many in found["refused"].items()) or "none",
        "sources": table(["median absolute error, %", "rows", *order.values()], rows),
        "ranking": table(["ranking", "mean τ", "regret by group, %"], ranks),
        "memory": table(["source", "rows", "llm-analysis", "ours, shipped"], held),
    }  # fmt: skip


def beyond() -> dict[str, str]:
    """Runs that papers print and no table of ours holds."""
    found = elsewhere()
    rows = [
        [entry["run"], entry["paper"], f"{entry['published']:.0f}", f"{entry['predicted']:.0f}",
         pct(entry["error_pct"], True), "yes" if entry["in_band"] else "no"]
        for entry in found
    ]  # fmt: skip
    errors = np.array([entry["error_pct"] for entry in found])
    head = ["run", "from", "published tokens/s a device", "predicted", "error of step time, %", "in band"]
    inside = sum(bool(entry["in_band"]) for entry in found)
    return {
        "table": table(head, rows), "median": pct(float(np.median(np.abs(errors)))),
        "bias": pct(float(np.median(errors)), True), "inside": f"{inside} of {len(found)}",
    }  # fmt: skip


def worst(f: Figures) -> str:
    """The rows that are farthest off, and why."""
    error, shipped = f.error(), f.error(None)
    use = np.flatnonzero(f.plain & np.isfinite(error))
    rows: list[list[str]] = []
    of_one = dict.fromkeys(f.runs.source.tolist(), 0)
    for i in use[np.argsort(-np.abs(np.log1p(error[use])))]:
        source = str(f.runs.source[i])
        of_one[source] += 1
        if of_one[source] <= WORST_OF_ONE and len(rows) < WORST:
            r, row = f.runs.requests[i], f.runs.rows[i]
            layout = f"{r.devices} × {r.chip.name}, tp {r.tp} pp {r.pp} ep {r.ep} mbs {r.micro_batch}"
            far = [pct(100 * float(errors[i]), True) for errors in (error, shipped)]
            why = row_reason(row, r, float(error[i]))
            rows.append([str(row["id"]), source, r.model.name, layout, *far, why])
    return table(["row", "source", "model", "layout", "left out", "shipped", "why"], rows)

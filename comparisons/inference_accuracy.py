"""How far `inference` is off on the bundled serving runs: as shipped, and with each source left out of the fit.

data/inference_runs.csv ──fit without a source──> its rows predicted ──> error, bias, share inside p10 to p90,
                                                                     │   of tokens/s, TTFT and TPOT
                                                                     └─> results/DATE-inference-accuracy.json,
                                                                         and the tables of docs/inference.md

python comparisons/inference_accuracy.py            some minutes of one core
python comparisons/inference_accuracy.py --page     the page anew, from the newest result
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.inference import load
from scalewright.inference.constants import constants
from scalewright.inference.fit import left_out
from scalewright.inference.score import LATENCIES, Runs, by_source, outcomes, read_table, runs_of
from scalewright.inference.spread import TENTH, sigmas

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "comparisons" / "results"
PAGE = ROOT / "docs" / "inference.md"
TABLE = re.compile(r"(<!-- figures: begin -->\n).*?(<!-- figures: end -->)", re.DOTALL)


def figures(runs: Runs, without: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Errors by source and in all; `without`: predicted by constants that never saw a row's source."""
    served = load.serve(runs.columns, constants(), runs.loads)
    wide = {name: TENTH * sigmas(runs.columns, constants(), name) for name in ("rate", *LATENCIES)}
    shipped = outcomes(runs, constants())
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "rows": len(runs.asked) + len(runs.refused), "expressed": len(runs.asked),
        "scored": int(np.isfinite(runs.measured).sum()),
        **errors(runs, shipped["rate"], without["rate"], runs.measured, wide["rate"]),
        "fits_pct": 100 * float(served.fits.mean()),
        "latencies": {
            name: errors(runs, shipped[name], without[name], runs.latency(name), wide[name]) for name in LATENCIES
        },
    }  # fmt: skip


def errors(
    runs: Runs, shipped: np.ndarray, without: np.ndarray, measured: np.ndarray, width: np.ndarray
) -> dict[str, Any]:
    """Errors of one quantity; `width`: of its band, in logarithms."""
    as_shipped = by_source(runs, shipped, measured)
    out = by_source(runs, without, measured)
    scored = np.isfinite(measured) & np.isfinite(without)
    inside = abs(np.log(np.where(scored, without, 1.0)) - np.log(np.where(scored, measured, 1.0))) <= width
    sources = {
        source: {
            "rows": int(line["rows"]), "shipped_pct": as_shipped[source]["error_pct"],
            "left_out_pct": line["error_pct"], "bias_pct": line["bias_pct"],
            "inside_pct": 100 * float(np.mean(inside[scored & (runs.source == source)])),
        }
        for source, line in out.items()
    }  # fmt: skip
    columns = {key: np.array([line[key] for line in sources.values()]) for key in next(iter(sources.values()))}
    off = abs(without[scored] / measured[scored] - 1)
    return {
        "left_out": {
            "median_of_sources_pct": float(np.median(columns["left_out_pct"])),
            "mean_of_sources_pct": float(np.mean(columns["left_out_pct"])), "all_rows_pct": 100 * float(np.median(off)),
            "inside_pct": 100 * float(np.mean(inside[scored])),
            "inside_mean_of_sources_pct": float(np.mean(columns["inside_pct"])),
        },
        "shipped": {
            "median_of_sources_pct": float(np.median(columns["shipped_pct"])),
            "mean_of_sources_pct": float(np.mean(columns["shipped_pct"])),
        },
        "not_left_out": sorted(set(as_shipped) - set(out)), "sources": sources,
    }  # fmt: skip


def page_table(found: Mapping[str, Any]) -> str:
    """The figures as Markdown."""
    left, shipped = found["left_out"], found["shipped"]
    fresh = json.loads((RESULTS / "2026-11-28-inference-fresh.json").read_text(encoding="utf-8"))
    head = [
        f"{found['rows']} rows of 24 sources, {found['expressed']} expressed, {found['scored']} that measure a server"
        f" ({found['date']}). Median absolute errors of tokens/s in percent.",
        "",
        "| | median of sources | mean of sources | all rows | in p10–p90 |",
        "| --- | ---: | ---: | ---: | ---: |",
        f"| before anything was learned | {fresh['median_over_sources_pct']:.1f} |"
        f" {fresh['mean_over_sources_pct']:.1f} | {fresh['all_rows_pct']:.1f} | |",
        f"| the source left out | {left['median_of_sources_pct']:.1f} | {left['mean_of_sources_pct']:.1f} |"
        f" {left['all_rows_pct']:.1f} | {left['inside_pct']:.1f} |",
        f"| as shipped | {shipped['median_of_sources_pct']:.1f} | {shipped['mean_of_sources_pct']:.1f} | | |",
        "",
        "| source | rows | left out | bias | in p10–p90 | as shipped |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    rows = [
        f"| {source} | {line['rows']} | {line['left_out_pct']:.1f} | {line['bias_pct']:+.1f} |"
        f" {line['inside_pct']:.0f} | {line['shipped_pct']:.1f} |"
        for source, line in sorted(found["sources"].items(), key=lambda item: -item[1]["rows"])
    ]
    rows += latency_tables(found) if "latencies" in found else []  # results of before they were scored have none
    waiting = [f"\nNot left out yet: {', '.join(found['not_left_out'])}."] if found["not_left_out"] else []
    return "\n".join([*head, *rows, *waiting]) + "\n"


def latency_tables(found: Mapping[str, Any]) -> list[str]:
    """TTFT and TPOT: the whole, then by source."""
    head = [
        "", "Seconds to the first token (TTFT) and of each further one (TPOT): medians, where a source has them.", "",
        "| | sources | rows | median of sources | all rows | in p10–p90 | as shipped |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    by_name: dict[str, dict[str, Any]] = {"TTFT": found["latencies"]["ttft_s"], "TPOT": found["latencies"]["tpot_s"]}
    for name, of in by_name.items():
        rows, left = sum(line["rows"] for line in of["sources"].values()), of["left_out"]
        head.append(
            f"| {name} | {len(of['sources'])} | {rows} | {left['median_of_sources_pct']:.1f} |"
            f" {left['all_rows_pct']:.1f} | {left['inside_pct']:.1f} | {of['shipped']['median_of_sources_pct']:.1f} |"
        )
    head += [
        "", "| source | TTFT: rows | left out | bias | in p10–p90 | TPOT: rows | left out | bias | in p10–p90 |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    sources = dict.fromkeys(source for of in by_name.values() for source in of["sources"])
    for source in sources:
        cells = [_latency_cells(of["sources"].get(source)) for of in by_name.values()]
        head.append(f"| {source} | {' | '.join(cells)} |")
    return head


def _latency_cells(line: Mapping[str, Any] | None) -> str:
    if line is None:
        return " | | | "
    return f"{line['rows']} | {line['left_out_pct']:.1f} | {line['bias_pct']:+.1f} | {line['inside_pct']:.0f}"


def newest() -> dict[str, Any]:
    """The newest kept result."""
    found: dict[str, Any] = json.loads(
        sorted(RESULTS.glob("*-inference-accuracy.json"))[-1].read_text(encoding="utf-8")
    )
    return found


def main() -> None:
    """Computes and keeps the figures, and writes the page's table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--page", action="store_true", help="the page alone, from the newest result")
    if not parser.parse_args().page:
        runs = runs_of(read_table())
        found = figures(runs, left_out(runs))
        path = RESULTS / f"{found['date']}-inference-accuracy.json"
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    text = page_table(newest())
    PAGE.write_text(TABLE.sub(rf"\g<1>{text}\g<2>", PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()

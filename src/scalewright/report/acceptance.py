"""The page of an acceptance: the verdict, a line for each check, then the numbers behind them.

answer of `accept` (its --json) ──► checks ─ pairs as a heat map ─ devices and axes as tables
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from scalewright.report.document import JSON
from scalewright.report.page import Page, Section, block_section, render, write
from scalewright.report.present.blocks import Table
from scalewright.spec.common.formatting import counted, duration, metric, share, short_time

SEVERITY = {"failed": "bad", "warned": "warn", "passed": "good", "skipped": "plain"}
MOST = 32  # ranks of the map; of more, those of the slowest pairs
SHADED = 0.05  # of the usual rate: pairs nearer to it have no shade


def write_acceptance(answer: JSON, path: str | Path, force: bool = False) -> Path:
    """Writes the page; UserError where another file would go."""
    return write(Path(path), render(page(answer)), force)


def page(answer: JSON) -> Page:
    """The page of an answer; a section with nothing to show is left out."""
    figures = {check["name"]: check["figures"] for check in answer["checks"]}
    states = [check["state"] for check in answer["checks"]]
    failed, warned, hosts = states.count("failed"), "warned" in states, answer["hosts"]
    axes = [f"{row['axis']} {row['group']}" for row in figures.get("links", {}).get("axes", ())]
    sections = [_checks(answer), _pairs(figures.get("pairs", {})), _tables(figures)]
    return Page(
        title=f"Acceptance of {answer['cluster']} for {answer['run']}",
        status=f"{counted(failed, 'checks')} failed" if failed else "accepted",
        status_kind="bad" if failed else "warn" if warned else "good",
        facts=[counted(answer["world"], "ranks"), counted(len(hosts), "hosts"), answer["device"],
               " · ".join(axes) or "one device", duration(answer["seconds"])],
        sections=[section for section in sections if section is not None],
        styles=("report.css", "plan.css", "diagnosis.css"), scripts=("words.js", "theme.js"),
    )  # fmt: skip


def _checks(answer: JSON) -> Section:
    rows = []
    for check in answer["checks"]:
        text = check["words"] + (f" → {check['fix']}" if check["state"] in ("warned", "failed") else "")
        rows.append({"severity": SEVERITY[check["state"]], "title": check["name"], "text": text})
    return Section("checks", "Checks", "health.html", {"rows": rows})


def _pairs(figures: JSON) -> Section | None:
    """Every pair's rate as a share of the usual one of its kind: inside hosts, and between them."""
    rows = figures.get("rows") or ()
    if not rows:
        return None
    usual = {line["where"] == "on one host": line["usual"] for line in figures["summary"]}
    rates = {tuple(row["ranks"]): row["bytes_per_s"] / usual[row["hosts"][0] == row["hosts"][1]] for row in rows}
    ranks = sorted({rank for pair in rates for rank in pair})
    if len(ranks) > MOST:
        slowest = sorted(rates, key=lambda pair: rates[pair])
        ranks = sorted(list(dict.fromkeys(rank for pair in slowest for rank in pair))[:MOST])
    data = {
        "note": "Each pair's rate in percent of the usual one, inside hosts and between them apart; "
        "shaded by the distance from it.",
        "columns": [str(rank) for rank in ranks],
        "rows": [
            {"name": f"rank {rank}", "cells": [_cell(rates.get((min(rank, other), max(rank, other))))
                                               for other in ranks]}
            for rank in ranks
        ],
        "left_out": len({rank for pair in rates for rank in pair}) - len(ranks),
    }  # fmt: skip
    return Section("pairs", "Every pair", "acceptance_pairs.html", data)


def _cell(rate: float | None) -> dict[str, object]:
    if rate is None:
        return {"text": "", "shade": 0, "kind": "less", "label": "not timed"}
    apart = rate - 1
    return {
        "text": f"{100 * rate:.0f}",
        "shade": round(min(1.0, abs(apart)), 3) if abs(apart) >= SHADED else 0,
        "kind": "less" if apart > 0 else "more",
        "label": f"{apart:+.0%} from the usual rate",
    }


def _tables(figures: Mapping[str, JSON]) -> Section | None:
    tables = [*_devices(figures.get("devices", {}).get("devices", ())),
              *_axes(figures.get("links", {}).get("axes", ()))]  # fmt: skip
    return block_section("numbers", "In numbers", tables)


def _devices(rows: Sequence[JSON]) -> Iterator[Table]:
    cells = [
        [row["rank"], row["host"], metric(row["flops_per_s"] or 0.0, "FLOP/s"), metric(row["bytes_per_s"], "B/s")]
        for row in rows
    ]
    if cells:
        note = "All at once, as in a step; copies count what is read and written."
        yield Table(["rank", "host", "products", "memory"], cells, "Devices", note)


def _axes(rows: Sequence[JSON]) -> Iterator[Table]:
    cells = [
        [row["axis"], row["group"], f"{row['bytes']:,}", short_time(row["time_s"]),
         metric(row["busbw_bytes_per_s"], "B/s"),
         share(row["busbw_bytes_per_s"] / row["expected_busbw_bytes_per_s"])
         if row["expected_busbw_bytes_per_s"] else "–", f"{row['wrong']:,}"]
        for row in rows
    ]  # fmt: skip
    if cells:
        heads = ["axis", "ranks", "bytes", "time", "bus bandwidth", "of its link", "wrong numbers"]
        note = "All groups of the axis at once, in nccl-tests' terms."
        yield Table(heads, cells, "An all-reduce along each axis", note)

"""The window of every rank in its parts, as bars; idle time by its cause."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalewright.report.page import Section

# Part of an answer -> its name, and the colour that it has on the whole page (report.css, `part`).
PARTS = {
    "compute": ("compute", 0),
    "exposed_communication": ("communication (exposed)", 5),
    "exposed_copy": ("memcpy (exposed)", 2),
}
IDLE = {
    "host": ("idle: the host launches too slowly", 7), "launch": ("idle: launch latency", 3),
    "data": ("idle: loading data", 8), "sync": ("idle: after a synchronisation", 1),
    "other": ("idle: waiting for another stream, or unknown", 9),
}  # fmt: skip
MOST = 64  # bars; of more ranks the first


def section(answer: Mapping[str, Any]) -> Section | None:
    if answer["kind"] != "trace":
        return None
    ranks = answer["per_rank"]
    rows = [_row(name_of(rank), rank) for rank in ranks[:MOST]]
    if len(ranks) > 1:
        rows.insert(0, _row("mean", answer))
    shown = {piece["number"] for row in rows for piece in row["pieces"]}
    legend = [*PARTS.values(), *IDLE.values()]
    overlap = answer["communication"]["overlap_pct"]
    data = {
        "kinds": [{"name": name, "number": number} for name, number in legend if number in shown],
        "rows": rows,
        "note": f"{overlap:.1f}% of the communication is hidden behind compute."
        if overlap is not None
        else "",
        "left_out": max(len(ranks) - MOST, 0),
    }
    return Section("time", "Where the time goes", "diagnosis_bars.html", data)


def name_of(rank: Mapping[str, Any]) -> str:
    """`rank 3`; the file's name where no rank is known."""
    return str(rank["file"]) if rank["rank"] is None else f"rank {rank['rank']}"


def _row(name: str, rank: Mapping[str, Any]) -> dict[str, Any]:
    parts, causes = rank["breakdown_pct"], rank["idle_causes_pct"]
    pieces = [(*PARTS[key], parts[key]) for key in PARTS] + [(*IDLE[key], causes[key]) for key in IDLE]
    return {
        "name": name,
        "pieces": [
            {"number": number, "share": share / 100, "label": f"{words} {share:.1f}%"}
            for words, number, share in pieces
            if share > 0
        ],
        "total": f"{parts['compute']:.1f}%",
    }

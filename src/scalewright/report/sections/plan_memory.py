"""Where the step's time goes, part by part to its sum, and memory by kind, a bar for every pipeline rank.

rank 0     ▓▓▓▓▒▒▒▒▒▒▒▒░░     |
ranks 1–6  ▓▓▓▓▒▒▒▒▒▒░░       |  capacity
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scalewright.report.document import KINDS, Estimate, PlanDocument, Stage
from scalewright.report.layouts import with_precision
from scalewright.report.page import Section
from scalewright.report.present.blocks import Bar
from scalewright.report.present.prediction import time_bars
from scalewright.report.series import ticks
from scalewright.spec.common.formatting import counted, decimal, gib, share, short_time

MOST_ROWS = 48


@dataclass
class Group:
    """Neighbouring ranks or stages with the same layers and memory."""

    what: str
    first: int
    last: int
    layers: int | None
    memory: Mapping[str, float]

    @property
    def name(self) -> str:
        """`rank 3 (20 layers)`, `ranks 1–6 (10 layers each)`."""
        single = self.first == self.last
        which = f"{self.what} {self.first}" if single else f"{self.what}s {self.first}–{self.last}"
        if self.layers is None:
            return which
        return f"{which} ({counted(self.layers, 'layers')}{'' if single else ' each'})"


def memory_section(document: PlanDocument) -> Section | None:
    """The bars; None where the plan has no memory."""
    if (best := document.first) is None:
        return None
    rows, by_stage = rows_of(best)
    if not rows:
        return None
    usable, nominal = document.device.number("usable_gib"), document.device.number("memory_gib")
    end = 1.04 * max([usable or 0.0, *(total for _, _, total in rows)])
    data = {
        "by_stage": by_stage,
        "kinds": [
            {"number": number, "name": kind}
            for number, kind in enumerate(KINDS)
            if any(parts.get(kind) for _, parts, _ in rows)
        ],
        "rows": [bar(name, parts, total, end, usable) for name, parts, total in rows[:MOST_ROWS]],
        "left_out": max(len(rows) - MOST_ROWS, 0),
        "limit": None if not usable else {"at": usable / end, "text": f"{decimal(usable, 3)} GiB usable"},
        "nominal": f"of {decimal(nominal, 3)} GiB on the device" if nominal else "",
        "ticks": [{"at": t / end, "text": f"{t:g}"} for t in ticks(0.0, end, 6)],
    }
    return Section("memory", "Memory", "plan_memory.html", data)


def rows_of(best: Estimate) -> tuple[list[tuple[str, Mapping[str, float], float]], bool]:
    """(name, GiB by kind, sum) of every rank, equal neighbours as one; or of the fullest rank alone."""
    stages = [stage for stage in sorted(best.stages, key=lambda stage: stage.number) if stage.memory]
    if not stages:
        total = sum(best.memory.values())
        return ([("fullest rank", best.memory, total)] if best.memory else []), False
    groups: list[Group] = []
    both_ways = best.layout.get("schedule") == "dualpipe"  # a rank has another's stage, too
    for group in by_rank(stages):
        group.layers = None if both_ways else group.layers
        if groups and alike(groups[-1].memory, group.memory) and groups[-1].layers == group.layers:
            groups[-1].last = group.last
        else:
            groups.append(group)
    return [(group.name, group.memory, sum(group.memory.values())) for group in groups], True


def by_rank(stages: Sequence[Stage]) -> list[Group]:
    """A bar for every pipeline rank, which may hold several stages; for every stage where none is named."""
    if any(stage.rank is None for stage in stages):
        return [Group("stage", stage.number, stage.number, stage.layers, stage.memory) for stage in stages]
    groups = []
    for rank in sorted({stage.rank for stage in stages if stage.rank is not None}):
        mine = [stage for stage in stages if stage.rank == rank]
        layers = [stage.layers for stage in mine if stage.layers is not None]
        total = sum(layers) if len(layers) == len(mine) else None
        groups.append(Group("rank", rank, rank, total, mine[0].memory))
    return groups


def alike(first: Mapping[str, float], second: Mapping[str, float]) -> bool:
    """Whether two bars would look the same: within a thousandth of a GiB in every kind."""
    return all(abs(first.get(kind, 0.0) - second.get(kind, 0.0)) < 1e-3 for kind in KINDS)


def bar(name: str, parts: Mapping[str, float], total: float, end: float, usable: float | None) -> dict[str, object]:
    return {
        "name": name,
        "total": gib(total),
        "over": usable is not None and total > usable,
        "pieces": [
            {"number": number, "share": parts[kind] / end, "said": f"{kind} {decimal(parts[kind], 3)} GiB"}
            for number, kind in enumerate(KINDS)
            if parts.get(kind, 0.0) > 0
        ],
    }


def time_section(document: PlanDocument) -> Section | None:
    best = document.first
    if best is None or not best.parts:
        return None
    slowest = max(estimate.seconds for estimate in document.best)
    whole = sum(best.parts.values())
    data = {
        "rows": time_rows(best),
        "step": short_time(best.seconds),
        "sum": short_time(whole),
        "adds_up": abs(whole - best.seconds) <= 0.01 * best.seconds,
        "layouts": [compared(*ranked, slowest) for ranked in enumerate(document.best, 1)] if document.best[1:] else [],
    }
    return Section("time", "Where the time goes", "plan_time.html", data)


def time_rows(best: Estimate) -> list[dict[str, object]]:
    """Every part that takes time; the bars start where the one before ends."""
    bars, before = [], 0.0
    for bar in parts(best):
        width = bar.value / best.seconds
        shown = {"number": bar.part, "name": bar.name, "seconds": bar.text, "share": share(width)}
        bars.append({**shown, "start": before / best.seconds, "width": width})
        before += bar.value
    return bars


def parts(estimate: Estimate) -> list[Bar]:
    """The parts above nothing."""
    return [bar for bar in time_bars(estimate).rows if bar.value > 0]


def compared(rank: int, estimate: Estimate, slowest: float) -> dict[str, object]:
    """A layout's step as one bar, on the scale of the slowest."""
    return {
        "rank": rank,
        "name": " · ".join(with_precision(estimate.layout)),
        "seconds": short_time(estimate.seconds),
        "pieces": [
            {"number": bar.part, "share": bar.value / slowest, "said": f"{bar.name} {bar.text}"}
            for bar in parts(estimate)
        ],
    }

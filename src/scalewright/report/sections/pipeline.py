"""A pipeline's step as it ran: a row for every rank, and under it the schedule by an ideal clock.

    rank 0 | F0 F1 .  .  B0--- F2 B1--- .  B2---      measured: traces/pipeline-step-*.json
    rank 1 | .  F0 B0--- F1 B1--- F2 B2--- .  .       ideal: `simulate`, each action at its stage's median

The bubble is that of the rank that waits most. Measured, it has everything in it that the formula leaves out:
messages, uneven stages, the noise of the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase

from scalewright.diagnose.pipeline_steps import PipelineStep, Span, bubble, formula, idealised, length, read
from scalewright.report.folder import RunFolder
from scalewright.report.page import Section
from scalewright.report.sections.overview import Steady
from scalewright.report.series import say, say_tick, ticks
from scalewright.spec.common.formatting import counted, short_time
from scalewright.spec.schedule import Schedule

NAMES = {
    "forward": "forward", "backward": "backward", "backward_input": "backward, inputs",
    "backward_weight": "backward, weights",
}  # fmt: skip
ROW, GAP, AXIS = 26, 6, 20  # pixels
DIGIT, WIDE, NARROW = 6.8, 960.0, 300.0  # pixels of a digit, and of the drawing on a desk and on a phone
SHADES = 4  # of chunks; those beyond share the last


def section(run: RunFolder) -> Section | None:
    """The newest recorded step; None when no trace of a pipeline is there."""
    if not (paths := sorted((run.path / "traces").glob("pipeline-step-*.json"))):
        return None
    if (trace := read(paths[-1])) is None:
        return Section("pipeline", "Pipeline", "pipeline.html", {"broken": paths[-1].name})
    ideal = idealised(trace)
    end = max(length(trace.ranks), length(ideal))
    kinds = {span.kind for spans in trace.ranks for span in spans}
    data = {
        "broken": "",
        "facts": facts(trace, len(paths) - 1),
        "numbers": numbers(trace, ideal, Steady.of(run).step_time_s),
        "kinds": [{"class": kind, "name": name} for kind, name in NAMES.items() if kind in kinds],
        "chunks": chunks(trace.plan),
        "pictures": [
            picture(trace, trace.ranks, end, "Measured", "as it ran"),
            picture(trace, ideal, end, "Ideal", "the same order, messages at once, each part at its median"),
        ],
    }
    return Section("pipeline", "Pipeline", "pipeline.html", data)


def numbers(trace: PipelineStep, ideal: Sequence[Sequence[Span]], usual: float | None = None) -> list[dict[str, str]]:
    """The tiles; `usual` is the run's median step in seconds, which no profiler slowed."""
    by_clock = f"{say(length(ideal), 'seconds')} by the ideal clock"
    by_clock += f"; the whole step, median of those without a profiler: {short_time(usual)}" if usual else ""
    tiles = [
        ("Bubble, measured", say(bubble(trace.ranks), "percent"), "of the rank that waits most"),
        ("Bubble, formula", say(formula(trace), "percent"), "all stages alike"),
        ("Bubble, ideal clock", say(bubble(ideal), "percent"), "stages as measured"),
        (f"Pipeline of step {trace.step:,}, traced", say(length(trace.ranks), "seconds"), by_clock),
    ]
    return [dict(zip(("name", "value", "note"), tile, strict=True)) for tile in tiles]


def facts(trace: PipelineStep, others: int) -> list[str]:
    plan, stages = trace.plan, len(trace.plan.rank_of)
    parts = [plan.kind, f"{plan.ranks} ranks", *([f"{stages} stages"] if stages > plan.ranks else [])]
    parts += [counted(plan.micro_batches, "micro-batches"), f"step {trace.step:,}"]
    return [*parts, f"{counted(others, 'other recorded steps')} in traces/"] if others else parts


def chunks(plan: Schedule) -> list[dict[str, object]]:
    """The stages of each chunk, a: nearest to the model's start; empty when every rank has one stage."""
    per_rank = [plan.stages_of(rank) for rank in range(plan.ranks)]
    if len(per_rank[0]) == 1:
        return []
    legend = []
    for index in range(len(per_rank[0])):
        stages = sorted(mine[index] for mine in per_rank)
        text = f"{ascii_lowercase[index % 26]}: stages {stages[0]}–{stages[-1]}"
        legend.append({"shade": min(index, SHADES - 1), "text": text})
    return legend


def picture(
    trace: PipelineStep, ranks: Sequence[Sequence[Span]], end: float, title: str, note: str
) -> dict[str, object]:
    """Boxes in percent of the width and pixels of the height; pictures with one `end` share their scale."""
    plan = trace.plan
    chunk = {stage: index for rank in range(plan.ranks) for index, stage in enumerate(plan.stages_of(rank))}
    several = len(plan.rank_of) > plan.ranks
    boxes = [_box(span, rank, end, chunk[span.stage], several) for rank, spans in enumerate(ranks) for span in spans]
    bottom = len(ranks) * (ROW + GAP)
    return {
        "title": title, "note": note, "height": bottom + AXIS, "bottom": bottom, "row": ROW,
        "rows": [{"y": rank * (ROW + GAP), "name": f"rank {rank}"} for rank in range(len(ranks))], "boxes": boxes,
        "ticks": [{"at": 100 * t / end, "text": say_tick(t, "seconds")} for t in ticks(0.0, end, 6) if t < 0.97 * end],
        "description": f"{title}: {plan.kind} on {plan.ranks} ranks, {plan.micro_batches} micro-batches; "
        f"{say(length(ranks), 'seconds')}, bubble {say(bubble(ranks), 'percent')}.",
    }  # fmt: skip


def _box(span: Span, rank: int, end: float, chunk: int, several: bool) -> dict[str, object]:
    label = f"{span.micro}{ascii_lowercase[chunk % 26] if several else ''}"
    share = (span.end - span.start) / end
    needed = DIGIT * len(label) + 2
    fits = "small" if share * NARROW >= needed else "wide" if share * WIDE >= needed else ""
    return {
        "x": 100 * span.start / end, "width": 100 * share, "y": rank * (ROW + GAP), "kind": span.kind,
        "shade": min(chunk, SHADES - 1), "label": label if fits else "", "fits": fits,
        "said": f"{NAMES[span.kind]}, micro-batch {span.micro}, stage {span.stage}: "
        f"{say(span.end - span.start, 'seconds')} at {say(span.start, 'seconds')}",
    }  # fmt: skip

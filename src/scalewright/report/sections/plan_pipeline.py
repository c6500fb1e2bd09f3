"""The pipeline of the best layout: its schedule's actions, at the seconds that the plan gives the stages.

    rank 0 | F0 F1 .  .  B0--- F2 B1--- .  B2---        plan's `stages` seconds + spec's schedule and clock
    rank 1 | .  F0 B0--- F1 B1--- F2 B2--- .  .         -> boxes for the script, which zooms and pans

A step of hundreds of thousands of boxes is cut to its beginning and its end: what lies between repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scalewright.report.document import Estimate, PlanDocument, Stage
from scalewright.report.page import Section
from scalewright.report.sections.pipeline import NAMES
from scalewright.report.series import say
from scalewright.spec.errors import RunError, UserError
from scalewright.spec.schedule import COMPUTE, Schedule, Timing, schedule, simulate

KINDS = tuple(NAMES)
MOST_BOXES = 40_000  # a browser redraws so many in a few hundredths of a second
MOST_ACTIONS = 120_000  # computations that are put on the clock: some seconds
MOST_STAGES = 1024
STEADY = 4  # micro-batches of the steady state beside the fill; with several stages a rank, one round of all
MOST_FOLDED = 0.35  # of the step: where the ends are longer, nothing is left out
HEAD = 0.75  # of the boxes that are kept, those of the beginning
TICKS = 2_000_000  # whole numbers for the times: a millionth of the step is finer than any screen


@dataclass(frozen=True)
class Pipeline:
    """A schedule put on the clock; `micros` were asked for, fewer may be drawn."""

    plan: Schedule
    timing: Timing
    micros: int
    halved: bool  # the plan gives whole backwards, the schedule splits them
    messages: bool  # the plan has their times


def section(document: PlanDocument, most: int = MOST_ACTIONS) -> Section | None:
    """The timeline, of at most so many actions; a sentence where the plan lacks numbers; None without a pipeline."""
    best = document.first
    if best is None or best.size("pp") == 1:
        return None
    pipeline = put_on_the_clock(best, most)
    if isinstance(pipeline, str):
        return Section("pipeline", "Pipeline", "plan_pipeline.html", {"missing": pipeline})
    boxes, gap = boxes_of(pipeline)
    data = {
        "missing": "", "numbers": numbers(pipeline), "notes": notes(pipeline, gap),
        "kinds": [
            {"class": kind, "name": name}
            for kind, name in NAMES.items()
            if any(action.kind == kind for actions in pipeline.plan.actions for action in actions)
        ],
        "chunked": len(pipeline.plan.stages_of(0)) > 1, "height": 28 * pipeline.plan.ranks,
        "description": describe(pipeline),
    }  # fmt: skip
    drawing = {
        "id": "pipeline", "type": "pipeline", "seconds": pipeline.timing.makespan, "ticks": TICKS,
        "names": list(NAMES.values()), "ranks": boxes, "gap": gap, "fold": fold(pipeline),
        "chunks": len(pipeline.plan.stages_of(0)),
        "stages": [list(pipeline.plan.stages_of(rank)) for rank in range(pipeline.plan.ranks)],
    }  # fmt: skip
    return Section("pipeline", "Pipeline", "plan_pipeline.html", data, drawings=[drawing])


def put_on_the_clock(best: Estimate, most: int = MOST_ACTIONS) -> Pipeline | str:
    """The schedule of a layout with its stages' seconds; or why it can't be drawn, as a sentence."""
    kind, pp, chunks = str(best.layout.get("schedule", "1f1b")), best.size("pp"), best.size("virtual_stages")
    micros = micro_batches(best)
    if not best.stages:
        return "The plan doesn't say how long each stage takes (stages), so its pipeline isn't drawn."
    if micros is None:
        return "The layout's micro-batches aren't whole, so its pipeline isn't drawn."
    if pp * chunks > MOST_STAGES:
        return f"The pipeline isn't drawn: it has {pp * chunks:,} stages."
    drawn = fewer(micros, pp, pp * chunks * 2, most)
    try:
        plan = schedule(kind, pp, chunks, drawn)
        costs = stage_costs(plan, best.stages)
    except UserError as error:
        return f"The pipeline isn't drawn: {error.what}."
    if costs is None:
        return "The plan's stages aren't those of its schedule, so the pipeline isn't drawn."
    try:
        timing = simulate(
            plan,
            lambda action: costs[plan.model_stage(action.stage)][action.kind],
            lambda action: costs[plan.model_stage(action.stage)].get("send", 0.0),
        )
    except RunError as error:
        return f"The pipeline isn't drawn: {error}."
    if timing.makespan <= 0:
        return "The plan's stages take no time, so the pipeline isn't drawn."
    used = {action.kind for actions in plan.actions for action in actions}
    split = "backward_input" in used and not all("backward_input" in stage.seconds for stage in best.stages)
    return Pipeline(plan, timing, micros, split, any("send" in stage.seconds for stage in best.stages))


def micro_batches(best: Estimate) -> int | None:
    """Micro-batches of a step on one data-parallel rank; None when they aren't whole."""
    batch = best.layout.get("global_batch")
    samples = best.size("micro_batch") * best.size("dp")
    if isinstance(batch, bool) or not isinstance(batch, (int, float)) or batch < samples or batch % samples:
        return None
    return int(batch // samples)


def fewer(micros: int, ranks: int, actions: int, most: int = MOST_ACTIONS) -> int:
    """As many micro-batches as the clock takes in seconds: a multiple of the ranks, which suits all kinds."""
    return min(micros, max(most // actions // (2 * ranks), 1) * 2 * ranks)


def stage_costs(plan: Schedule, stages: Sequence[Stage]) -> list[dict[str, float]] | None:
    """Seconds of each kind of action by stage of the model; None when the stages are others.

    A split backward that the plan gives whole is drawn as two halves.
    """
    if len(stages) != plan.model_stages or any(not {"forward", "backward"} <= set(s.seconds) for s in stages):
        return None
    by_stage = []
    for stage in sorted(stages, key=lambda stage: stage.number):
        half = stage.seconds["backward"] / 2
        costs = {"backward_input": half, "backward_weight": half, **stage.seconds}
        held_up = costs.get("held_up", 0.0)  # what a message takes of the computing rank
        by_stage.append({k: v if k in ("backward_weight", "send") else v + held_up for k, v in costs.items()})
    return by_stage


def boxes_of(pipeline: Pipeline) -> tuple[list[list[int]], list[float] | None]:
    """Each rank's boxes in a row of numbers, and the shares between which nothing was kept.

    A box is five numbers: kind, chunk, micro-batch, ticks since the end of the box before, ticks it lasts.
    """
    rows = [_row(pipeline, rank) for rank in range(pipeline.plan.ranks)]
    total = sum(len(row) for row in rows)
    gap: list[int] | None = None
    if total > MOST_BOXES:
        starts = sorted(box[3] for row in rows for box in row)
        gap = [starts[int(HEAD * MOST_BOXES)], starts[total - int((1 - HEAD) * MOST_BOXES)]]
        rows = [[box for box in row if box[4] <= gap[0] or box[3] >= gap[1]] for row in rows]
    flat = []
    for row in rows:
        befores = [0, *(box[4] for box in row)]
        boxes = ((*box[:3], box[3] - before, box[4] - box[3]) for box, before in zip(row, befores, strict=False))
        flat.append([number for box in boxes for number in box])
    return flat, None if gap is None else [edge / TICKS for edge in gap]


def fold(pipeline: Pipeline) -> list[float] | None:
    """The shares of the step between which the picture breaks; None where the whole is short enough.

    Drawn are the fill with a few micro-batches of the steady state, and as much of the end, with the drain.
    """
    plan, end = pipeline.plan, pipeline.timing.makespan
    stages = len(plan.stages_of(0))
    backwards = sorted(
        stop
        for action, (_, stop) in zip(plan.actions[0], pipeline.timing.spans[0], strict=True)
        if action.kind in ("backward", "backward_input")
    )
    shown = STEADY if stages == 1 else plan.ranks * stages
    if len(backwards) <= 2 * shown:
        return None
    head = backwards[shown - 1] / end
    return [head, 1 - head] if head < MOST_FOLDED else None


def _row(pipeline: Pipeline, rank: int) -> list[tuple[int, int, int, int, int]]:
    plan, scale = pipeline.plan, TICKS / pipeline.timing.makespan
    chunk = {stage: index for index, stage in enumerate(plan.stages_of(rank))}
    return [
        (KINDS.index(a.kind), chunk[a.stage], a.micro, round(start * scale), round(end * scale))
        for a, (start, end) in zip(plan.actions[rank], pipeline.timing.spans[rank], strict=True)
        if a.kind in COMPUTE
    ]


def numbers(pipeline: Pipeline) -> list[dict[str, str]]:
    plan, timing = pipeline.plan, pipeline.timing
    stages = f" × {plan.virtual_stages} stages each" if plan.virtual_stages > 1 else ""
    tiles = [
        ("Schedule", plan.kind, f"{plan.ranks} pipeline ranks{stages}"),
        ("Micro-batches", f"{pipeline.micros:,}", "a step, on every data-parallel rank"),
        ("Pipeline", say(timing.makespan, "seconds"), "fill, steady state and drain"),
        ("Bubble", say(timing.bubble_fraction, "percent"), "of the ranks' time, idle"),
    ]
    if plan.micro_batches < pipeline.micros:
        tiles[2:] = []
    return [dict(zip(("name", "value", "note"), tile, strict=True)) for tile in tiles]


def notes(pipeline: Pipeline, gap: list[float] | None) -> list[str]:
    drawn, more = ("Computation and messages", "") if pipeline.messages else ("Computation", "messages, ")
    come = f"{more}the exchange of gradients and the optimizer's step come on top; the time breakdown has them."
    lines = [f"{drawn} alone: {come}"]
    if pipeline.halved:
        lines.append("The plan gives whole backwards; their two parts are drawn as halves.")
    if (shown := pipeline.plan.micro_batches) < pipeline.micros:
        of = f"{shown:,} of {pipeline.micros:,} micro-batches"
        lines.append(f"Drawn with {of}: what is left out repeats the steady state.")
    if gap is not None:
        lines.append("Its beginning and its end are drawn; between them the steady state repeats.")
    return lines


def describe(pipeline: Pipeline) -> str:
    plan, timing = pipeline.plan, pipeline.timing
    return (
        f"Timeline of {plan.kind} on {plan.ranks} pipeline ranks with {plan.micro_batches} micro-batches: "
        f"{say(timing.makespan, 'seconds')}, {say(timing.bubble_fraction, 'percent')} waits."
    )

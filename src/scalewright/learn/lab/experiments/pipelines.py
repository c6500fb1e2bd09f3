"""Pipeline schedules on two processes: the bubble that was measured beside the formula's, over micro-batches.

    rank 0 | F0 F1 F2 F3 .  .  B0--- B1--- B2--- B3---     GPipe: bubble (p - 1) / (m + p - 1)
    rank 1 | .  F0 F1 F2 F3 B0--- B1--- B2--- B3--- .      1F1B: the same, with p micro-batches alive instead of m
    rank 0 | F0 F1 .  B0-- F2 B1-- ...                     interleaved: ... / v; zero bubble: weight gradients fill it

Each action's begin and end are the trainer's own records; the bubble is that of the rank that waits most.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from scalewright.learn.lab.bench import Bench
from scalewright.learn.lab.outcome import Curve, Outcome, Value, curves, lanes, table
from scalewright.spec.common.formatting import share, short_time
from scalewright.spec.schedule import bubble_fraction, peak_activations, schedule

if TYPE_CHECKING:
    from scalewright.diagnose.pipeline_steps import Span

RANKS, CHUNKS = 2, 2
KINDS = ("gpipe", "1f1b", "interleaved", "zb-h1")
COUNTS = (2, 4, 8)
TRACED = (4, 5, 6)
MODEL = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4}
NOISE = "messages, uneven stages and two processes on two cores; medians of three steps"
COLOURS = {"forward": 1, "backward": 2, "backward_input": 3, "backward_weight": 5}


def run(bench: Bench) -> Outcome:
    """Schedules by micro-batches; of the largest number, the time lines of a step."""
    kinds, counts = (KINDS[1:2], COUNTS[:2]) if bench.short else (KINDS, COUNTS)
    pairs = [(kind, count) for kind in kinds for count in counts]
    seen = bench.each(pairs, lambda pair: _measure(bench, *pair), timed=True)
    most = counts[-1]
    values = [
        Value(
            f"{kind}: bubble at {count} micro-batches", seen[kind, count]["bubble"], expected(kind, count), "share",
            "waits by an ideal clock" if kind == "zb-h1" else "(p - 1) / (v m + p - 1)", 0.5, NOISE, timed=True,
        )
        for kind, count in seen
    ]  # fmt: skip
    alive = [(kind, peak_activations(schedule(kind, RANKS, chunks(kind), most))[0] / chunks(kind)) for kind in kinds]
    lines = [Curve(kind, [(count, seen[kind, count]["bubble"]) for count in counts]) for kind in kinds]
    lines.append(Curve("(p - 1) / (m + p - 1)", [(m, expected("1f1b", m)) for m in counts], expected=True))
    pictures = [curves("the bubble over micro-batches", "micro-batches", "bubble", lines, ("", "share"), log="x")]
    pictures += [picture for kind in kinds for picture in seen[kind, most]["lanes"]]
    rows: list[Sequence[str | float]] = [
        [kind, number, share(seen[kind, most]["bubble"]), share(expected(kind, most))] for kind, number in alive
    ]
    heads = ["schedule", "micro-batches alive on rank 0", f"bubble at {most}", "expected"]
    return Outcome(values, [*pictures, table("what a schedule keeps for its bubble", heads, rows)])


def chunks(kind: str) -> int:
    """Chunks of layers that a rank has."""
    return CHUNKS if kind == "interleaved" else 1


def expected(kind: str, count: int) -> float:
    """The share of a step that the rank that waits most is idle, by the schedule's own clock."""
    return bubble_fraction(kind, RANKS, chunks(kind), count)


def _measure(bench: Bench, kind: str, count: int) -> dict[str, Any]:
    from scalewright.diagnose.pipeline_steps import bubble, idealised, length, read

    layout = {
        "devices": RANKS, "pp": RANKS, "schedule": kind, "micro_batch": 1, "global_batch": count, "zero_stage": 0,
        **({"virtual_stages": CHUNKS} if kind == "interleaved" else {}),
    }  # fmt: skip
    name = f"{kind}-{count}"
    trained = bench.run(
        name, {"layout": layout, "model": MODEL, "data": {"seq_len": 256}, "train": {"steps": TRACED[-1]},
               "profile": {"steps": list(TRACED)}},
    )  # fmt: skip
    steps = [step for path in sorted((trained.folder / "traces").glob("pipeline-step-*.json")) if (step := read(path))]
    shown = sorted(steps, key=lambda step: bubble(step.ranks))[len(steps) // 2]
    end = max(length(shown.ranks), length(idealised(shown)))
    return {
        "bubble": median(bubble(step.ranks) for step in steps),
        "lanes": [
            lanes(f"{kind}, {count} micro-batches: {name}", _rows(spans, end), short_time(end))
            for name, spans in (("measured", shown.ranks), ("by an ideal clock", idealised(shown)))
        ],
    }


def _rows(ranks: Sequence[Sequence[Span]], end: float) -> list[tuple[str, list[dict[str, Any]]]]:
    return [
        (f"rank {number}", [
            {"left": span.start / end, "width": (span.end - span.start) / end, "part": COLOURS[span.kind],
             "words": f"{span.kind.replace('_', ' ')} of micro-batch {span.micro}"}
            for span in spans
        ])
        for number, spans in enumerate(ranks)
    ]  # fmt: skip

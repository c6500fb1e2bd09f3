"""The pictures of docs/ideas.md, from schedules that the engine runs and numbers that the planner gives.

data.svg  sharding.svg  tensor.svg  pipeline.svg  bubbles.svg
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Sequence
from pathlib import Path

from harness.svg import BACKWARD, FORWARD, GRID, INPUT, SOFT, WEIGHT, Board
from scalewright.plan.predict import Prediction, predict
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.presets import load_model_spec
from scalewright.spec.schedule import COMPUTE, StageCost, bubble_fraction, schedule, simulate
from scalewright.spec.tensors import count

MODEL = "llama-3.1-8b"
COST = StageCost(1.0, 1.0, 1.0)  # a backward takes twice a forward, half of it for the weights
FILLS = {"forward": FORWARD, "backward": BACKWARD, "backward_input": INPUT, "backward_weight": WEIGHT}
KINDS = {"parameters": "#0072b2", "gradients": "#56b4e9", "optimizer": "#009e73", "activations": "#e69f00"}
PALE = {"parameters": "#8fc1e0", "gradients": "#c9e6f8"}  # of the same kinds, for what is held whole for a step
REST = "#b9b6ad"


def draw_all(folder: Path) -> None:
    """Writes every picture into `folder`."""
    draw_data(folder / "data.svg")
    draw_sharding(folder / "sharding.svg")
    draw_tensor(folder / "tensor.svg")
    draw_pipelines(folder / "pipeline.svg")
    draw_bubbles(folder / "bubbles.svg")


def draw_data(path: Path) -> None:
    """Four replicas, a line of text each, one sum of gradients."""
    folder = importlib.resources.files("scalewright.data") / "bundled" / "shakespeare"
    name = next(part for part in folder.iterdir() if part.name.endswith(".txt")) if folder.is_dir() else None
    lines = _lines(name.read_text("utf-8") if name else "")
    board = Board(760, 232)
    for rank, line in enumerate(lines):
        y = 20 + 42 * rank
        board.text(20, y + 21, f"rank {rank}", 12, fill=SOFT)
        board.box(76, y, 300, 32, "#f7f6f3", f"“{line}”", 11)
        board.arrow(382, y + 16, 410, y + 16)
        board.box(416, y, 120, 32, FORWARD, "whole model", 11)
        board.arrow(542, y + 16, 570, y + 16)
        board.box(576, y, 80, 32, BACKWARD, "gradient", 11)
        board.line([(656, y + 16), (690, y + 16)])
    board.line([(690, 36), (690, 162)])
    board.arrow(690, 99, 716, 99)
    board.text(724, 103, "sum", 12, weight=600)
    board.text(
        20,
        214,
        "Every rank sees other tokens; one all-reduce sums the gradients; all take the same step.",
        12,
        fill=SOFT,
    )
    board.save(path, "Data parallel: four replicas with different tokens, one sum of gradients")


def draw_sharding(path: Path) -> None:
    """Memory of one of 8 devices at each ZeRO stage, as the planner counts it."""
    rows = [_priced(zero_stage=stage) for stage in range(4)]
    longest = max(found.peak_gib for found in rows)
    board = Board(760, 262)
    for stage, found in enumerate(rows):
        whole, y, x = held_whole(stage), 56 + 38 * stage, 90.0
        board.text(20, y + 18, f"ZeRO {stage}", 13, weight=600)
        parts: list[tuple[str, float]] = []
        for kind, colour in KINDS.items():
            pale = whole.get(kind, 0.0)
            # gathered parameters lie beside the rank's own, whole gradients come before them
            full = found.memory_gib[kind] - (pale if kind == "gradients" else 0.0)
            parts += [(colour, max(full, 0.0)), (PALE.get(kind, colour), pale)]
        for colour, gib in [*parts, (REST, found.peak_gib - sum(gib for _, gib in parts))]:
            if gib > 0:
                board.bar(x, y, 540 * gib / longest, 26, colour)
            x += 540 * gib / longest
        board.text(x + 8, y + 18, f"{found.peak_gib:.0f} GiB", 12)
    x = 90.0
    for kind, colour in [*KINDS.items(), ("other", REST)]:
        board.bar(x, 22, 12, 12, colour)
        board.text(x + 18, 32, kind, 12, fill=SOFT)
        x += 36 + 7.2 * len(kind)
    for x, colour in ((90.0, PALE["parameters"]), (106.0, PALE["gradients"])):
        board.bar(x, 214, 12, 12, colour)
    board.text(124, 224, "pale: held whole while a step lasts", 12, fill=SOFT)
    board.text(
        20,
        248,
        "llama-3.1-8b on 8 H100, four times a sequence of 4,096 tokens, selective recomputation: one device.",
        12,
        fill=SOFT,
    )
    board.save(path, "Memory of one device at ZeRO stages 0 to 3")


def held_whole(stage: int) -> dict[str, float]:
    """GiB that a ZeRO stage holds whole during a step: parameters at 1 and 2, at 1 the gradients too."""
    gib = count(load_model_spec(MODEL)).total / 2**30
    return {"parameters": 2 * gib if stage in (1, 2) else 0.0, "gradients": 4 * gib if stage == 1 else 0.0}


def draw_tensor(path: Path) -> None:
    """A matrix cut in two, and what its messages cost inside and between nodes."""
    board = Board(760, 250)
    for rank, colour in enumerate((FORWARD, "#f0b27a")):
        y = 24 + 66 * rank
        board.text(20, y + 28, f"rank {rank}", 12, fill=SOFT)
        board.box(76, y, 52, 46, "#f7f6f3", "x")
        board.text(140, y + 28, "×", 14)
        board.box(158, y, 52, 46, colour, "A", 12)
        board.text(222, y + 28, "×", 14)
        board.box(240, y + 10, 80, 26, colour, "B", 12)
        board.arrow(326, y + 23, 352, y + 23)
    board.box(358, 46, 20, 70, "#f7f6f3", "+", 14)
    board.text(76, 178, "Half of A's columns and of B's rows on each rank:", 12, fill=SOFT)
    board.text(76, 196, "one sum after B forward, one after A backward,", 12, fill=SOFT)
    board.text(76, 214, "for the attention and for the MLP of every layer.", 12, fill=SOFT)
    sizes = (2, 4, 8, 16)
    shares = [_share(tp) for tp in sizes]
    for number, (tp, part) in enumerate(zip(sizes, shares, strict=True)):
        y = 30 + 42 * number
        board.text(470, y + 17, f"tp {tp}", 12, "end")
        board.bar(480, y, 220, 24, GRID)
        board.bar(480, y, 220 * part, 24, "#e69f00" if tp <= 8 else BACKWARD)
        board.text(708, y + 17, f"{100 * part:.0f}%", 12)
    board.text(430, 214, "Share of a step that waits for these sums:", 12, fill=SOFT)
    board.text(430, 232, "llama-3.1-70b on 64 H100 in nodes of 8.", 12, fill=SOFT)
    board.save(path, "Tensor parallel: a matrix in two halves, and the share of time that its sums take")


def draw_pipelines(path: Path) -> None:
    """Three schedules by the clock that the planner uses: 4 ranks, 8 micro-batches."""
    kinds = ("gpipe", "1f1b", "zb-h1")
    board = Board(760, 60 + 148 * len(kinds))
    longest = max(simulate(schedule(kind, 4, 1, 8), COST).makespan for kind in kinds)
    for number, kind in enumerate(kinds):
        plan = schedule(kind, 4, 1, 8)
        timing = simulate(plan, COST)
        top = 22 + 148 * number
        board.text(20, top + 8, kind, 13, weight=600)
        board.text(76, top + 8, f"bubble {100 * timing.bubble_fraction:.0f}% of the ranks' time", 12, fill=SOFT)
        for rank in range(4):
            y = top + 18 + 27 * rank
            board.text(66, y + 15, f"rank {rank}", 11, "end", SOFT)
            board.bar(74, y, 666 * timing.makespan / longest, 22, GRID)
            for action, (start, end) in zip(plan.actions[rank], timing.spans[rank], strict=True):
                if action.kind in COMPUTE:
                    board.box(
                        74 + 666 * start / longest,
                        y,
                        666 * (end - start) / longest,
                        22,
                        FILLS[action.kind],
                        str(action.micro),
                        10,
                    )
    x, y = 74.0, 40 + 148 * len(kinds)
    for name, fill in (
        ("forward", FORWARD),
        ("backward", BACKWARD),
        ("backward, inputs", INPUT),
        ("backward, weights", WEIGHT),
        ("bubble", GRID),
    ):
        board.bar(x, y - 10, 12, 12, fill)
        board.text(x + 18, y, name, 12, fill=SOFT)
        x += 34 + 6.8 * len(name)
    board.save(path, "Three pipeline schedules on 4 ranks with 8 micro-batches")


def draw_bubbles(path: Path) -> None:
    """How the bubble shrinks with more micro-batches, on 8 ranks."""
    board = Board(760, 280)
    micros = [8, 16, 24, 32, 48, 64, 96, 128]
    left, right, top, bottom = 64.0, 560.0, 20.0, 224.0

    def place(micro: int, share: float) -> tuple[float, float]:
        return left + (right - left) * (micro - 8) / 120, bottom - (bottom - top) * share / 0.5

    for share in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5):
        y = place(8, share)[1]
        board.line([(left, y), (right, y)], GRID, 1)
        board.text(left - 8, y + 4, f"{100 * share:.0f}%", 11, "end", SOFT)
    for micro in (8, 32, 64, 96, 128):
        board.text(place(micro, 0)[0], bottom + 18, str(micro), 11, "middle", SOFT)
    for kind, chunks, colour in (("1f1b", 1, BACKWARD), ("interleaved", 4, "#0072b2"), ("zb-h1", 1, WEIGHT)):
        values = [bubble_fraction(kind, 8, chunks, micro, COST) for micro in micros]
        points = [place(micro, share) for micro, share in zip(micros, values, strict=True)]
        board.line(points, colour, 2.2)
        name = kind + (f", {chunks} stages a rank" if chunks > 1 else "")
        board.text(
            right + 10, points[-1][1] + (-6 if kind == "1f1b" else 4 if kind == "zb-h1" else 14), name, 12, fill=colour
        )
    board.text(
        (left + right) / 2,
        bottom + 42,
        "micro-batches of a step on 8 pipeline ranks; the share of time that is bubble",
        12,
        "middle",
        SOFT,
    )
    board.save(path, "The bubble's share of a step against its micro-batches")


def _lines(text: str) -> Sequence[str]:
    """The first four lines of a bundled text that fit a box."""
    fitting = [line.strip() for line in text.splitlines() if 24 <= len(line.strip()) <= 44]
    return (fitting or ["We are accounted poor citizens, the patricians good"] * 4)[:4]


def _layout(**keys: int) -> Layout:
    return Layout.parse({"devices": 8, "global_batch": 32, "recompute": "selective", **keys}, "layout")


def _priced(**keys: int) -> Prediction:
    return predict(load_model_spec(MODEL), load_cluster("dgx-h100"), _layout(**keys), 4096)


def _share(tp: int) -> float:
    asked = Layout.parse({"devices": 64, "tp": tp, "zero_stage": 1, "global_batch": 64, "recompute": "full"}, "layout")
    found = predict(load_model_spec("llama-3.1-70b"), load_cluster("dgx-h100"), asked, 4096)
    return found.breakdown["tp_exposed"] / found.step_time_s

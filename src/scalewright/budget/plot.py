"""The picture of a fit: losses over FLOPs, a line for each size, the largest run beside its prediction (matplotlib)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from scalewright.budget.fit import Array, optimum, predict
from scalewright.spec.common.formatting import count
from scalewright.spec.errors import UserError

KINDS = (".svg", ".png", ".pdf")


def draw(answer: dict[str, Any], path: Path) -> None:
    """Writes the picture of `fit_runs`' answer. Raises UserError for a kind of file that isn't one of KINDS."""
    if path.suffix not in KINDS:
        raise UserError(f"'{path.suffix}' is no kind of picture", "--plot", f"use {', '.join(KINDS)}")
    from matplotlib.figure import Figure

    law = answer["law"]
    constants: Array = np.array([np.log(law["E"]), np.log(law["A"]), np.log(law["B"]), law["alpha"], law["beta"]])
    figure = Figure(figsize=(7, 4.6), layout="constrained")
    axes = figure.subplots()
    runs, more, left = answer["runs"], answer["extrapolated"], answer["leave_largest_out"]
    low, high = answer["range"]["flops"]
    end = max(high, 6 * more["params"] * more["tokens"] if more else 0.0)
    sizes = sorted({run["params"] for run in runs})
    for at, size in enumerate(sizes):
        colour = f"C{at % 10}"
        own = [run for run in runs if run["params"] == size]
        tokens = np.geomspace(min(run["tokens"] for run in own) / 1.5, max(run["tokens"] for run in own) * 1.5, 60)
        axes.plot(6 * size * tokens, predict(constants, size, tokens), color=colour, linewidth=1)
        axes.plot([6 * size * run["tokens"] for run in own], [run["loss"] for run in own], "o", color=colour,
                  markersize=5, label=f"{count(size)} parameters")  # fmt: skip
    if min(law["alpha"], law["beta"]) > 0:
        flops = np.geomspace(low, end, 80)
        best = [float(predict(constants, *optimum(constants, value))) for value in flops]
        axes.plot(flops, best, "--", color="0.45", linewidth=1, label="best size for the FLOPs")
    if left:
        flops_of_left = 6 * left["params"] * left["tokens"]
        axes.plot(
            [flops_of_left],
            [left["predicted"]],
            "x",
            color="k",
            label=f"largest, by the others ({left['error_pct']:+.2f}%)",
        )
    if more:
        loss = more["loss"]
        bars = [[loss["p50"] - loss["p10"]], [loss["p90"] - loss["p50"]]]
        axes.errorbar(
            [end],
            [loss["p50"]],
            yerr=bars,
            fmt="D",
            color="k",
            capsize=4,
            markersize=5,
            label="extrapolated, p10 to p90",
        )
        axes.axvspan(high, end * 1.2, color="0.93")
        where = axes.get_xaxis_transform()  # x in data, y as a share of the frame
        axes.text(high * 1.1, 0.96, " beyond what was fitted", fontsize=8, va="top", color="0.4", transform=where)
    axes.set(xscale="log", xlabel="training FLOPs (6 N D)", ylabel="loss (nats a token)")
    axes.legend(fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)

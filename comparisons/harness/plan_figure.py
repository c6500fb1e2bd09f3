"""The picture of docs/plans.md: a bar a plan, each part's share of its step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from harness.plan_cases import Outcome
from scalewright.spec.step_parts import PART_TERMS

# Work in greys and greens, messages in blues to pink, waiting in orange.
COLORS = {
    "compute": "#4d4d4d", "recompute": "#a6a6a6", "tp_exposed": "#0072b2", "cp_exposed": "#56b4e9",
    "ep_exposed": "#cc79a7", "dp_exposed": "#6a51a3", "pp_exposed": "#f0e442", "pp_bubble": "#e69f00",
    "optimizer": "#009e73", "other": "#d55e00",
}  # fmt: skip
LEAST_NAMED = 0.045  # of a step: larger parts have their percentage written on them
DPI = 110


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """Draws all of them into one PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with pyplot.rc_context({"font.size": 9}):
        figure, axes = pyplot.subplots(figsize=(9.2, 0.36 * len(outcomes) + 1.5), layout="constrained")
        rows = range(len(outcomes))
        left = [0.0] * len(outcomes)
        for part, color in COLORS.items():
            shares = [_share(outcome, part) for outcome in outcomes]
            axes.barh(rows, shares, left=left, color=color, height=0.74, label=PART_TERMS[part])
            for row, share in enumerate(shares):
                if share >= LEAST_NAMED:
                    dark = part in ("compute", "tp_exposed", "dp_exposed", "optimizer")
                    axes.text(left[row] + share / 2, row, f"{100 * share:.0f}", ha="center", va="center",
                              color="white" if dark else "black", fontsize=8)  # fmt: skip
            left = [done + share for done, share in zip(left, shares, strict=True)]
        axes.set_yticks(rows, [outcome.case.title for outcome in outcomes])
        axes.invert_yaxis()
        axes.set(xlim=(0, 1), xlabel="share of the step, percent")
        axes.set_xticks([0, 0.2, 0.4, 0.6, 0.8, 1], ["0", "20", "40", "60", "80", "100"])
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(left=False)
        figure.legend(loc="outside upper center", ncols=5, frameon=False, fontsize=8)
        figure.savefig(path, dpi=DPI, metadata={"Software": None})
        pyplot.close(figure)


def _share(outcome: Outcome, part: str) -> float:
    return float(outcome.best["time_breakdown_s"][part] / outcome.best["step_time_s"]["p50"])

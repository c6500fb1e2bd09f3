"""The plots of docs/accuracy*.md: PNG files, drawn by matplotlib from `Figures` (left-out predictions).

scatter.png      predicted against measured tokens/s a device      size.png       error against parameters
sources.png      error of every source beside the best baseline    ranking.png    tau and regret by group
coverage.png     what share of measurements a band of p% holds     memory.png     memory, and what fits
"""

from __future__ import annotations

from pathlib import Path
from statistics import NormalDist
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

from harness.accuracy_figures import Figures, in_words
from scalewright.plan.cost.memory import SIGMA
from scalewright.plan.fitting.fit import of_unknown_trainers
from scalewright.plan.predict import predict_table

COLORS = {"volta": "#7f7f7f", "ampere": "#0072b2", "hopper": "#009e73", "blackwell": "#d55e00",
          "tpu": "#cc79a7", "amd": "#e69f00", "other": "#000000"}  # fmt: skip
DPI = 110
LARGE_SOURCES = ("ultrascale-playbook", "vtrain-single")


def draw(figures: Figures, folder: Path) -> list[Path]:
    """Draws all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    style: Any = {
        "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
        "grid.color": "#dddddd", "grid.linewidth": 0.6, "axes.axisbelow": True,
    }  # fmt: skip
    drawn = []
    with pyplot.rc_context(style):
        for name, (size, of) in {
            "scatter": ((6.2, 5.2), _scatter), "sources": ((7.4, 5.4), _sources), "size": ((7.4, 3.6), _size),
            "coverage": ((4.6, 4.0), _coverage), "ranking": ((7.4, 3.6), _ranking),
            "memory": ((4.6, 4.0), _memory),
        }.items():  # fmt: skip
            figure, axes = pyplot.subplots(figsize=size, layout="constrained")
            of(figures, axes)
            path = folder / f"{name}.png"
            figure.savefig(path, dpi=DPI, metadata={"Software": None})
            pyplot.close(figure)
            drawn.append(path)
    return drawn


def _families(figures: Figures) -> np.ndarray:
    return np.array([request.chip.family.kernels.name for request in figures.runs.requests])


def _scatter(figures: Figures, axes: Axes) -> None:
    """Tokens/s of a device: predicted with the row's source left out, against measured."""
    tokens = np.array([r.global_batch * r.seq_len / r.devices for r in figures.runs.requests])
    measured, found = tokens / figures.runs.seconds, tokens / figures.left_out["source"]
    families, plain = _families(figures), figures.plain & np.isfinite(found)
    for family in dict.fromkeys(families[plain].tolist()):
        at = plain & (families == family)
        axes.scatter(measured[at], found[at], s=9, alpha=0.55, color=COLORS[family], label=family, lw=0)
    ends = np.array([measured[plain].min() * 0.7, measured[plain].max() * 1.4])
    axes.plot(ends, ends, color="black", lw=0.8)
    for factor in (0.8, 1.25):
        axes.plot(ends, ends * factor, color="black", lw=0.6, ls=":")
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="measured tokens/s a device",
             ylabel="predicted tokens/s a device (source left out)")  # fmt: skip
    axes.legend(frameon=False, title="dotted: 25% off", alignment="left")


def _sources(figures: Figures, axes: Axes) -> None:
    """A bar a source: ours left out, ours as shipped, and the best baseline."""
    out = figures.scored["source"]["sources"]
    shipped, best = figures.shipped["sources"], figures.shipped["overall"]["best_baseline"]
    names = sorted((n for n in out if out[n]["rows"] >= 5), key=lambda n: -out[n]["median_error_pct"])
    y = np.arange(len(names))
    key = f"baseline_{best}_pct"
    for shift, values, color, label in (
        (-0.27, [out[n]["median_error_pct"] for n in names], "#0072b2", "ours, source left out"),
        (0.0, [shipped[n]["median_error_pct"] for n in names], "#56b4e9", "ours, as shipped"),
        (0.27, [shipped[n][key] for n in names], "#bbbbbb", f"half of the peak, {in_words(best)} FLOPs"),
    ):
        axes.barh(y - shift, values, 0.26, color=color, label=label)
    axes.set(yticks=y, yticklabels=[f"{n} ({int(out[n]['rows'])})" for n in names], xlim=(0, 60),
             xlabel="median absolute error, % (bars beyond 60 are cut)")  # fmt: skip
    axes.grid(axis="y", visible=False)
    axes.legend(frameon=False, loc="center right")


def _size(figures: Figures, axes: Axes) -> None:
    """Error against the size of the model; one dot a run."""
    sizes = np.array([p.dump()["model"]["params"] for p in figures.found])
    error, plain = figures.error(), figures.plain
    families = _families(figures)
    for family in dict.fromkeys(families[plain].tolist()):
        at = plain & (families == family)
        axes.scatter(sizes[at], np.clip(100 * error[at], -60, 100), s=8, alpha=0.5, color=COLORS[family],
                     label=family, lw=0)  # fmt: skip
    axes.axhline(0, color="black", lw=0.8)
    axes.set(xscale="log", xlabel="parameters", ylim=(-62, 102), ylabel="predicted / measured - 1, %")
    axes.legend(frameon=False, ncols=3)


def _coverage(figures: Figures, axes: Axes) -> None:
    """Calibration: the share of measurements inside the central band of every width, mean over sources."""
    known, other = figures.found, predict_table(of_unknown_trainers(figures.runs).requests)
    for kind, color, label, found in (
        ("lineage", "#d55e00", "lineage left out", other), ("source", "#0072b2", "source left out", known),
        (None, "#56b4e9", "as shipped", known),
    ):  # fmt: skip
        z = np.log1p(figures.error(kind)) / (np.log(found.p90 / found.p50) / SIGMA)
        widths = np.linspace(0.05, 0.95, 19)
        held = []
        for width in widths:
            edge = NormalDist().inv_cdf(0.5 + width / 2)
            shares = []
            for source in dict.fromkeys(figures.runs.source.tolist()):
                at = figures.plain & (figures.runs.source == source)
                if at.sum() >= 5:
                    shares.append(float((np.abs(z[at]) <= edge).mean()))
            held.append(100 * float(np.mean(shares)))
        axes.plot(100 * widths, held, color=color, marker=".", label=label)
    axes.plot([0, 100], [0, 100], color="black", lw=0.8, ls=":")
    axes.axvline(80, color="#999999", lw=0.6)
    axes.set(xlabel="band's nominal width, %", ylabel="measurements inside, %", xlim=(0, 100), ylim=(0, 100))
    axes.legend(frameon=False, loc="lower right", title="dotted: exact")


def _ranking(figures: Figures, axes: Axes) -> None:
    """Kendall's tau of every group of at least ten layouts, by the devices of the group."""
    groups = [g for g in figures.scored["source"]["ranking"] if g["layouts"] >= 10]
    for source, color in (("ultrascale-playbook", "#009e73"), ("vtrain-single", "#56b4e9"),
                          ("vtrain-multi", "#d55e00"), ("bloom-chronicles", "#cc79a7")):  # fmt: skip
        mine = [g for g in groups if g["group"][0] == source]
        devices = np.array([float(g["group"][4]) for g in mine])
        axes.scatter(devices * np.linspace(0.93, 1.07, max(len(mine), 1))[: len(mine)],
                     [g["tau"] for g in mine], s=[8 + g["layouts"] for g in mine], color=color, alpha=0.7,
                     label=source, lw=0)  # fmt: skip
    axes.set(xscale="log", xlabel="devices", ylabel="Kendall's tau (source left out)", ylim=(0, 1.02))
    axes.set_xscale("log", base=2)
    axes.legend(frameon=False, loc="lower left")


def _memory(figures: Figures, axes: Axes) -> None:
    """Memory of the worst rank, predicted against reported."""
    held = figures.found.outcome.memory
    ours, real = held.peak / 2**30, figures.runs.memory
    for source, color in (("ultrascale-playbook", "#009e73"), ("bloom-chronicles", "#cc79a7"),
                          ("internevo", "#0072b2"), ("simumax-b200", "#d55e00")):  # fmt: skip
        at = np.isfinite(real) & ~figures.runs.apart & (figures.runs.source == source)
        axes.scatter(real[at], ours[at], s=9, alpha=0.55, color=color, label=source, lw=0)
    axes.plot([0, 160], [0, 160], color="black", lw=0.8)
    axes.set(xlim=(0, 100), ylim=(0, 100), xlabel="reported, GiB", ylabel="predicted, GiB")
    axes.legend(frameon=False)

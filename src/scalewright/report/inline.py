"""An answer of the planner inside a notebook: a few lines of HTML with their own styles, no script, no file.

    step time    13.2 s    ├────●──────┤  11.4 to 15.2        p10 to p90, on a line
    time         ███████ compute ██ data parallel █ ...       shares of the median step
    memory       █████ activations ███ parameters ...         of the worst rank, beside the device's

Colours are those of the notebook's own text, light or dark; only the bars have some of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from scalewright.plan.terms import PART_TERMS, RISK_TERMS
from scalewright.report.layout_text import layout_text

Answer = Mapping[str, Any]
COLOURS = (  # Tol, bright
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#999999", "#ee8866",
)  # fmt: skip
SMALLEST = 0.02  # shares below it have no label
BOX = "font:13px/1.45 system-ui,sans-serif;max-width:46rem"
CELL = "text-align:left;padding:.15rem .8rem .15rem 0;border:0;vertical-align:top"


def prediction_html(prediction: Answer) -> str:
    return _box(_title(prediction), _layout(prediction["layout"]), _figures(prediction))


def plan_html(plan: Answer) -> str:
    """The best layouts in a table, and the first of them in full."""
    best = plan["best"][0]
    heads = ("", "layout", "step", "tokens/s", "MFU", "memory")
    rows = [
        (
            str(number),
            ", ".join(layout_text(choice["layout"])),
            f"{choice['step_time_s']['p50']:.3g} s",
            f"{choice['tokens_per_s']:,.0f}",
            f"{choice['mfu']:.1%}",
            f"{choice['memory_gib']['peak']:.1f} GiB",
        )
        for number, choice in enumerate(plan["best"], 1)
    ]
    return _box(_title(best), _table(heads, rows), _layout(best["layout"]), _figures(best))


def _box(*parts: str) -> str:
    return f'<div style="{BOX}">{"".join(parts)}</div>'


def _title(prediction: Answer) -> str:
    model, layout, device = (prediction[key] for key in ("model", "layout", "device"))
    text = f"{model['name']} on {layout['devices']:,} × {device['name']}"
    return f'<div style="font-size:1.15em;font-weight:600">{escape(text)}</div>'


def _layout(layout: Answer) -> str:
    return f'<div style="margin:.5rem 0;opacity:.8">{escape(" · ".join(layout_text(layout)))}</div>'


def _figures(prediction: Answer) -> str:
    step, memory = prediction["step_time_s"], prediction["memory_gib"]
    between = f"8 of 10 fall between {step['p10']:.3g} and {step['p90']:.3g} s"
    band = f"{step['p50']:.3g} s <small>({between})</small>"
    speed = f"{prediction['tokens_per_s']:,.0f} tokens/s, {prediction['mfu']:.1%} MFU"
    peak = f"{memory['peak']:.1f} GiB, {RISK_TERMS[prediction['risk']]}"
    times = {PART_TERMS[part]: seconds for part, seconds in prediction["time_breakdown_s"].items()}
    rows = [
        ("step time", band + _band(step)),
        ("speed", speed),
        ("time", _bar(times, " s")),
        ("memory", peak + _bar({k: v for k, v in memory.items() if k != "peak"}, " GiB")),
        ("bottleneck", escape(str(prediction["bottleneck"]))),
    ]
    cells = "".join(
        f'<tr style="background:none"><th style="{CELL};font-weight:600">{name}</th>'
        f'<td style="{CELL};width:100%">{value}</td></tr>'
        for name, value in rows
    )
    return f'<table style="border-collapse:collapse;width:100%">{cells}</table>'


def _band(step: Answer) -> str:
    """p10 to p90 on a line from 0, and the median as a dot."""
    low, middle, high = (100 * step[key] / (1.05 * step["p90"]) for key in ("p10", "p50", "p90"))
    return (
        '<div style="position:relative;height:.6rem;margin:.2rem 0;border-bottom:1px solid currentColor">'
        f'<div style="position:absolute;bottom:0;height:.35rem;left:{low:.1f}%;width:{high - low:.1f}%;'
        f'background:{COLOURS[0]};opacity:.45"></div>'
        f'<div style="position:absolute;bottom:0;height:.6rem;width:3px;left:{middle:.1f}%;'
        f'background:{COLOURS[0]}"></div></div>'
    )


def _bar(parts: Answer, unit: str) -> str:
    """Shares of a sum, side by side, and their names with figures below."""
    positive = [
        (name, value) for name, value in parts.items() if isinstance(value, (int, float)) and value > 0
    ]
    total = sum(value for _, value in positive) or 1.0
    shown = sorted(positive, key=lambda part: -part[1])
    colours = {name: COLOURS[place % len(COLOURS)] for place, (name, _) in enumerate(shown)}
    blocks = "".join(
        f'<div title="{escape(name)}: {value:.3g}{unit}" style="width:{100 * value / total:.2f}%;'
        f'background:{colours[name]}"></div>'
        for name, value in shown
    )
    labels = " ".join(
        f'<span style="white-space:nowrap;margin-right:.7rem"><span style="color:{colours[name]}">■</span> '
        f"{escape(name.replace('_', ' '))} {value:.3g}{unit}</span>"
        for name, value in shown
        if value / total >= SMALLEST
    )
    return (
        '<div style="display:flex;height:.7rem;margin:.2rem 0;overflow:hidden;border-radius:2px">'
        f"{blocks}</div><div><small>{labels}</small></div>"
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th style="{CELL};font-weight:600">{escape(text)}</th>' for text in heads)
    body = "".join(
        '<tr style="background:none">'
        + "".join(f'<td style="{CELL}">{escape(text)}</td>' for text in row)
        + "</tr>"
        for row in rows
    )
    return f'<table style="border-collapse:collapse;margin:.5rem 0"><tr>{head}</tr>{body}</table>'

"""A log of training on the terminal: the answer first, then what the run is, then a few of its steps.

296 TFLOP/s a device on 128 x H100: as expected
megatron-lm     llama-3-8b; tp 8 · pp 4 · micro-batch 1 · batch 1,024 x 4,096
a step          4.2 s (median of 98, without the first 2), expected 4.1 s (3.8 to 4.6)
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from scalewright.spec.text.words import MISSING, against, counted, decimal, printable, short_time

STEPS = ("step", "time", "tokens/s", "TFLOP/s", "loss", "grad norm")
LABEL = 16  # columns before what a line says
FIRST, LAST = 3, 3  # steps of the table
SIZES = ("tp", "pp", "virtual_stages", "dp", "dp_shard", "dp_replicate", "cp", "ep", "etp")


def log_lines(answer: Mapping[str, Any]) -> list[str]:
    """The lines of a log, as wide as the screen; those of which it states nothing are left out."""
    log, expected = answer["log"], answer["expected"]
    said = {
        printable(log["framework"] or "unknown"): "; ".join(
            some for some in (_model(log), _layout(log)) if some
        ),
        "a step": _step(log["measured"], expected),
        "assumed": ", ".join(expected["assumed"]) if expected else "",
        "restarts": f"{log['restarts']:,}" if log["restarts"] else "",
    }
    width = min(110, shutil.get_terminal_size((100, 24)).columns)
    lines = textwrap.wrap(_first(log, expected), width, subsequent_indent="  ")
    for label, text in said.items():
        if text:
            lines += textwrap.wrap(printable(text), width, initial_indent=f"{label:<{LABEL - 1}} ",
                                   subsequent_indent=" " * LABEL)  # fmt: skip
    return lines


def step_rows(steps: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The first and the last steps."""
    some = [*steps] if len(steps) <= FIRST + LAST else [*steps[:FIRST], None, *steps[-LAST:]]
    return [["..."] + [""] * (len(STEPS) - 1) if step is None else _row(step) for step in some]


def _row(step: Mapping[str, Any]) -> list[str]:
    rate = step["tokens_per_s"]
    each = step["tokens_per_s_per_device"]
    return [
        MISSING if step["step"] is None else f"{step['step']:,}",
        short_time(step["step_time_s"]),
        f"{rate:,.0f}" if rate is not None else f"{each:,.0f} a device" if each is not None else MISSING,
        decimal(step["tflops"]),
        decimal(step["loss"]),
        decimal(step["grad_norm"]),
    ]


def _first(log: Mapping[str, Any], expected: Mapping[str, Any] | None) -> str:
    """How fast, on what, and whether that is what one should get."""
    measured = log["measured"]
    speed = (
        f"{decimal(measured['tflops'])} TFLOP/s a device" if measured["tflops"]
        else f"{measured['tokens_per_s_per_device']:,.0f} tokens/s a device" if measured["tokens_per_s_per_device"]
        else f"{measured['tokens_per_s']:,.0f} tokens/s" if measured["tokens_per_s"]
        else f"{short_time(measured['step_time_s'])} a step" if measured["step_time_s"]
        else counted(len(log["steps"]), "steps") + (", no times" if log["steps"] else "")
    )  # fmt: skip
    device = printable(log["device"] or "devices" if log["devices"] != 1 else log["device"] or "device")
    where = f" on {log['devices']:,} {device}" if log["devices"] else f" on {device}" if log["device"] else ""
    return f"{speed}{where}" + (f": {expected['verdict']}" if expected else "")


def _model(log: Mapping[str, Any]) -> str:
    dims = log["dims"]
    shape = f"{dims['layers']} layers of {dims['hidden']:,}" if {"layers", "hidden"} <= dims.keys() else ""
    return ", ".join(some for some in (str(log["model"] or ""), shape) if some)


def _layout(log: Mapping[str, Any]) -> str:
    layout = log["layout"]
    parts = [f"{key.replace('_', ' ')} {layout[key]}" for key in SIZES if layout.get(key, 1) != 1]
    if "zero_stage" in layout:
        parts.append(f"zero {layout['zero_stage']}")
    if "micro_batch" in layout:
        parts.append(f"micro-batch {layout['micro_batch']}")
    if "global_batch" in layout:
        parts.append(f"batch {layout['global_batch']:,}")
    if "seq_len" in layout:
        parts.append(f"sequences of {layout['seq_len']:,}")
    for key in ("precision", "recompute"):
        if key in layout:
            parts.append(layout[key] if key == "precision" else f"recompute {layout[key]}")
    return " · ".join(map(str, parts))


def _step(measured: Mapping[str, Any], expected: Mapping[str, Any] | None) -> str:
    text = ""
    if measured["step_time_s"] is not None:
        clock = ", by the clock of the lines" if measured["source"] == "clock" else ""
        text = f"{short_time(measured['step_time_s'])}: the median of {counted(measured['steps'], 'lines')}{clock}"
        text += f", without the first {measured['left_out']}" if measured["left_out"] else ""
    if expected is not None:
        band = f"{short_time(expected['p10'])} to {short_time(expected['p90'])}"
        off = against(expected["measured_s"], expected["p50"])
        text += f"{'; ' if text else ''}expected {short_time(expected['p50'])} ({band}), by {expected['compared_by']} {off}"
    return text

"""A log of training on the terminal: the answer first, then what the run is, then a few of its steps.

296.0 TFLOP/s a device (301.2 expected) on 128 devices of dgx-h100 with megatron-lm: as expected
layout          tp 8 · pp 4 · zero 1 · micro-batch 1 · batch 1,024 · sequences of 4,096 · bf16
a step          4.2 s: the median of 98 lines, without the first 2; expected 4.1 s (3.8 to 4.6 s)
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from scalewright.spec.common.formatting import MISSING, against, counted, decimal, printable, short_time

STEPS = ("step", "time", "tokens/s", "TFLOP/s", "loss", "grad norm")
LABEL = 16  # columns before what a line says
FIRST, LAST = 3, 3  # steps of the table
WORDS = {
    "zero_stage": "zero {}", "micro_batch": "micro-batch {}", "global_batch": "batch {:,}",
    "seq_len": "sequences of {:,}", "precision": "{}", "recompute": "recompute {}",
}  # fmt: skip
SIZES = ("tp", "pp", "virtual_stages", "dp", "dp_shard", "dp_replicate", "cp", "ep", "etp")


def log_lines(answer: Mapping[str, Any]) -> list[str]:
    """The lines of a log, as wide as the screen; those of which it states nothing are left out."""
    log, expected = answer["log"], answer["expected"]
    said = {
        "model": _model(log),
        "layout": _layout({**(expected or {}).get("layout", {}), **log["layout"]}),
        "a step": _step(log["measured"], expected),
        "assumed": ", ".join(expected["assumed"]) if expected else "",
        "restarts": f"{log['restarts']:,}" if log["restarts"] else "",
    }
    width = min(110, shutil.get_terminal_size((100, 24)).columns)
    lines = textwrap.wrap(_first(log, expected), width, subsequent_indent="  ")
    for label, text in said.items():
        if text:
            lines += textwrap.wrap(
                printable(text), width, initial_indent=f"{label:<{LABEL - 1}} ", subsequent_indent=" " * LABEL
            )
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
    wanted = expected or {}
    count = log["devices"] or wanted.get("devices")
    kind = printable(log["device"] or wanted.get("cluster") or "")
    where = f"{count:,} {kind}" if count and log["device"] else counted(count, "devices") if count else kind
    where += f" of {kind}" if count and kind and not log["device"] else ""
    trainer = f" with {printable(log['framework'])}" if log["framework"] else ""
    verdict = f": {expected['verdict']}" if expected else ""
    speed = _speed(log)
    if wanted.get("tflops") and log["measured"]["tflops"]:
        speed += f" ({decimal(wanted['tflops'])} expected)"
    return speed + (f" on {where}" if where else "") + trainer + verdict


def _speed(log: Mapping[str, Any]) -> str:
    """The first of the figures that a log states, as people quote them."""
    measured = log["measured"]
    if measured["tflops"]:
        return f"{decimal(measured['tflops'])} TFLOP/s a device"
    if measured["tokens_per_s_per_device"]:
        return f"{measured['tokens_per_s_per_device']:,.0f} tokens/s a device"
    if measured["tokens_per_s"]:
        return f"{measured['tokens_per_s']:,.0f} tokens/s"
    if measured["step_time_s"]:
        return f"{short_time(measured['step_time_s'])} a step"
    return (
        f"{counted(len(log['steps']), 'steps')} without their times"
        if log["steps"]
        else "no steps of training"
    )


def _model(log: Mapping[str, Any]) -> str:
    dims = log["dims"]
    shape = f"{dims['layers']} layers of {dims['hidden']:,}" if {"layers", "hidden"} <= dims.keys() else ""
    return ", ".join(part for part in (str(log["model"] or ""), shape) if part)


def _layout(layout: Mapping[str, Any]) -> str:
    parts = [f"{key.replace('_', ' ')} {layout[key]}" for key in SIZES if layout.get(key, 1) != 1]
    parts += [words.format(layout[key]) for key, words in WORDS.items() if key in layout]
    return " · ".join(parts)


def _step(measured: Mapping[str, Any], expected: Mapping[str, Any] | None) -> str:
    parts = []
    if measured["step_time_s"] is not None:
        clock = ", by the clock of the lines" if measured["source"] == "clock" else ""
        first = f", without the first {measured['left_out']}" if measured["left_out"] else ""
        median = f"the median of {counted(measured['steps'], 'lines')}{clock}{first}"
        whole = "the mean of the whole run, by its summary"
        parts.append(
            f"{short_time(measured['step_time_s'])}: {whole if measured['source'] == 'mean' else median}"
        )
    if expected is not None:
        band = f"{short_time(expected['p10'])} to {short_time(expected['p90'])}"
        off = against(expected["measured_s"], expected["p50"])
        parts.append(
            f"expected {short_time(expected['p50'])} ({band}); by {expected['compared_by']} it is {off}"
        )
    return "; ".join(parts)

"""The results of a run in a handful of numbers; a value that isn't the newest step's is named as such."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from scalewright.diagnose.logs.lines import real
from scalewright.report.folder import RunFolder, Table, elapsed
from scalewright.report.page import Section
from scalewright.spec.common.formatting import count, counted, decimal, duration, gib, share, short_time


@dataclass(frozen=True)
class Tile:
    """One number: what it is, its value, and a word on it."""

    label: str
    value: str
    note: str = ""
    kind: str = ""  # bad: its value is not what a reader would take it for


def section(run: RunFolder) -> Section | None:
    shown = tiles(run)
    return Section("overview", "What it reached", "overview.html", {"tiles": shown}) if shown else None


def facts(run: RunFolder) -> list[str]:
    layout = run.config.get("layout") or {}
    model = run.config.get("model")
    name = model.get("name") or model.get("python") if isinstance(model, dict) else model
    parameters = run.said("parameters")
    precision = run.said("precision") or layout.get("precision")
    train = run.config.get("train") or {}
    parts = [
        str(name) if name else "",
        f"{count(parameters)} parameters" if parameters else "",
        _devices(layout.get("devices"), run.said("peak_device") or run.config.get("device")),
        str(precision) if precision and precision != "auto" else "",
        _progress(run, train.get("steps")),
    ]
    return [part for part in parts if part]


def tiles(run: RunFolder) -> list[Tile]:
    """The main numbers; those that are not known are left out."""
    train, steady = run.train, Steady.of(run)
    memory, peak = train.highest("memory_gib"), peak_note(run)
    seconds = elapsed(run.events) or real(run.summary.get("seconds"))
    tokens = train.last_finite("tokens")
    candidates = [
        *_validation(run),
        _newest(train, "loss", "Training loss", "nats per token"),
        tile("Throughput", steady.tokens_per_s, count(steady.tokens_per_s), "tokens/s, median"),
        tile("Step time, median", steady.step_time_s, short_time(steady.step_time_s), steady.spread),
        tile("MFU", steady.mfu, share(steady.mfu), f"median, of {peak}" if peak else "median"),
        tile("Memory", memory, gib(memory), "the fullest rank, highest"),
    ]
    if tokens is not None:
        candidates.append(Tile("Tokens", count(tokens[1]), f"in {duration(seconds)}" if seconds else ""))
    return [tile for tile in candidates if tile is not None]


def _validation(run: RunFolder) -> list[Tile | None]:
    """The run's own validations, and the evaluation of the whole held-out part where there was one."""
    batches = (run.config.get("train") or {}).get("valid_batches")
    over = f", {batches:,} batches" if isinstance(batches, int) else ""
    whole = real(run.summary.get("validation_bits_per_byte"))
    return [
        tile("Evaluation", whole, decimal(whole, 4), "bits per byte of the whole held-out text"),
        _newest(run.valid, "bits_per_byte", "Validation", "bits per byte", over),
        None if whole is not None else _newest(run.valid, "loss", "Validation loss", "nats per token", over),
    ]


def _newest(table: Table, column: str, label: str, unit: str, over: str = "") -> Tile | None:
    """The value of the last row; where that isn't finite, the last finite one, named as such."""
    if (last := table.last_finite(column)) is None:
        return None
    step, value = last
    if table.last(column) is not None:
        return Tile(label, decimal(value, 4), f"{unit} at step {step:,}{over}")
    return Tile(f"{label}, last finite", decimal(value, 4), f"{unit} at step {step:,}; not finite since", "bad")


def tile(label: str, value: float | None, text: str, note: str) -> Tile | None:
    return None if value is None else Tile(label, text, note)


@dataclass(frozen=True)
class Steady:
    """Medians over the usual steps (`RunFolder.warm`)."""

    tokens_per_s: float | None
    step_time_s: float | None
    mfu: float | None
    spread: str

    @classmethod
    def of(cls, run: RunFolder) -> Steady:
        """The steady numbers of a run; those of all steps where there are too few."""
        mask = run.warm() if len(run.train) > 4 else np.ones(len(run.train), dtype=bool)

        def middle(name: str, quantile: float = 50) -> float | None:
            values = run.train.get(name)[mask & np.isfinite(run.train.get(name))]
            return float(np.percentile(values, quantile)) if len(values) else None

        low, high = middle("step_time_s", 10), middle("step_time_s", 90)
        spread = f"p10–p90 {short_time(low)} – {short_time(high)}" if low is not None else ""
        traced = int((run.traced & ~mask).sum())
        spread += f", without {traced} that a profiler slowed" if spread and traced else ""
        return cls(middle("tokens_per_s"), middle("step_time_s"), middle("mfu"), spread)


def _devices(count: Any, device: Any) -> str:
    if not isinstance(count, int):
        return ""
    return f"{count} × {device}" if isinstance(device, str) and device != "auto" else counted(count, "devices")


def _progress(run: RunFolder, total: Any) -> str:
    done = int(run.train.steps[-1]) if len(run.train) else 0
    if isinstance(total, int):
        return f"{done:,} of {counted(total, 'steps')}"
    return counted(done, "steps") if done else ""


def peak_note(run: RunFolder) -> str:
    """What MFU refers to: `989 TFLOP/s a device (H100 SXM, bf16, vendor)`; empty where no peak was noted."""
    flops = run.said("peak_flops")
    if not isinstance(flops, (int, float)) or flops <= 0:
        return ""
    details = [run.said("peak_device"), run.said("precision"), run.said("peak_source")]
    inside = ", ".join(str(detail) for detail in details if detail)
    value = f"{flops / 1e12:.4g} TFLOP/s" if flops >= 1e12 else f"{flops / 1e9:.4g} GFLOP/s"
    return f"{value} a device" + (f" ({inside})" if inside else "")


LONGEST = 4000  # characters: a page's worth


def sample_section(run: RunFolder) -> Section | None:
    if not (text := run.sample.strip("\n")):
        return None
    return Section("sample", "What it writes", "sample.html", {"text": text[:LONGEST], "cut": len(text) > LONGEST})

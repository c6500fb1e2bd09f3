"""What a run reached, in a handful of numbers, and whether it ended well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from scalewright.report.folder import STARTS, RunFolder, Table
from scalewright.report.page import Section
from scalewright.report.sections.peak import peak_note
from scalewright.spec.words import count, decimal, duration, share, short_time

ENDS = {"finish": ("finished", "good"), "stop": ("stopped, and saved", "warn"), "fault": ("failed", "bad")}


@dataclass(frozen=True)
class Tile:
    """One number: what it is, its value, and a word on it."""

    label: str
    value: str
    note: str = ""


def section(run: RunFolder) -> Section | None:
    """The tiles; None before there is a number to show."""
    found = tiles(run)
    return Section("overview", "What it reached", "overview.html", {"tiles": found}) if found else None


def status(run: RunFolder) -> tuple[str, str]:
    """How the newest life of the run ended, and its colour; a fault with a life after it was survived."""
    for event in reversed(run.events):
        if event["kind"] in ENDS:
            return ENDS[event["kind"]]
        if event["kind"] in STARTS:
            return "running, or killed", "warn"
    return ("no events", "plain") if len(run.train) else ("not started", "plain")


def facts(run: RunFolder) -> list[str]:
    """The run in a few words: model, devices, precision, length."""
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
    """The numbers that one asks for first; those that are not known are left out."""
    train, valid, steady = run.train, run.valid, Steady.of(run)
    bits = valid.last("bits_per_byte")
    if bits is None:
        bits = _maybe(run.summary.get("validation_bits_per_byte"))
    trained, validated = _at(train), _at(valid)
    memory, seconds, peak = _maximum(run, "memory_gib"), _maybe(run.summary.get("seconds")), peak_note(run)
    seconds = seconds or elapsed(run)
    loss, valid_loss = train.last("loss"), valid.last("loss")
    found = [
        ("Validation", bits, decimal(bits, 4), f"bits per byte{validated}"),
        ("Validation loss", valid_loss, decimal(valid_loss, 4), f"nats per token{validated}"),
        ("Training loss", loss, decimal(loss, 4), f"nats per token{trained}"),
        ("Throughput", steady.tokens_per_s, count(steady.tokens_per_s), "tokens/s, median"),
        ("Step time", steady.step_time_s, short_time(steady.step_time_s), steady.spread),
        ("MFU", steady.mfu, share(steady.mfu), f"median, of {peak}" if peak else "median"),
        ("Memory", memory, f"{decimal(memory, 3)} GiB", "rank 0, highest"),
        (
            "Tokens",
            train.last("tokens"),
            count(train.last("tokens")),
            f"in {duration(seconds)}" if seconds else "",
        ),
    ]
    return [Tile(label, text, note) for label, value, text, note in found if value is not None]


@dataclass(frozen=True)
class Steady:
    """Medians over the steps after the first of each life, which warms up."""

    tokens_per_s: float | None
    step_time_s: float | None
    mfu: float | None
    spread: str

    @classmethod
    def of(cls, run: RunFolder) -> Steady:
        """The steady numbers of a run; those of all steps where there are too few."""
        warm = [0.0] + [float(step) for step in run.steps_of(*STARTS)]
        mask = (
            ~np.isin(run.train.steps - 1, warm) if len(run.train) > 4 else np.ones(len(run.train), dtype=bool)
        )

        def middle(name: str, quantile: float = 50) -> float | None:
            values = run.train.get(name)[mask]
            values = values[np.isfinite(values)]
            return float(np.percentile(values, quantile)) if len(values) else None

        low, high = middle("step_time_s", 10), middle("step_time_s", 90)
        spread = f"median; p10–p90 {short_time(low)} – {short_time(high)}" if low is not None else ""
        return cls(middle("tokens_per_s"), middle("step_time_s"), middle("mfu"), spread)


def elapsed(run: RunFolder) -> float | None:
    """Wall-clock seconds from the first event to the last."""
    times = [event["time"] for event in run.events if isinstance(event.get("time"), (int, float))]
    return max(times) - min(times) if len(times) > 1 else None


def _devices(number: Any, device: Any) -> str:
    if not isinstance(number, int):
        return ""
    if isinstance(device, str) and device != "auto":
        return f"{number} × {device}"
    return f"{number} device{'' if number == 1 else 's'}"


def _progress(run: RunFolder, total: Any) -> str:
    done = int(run.train.steps[-1]) if len(run.train) else 0
    if isinstance(total, int):
        return f"{done:,} of {total:,} step{'' if total == 1 else 's'}"
    return f"{done:,} step{'' if done == 1 else 's'}" if done else ""


def _at(table: Table) -> str:
    return f" at step {table.steps[-1]:,.0f}" if len(table) else ""


def _maximum(run: RunFolder, name: str) -> float | None:
    values = run.train.get(name)
    values = values[np.isfinite(values)]
    return float(values.max()) if len(values) else None


def _maybe(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None

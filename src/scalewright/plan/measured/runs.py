"""The bundled tables of measured runs, read as requests with what was measured beside them.

    plan/data/measured_runs.csv   2,449 published runs
    plan/data/oom_runs.csv        configurations that did not run

A measured time is the step's, as stated or from tokens/s; rows that give only TFLOP/s or MFU are turned
into one by the stated convention of their counting and kept apart (`converted`).
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.plan.cost.memory_kinds import kind_of
from scalewright.plan.predict import resolve_rows
from scalewright.plan.request import Request
from scalewright.plan.rows.cells import Row, number, text
from scalewright.spec.errors import UserError
from scalewright.spec.operators import flops_per_token

DATA = Path(__file__).parents[1] / "data"
MEASURED, OUT_OF_MEMORY = DATA / "measured_runs.csv", DATA / "oom_runs.csv"
# What every run of nanotron's sweep has in common and its table of runs out of memory doesn't say.
NANOTRON_SWEEP: dict[str, Any] = {
    "framework": "nanotron", "model": "", "mlp_mats": 3, "device": "H100-80GB-SXM", "cp": 1, "ep": 1,
    "vpp": 1, "recompute": "none", "precision": "bf16", "flash": 1,
}  # fmt: skip
# What makes two rows of a source the same layout: a release that was measured again counts once
LAYOUT = (
    "model", "precision", "seq_len", "devices", "tp", "sp", "pp", "virtual_stages", "schedule", "cp", "ep",
    "etp", "dp_replicate", "zero_stage", "micro_batch", "accumulation", "recompute", "share", "offload",
)  # fmt: skip
SAME = ("id", "layers", "hidden", "heads", "ffn", "vocab", "seq", "n_devices", "dp", "tp", "pp", "mbs", "gbs")


@dataclass
class Runs:
    """Rows that could be expressed, side by side with their requests and measurements."""

    rows: list[Row]
    requests: list[Request]
    seconds: np.ndarray  # of a step; nan where none was measured
    memory: np.ndarray  # GiB as reported; nan where none
    memory_kind: np.ndarray  # whether that is allocated, reserved, or nvidia-smi's
    apart: np.ndarray  # stall or suspect: reported apart, never fitted
    converted: np.ndarray  # seconds from TFLOP/s or MFU
    source: np.ndarray
    refused: list[dict[str, str]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def layout(self) -> np.ndarray:
        """The number of each row's layout; rows of one source that differ in a trainer's release share it."""
        numbers: dict[tuple[object, ...], int] = {}
        keys = (
            (
                str(source),
                *(getattr(request, name) for name in LAYOUT),
                request.chip.name,
                request.framework.name,
            )
            for source, request in zip(self.source, self.requests, strict=True)
        )
        return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=int)

    @property
    def plain(self) -> np.ndarray:
        """Rows that count: timed, no fault of the cluster, not converted from FLOPs."""
        mask: np.ndarray = np.isfinite(self.seconds) & ~self.apart & ~self.converted
        return mask

    def take(self, at: np.ndarray) -> Runs:
        """Some of the rows, by index or mask."""
        index = np.flatnonzero(at) if at.dtype == bool else at
        return Runs(
            rows=[self.rows[i] for i in index],
            requests=[self.requests[i] for i in index],
            seconds=self.seconds[index],
            memory=self.memory[index],
            memory_kind=self.memory_kind[index],
            apart=self.apart[index],
            converted=self.converted[index],
            source=self.source[index],
            refused=self.refused,
        )


def once_a_layout(values: np.ndarray, layout: np.ndarray) -> np.ndarray:
    """The median of the values of each layout."""
    return np.array([np.median(values[layout == number]) for number in np.unique(layout)])


def read_table(path: str | Path) -> list[dict[str, str]]:
    """The rows of a CSV file; raises UserError when it can't be read."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(
            f"cannot read the table: {error}", str(path), "give a CSV file with a header"
        ) from None


def runs_of(rows: Iterable[Row]) -> Runs:
    """Rows as runs; those that can't be expressed are in `refused`, each with its reason."""
    rows = list(rows)
    kept: list[Row] = []
    requests, refused = [], []
    times: list[tuple[float, float, bool]] = []
    for row, asked in zip(rows, resolve_rows(rows), strict=True):
        try:
            if isinstance(asked, UserError):
                raise asked
            seconds, converted = measured_seconds(row, asked)
            times.append((seconds, number(row, "peak_mem_gib") or np.nan, converted))
            kept.append(row)
            requests.append(asked)
        except UserError as error:
            refused.append({"id": text(row, "id"), "error": str(error)})
    faults = [text(row, "stall") == "1" or text(row, "suspect") == "1" for row in kept]
    return Runs(
        rows=kept,
        requests=requests,
        seconds=np.array([time[0] for time in times]),
        memory=np.array([time[1] for time in times]),
        memory_kind=np.array([kind_of(text(row, "notes")) for row in kept]),
        apart=np.array(faults, dtype=bool),
        converted=np.array([time[2] for time in times], dtype=bool),
        source=np.array([text(row, "source") for row in kept]),
        refused=refused,
    )


def measured_seconds(row: Row, request: Request) -> tuple[float, bool]:
    """Seconds of a step, and whether they come from a rate of FLOPs; nan when nothing was measured."""
    stated = number(row, "step_time_s") or number(row, "step_time_derived_s")
    if stated:
        return stated, False
    rate = number(row, "tokens_per_s_per_device") or number(row, "tok_s_dev_derived")
    tokens = request.global_batch * request.seq_len
    if rate:
        return tokens / request.held_devices / rate, False
    flops = number(row, "tflops_per_device")
    if not flops:
        share = number(row, "mfu_pct")
        peak = request.chip.peak(request.precision)[1]
        flops = share * peak / 1e14 if share else None
    if not flops:
        return np.nan, False
    notes = text(row, "notes").lower()
    halved = "causal" in notes and "non-causal" not in notes
    each = flops_per_token(request.model, request.seq_len, causal=halved)
    if "hardware flops" in notes and request.recompute == "full":
        each *= 4 / 3
    return tokens * each / (flops * 1e12 * request.held_devices), True


def oom_row(row: Row) -> dict[str, Any]:
    """A row of the out-of-memory table in the columns of the other (its notes give what it leaves out)."""
    zero = int(number(row, "zero_stage") or 0)
    stated = {
        "params_b": row["model_params_b"],
        "kv_heads": row["heads"],
        "sp": int(int(row["tp"]) > 1),
        "sharding": ("none", "zero1", "zero2", "zero3")[zero],
    }
    return {**NANOTRON_SWEEP, **{key: row[key] for key in (*SAME, "outcome")}, **stated}

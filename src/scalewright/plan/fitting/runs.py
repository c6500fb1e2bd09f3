"""The bundled tables of measured runs, as requests with their measurements.

    plan/data/measured_runs.csv   2,501 published runs
    plan/data/oom_runs.csv        configurations that failed, most out of memory

The measured time is that of a step, as stated or from tokens/s; rows with only TFLOP/s or MFU are converted
by the convention in their notes and marked (`converted`).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import product
from pathlib import Path

import numpy as np

from scalewright.plan.columnar import Columnar
from scalewright.plan.cost.memory import kind_of
from scalewright.plan.predict import layout_keys, resolve_rows
from scalewright.plan.records import MeasuredRun
from scalewright.plan.request import COPIED, Request
from scalewright.plan.rows.cells import Row, number, text
from scalewright.spec.common.untrusted import open_regular
from scalewright.spec.errors import UserError, reason
from scalewright.spec.flops import flops_per_token

DATA = Path(__file__).parents[1] / "data"
MEASURED, OUT_OF_MEMORY = DATA / "measured_runs.csv", DATA / "oom_runs.csv"
# Cells that all runs of nanotron's sweep share and oom_runs.csv leaves out.
NANOTRON_SWEEP: Row = {
    "framework": "nanotron", "model": "", "mlp_mats": 3, "device": "H100-80GB-SXM", "cp": 1, "ep": 1,
    "vpp": 1, "recompute": "none", "precision": "bf16", "flash": 1,
}  # fmt: skip
# Rows of a source that agree in these count as one layout, such as one measured in several releases
LAYOUT = ("model", "precision", "seq_len", *COPIED, "accumulation", "recompute", "share", "offload")
OOM_COLUMNS = ("id", "layers", "hidden", "heads", "ffn", "vocab", "seq", "n_devices", "dp", "tp", "pp", "mbs", "gbs")
DAY = re.compile(r"\b(20[12]\d)-(0[1-9]|1[0-2])(?:-\d\d)?\b")
RELEASE = re.compile(r"\bv?(2[0-9])\.(0[1-9]|1[0-2])(?!\d)")  # NVIDIA's containers and recipes: year.month
YEAR = re.compile(r"\b(20[12]\d)\b")


@dataclass
class Runs(Columnar):
    """Rows that could be expressed, with their requests and measurements."""

    rows: list[Row]
    requests: list[Request]
    seconds: np.ndarray  # of a step; nan where none was measured
    memory: np.ndarray  # GiB as reported; nan where none
    memory_kind: np.ndarray  # allocated, reserved, or nvidia-smi's
    apart: np.ndarray  # marked stall or suspect: scored apart, never fitted
    converted: np.ndarray  # seconds from TFLOP/s or MFU
    source: np.ndarray
    refused: tuple[dict[str, str], ...] = ()

    @property
    def layout(self) -> np.ndarray:
        """The number of each row's layout; other releases of a trainer in one source share it."""
        numbers: dict[tuple[object, ...], int] = {}
        keys = (
            (str(source), r.chip.name, r.framework.name, *(getattr(r, name) for name in LAYOUT))
            for source, r in zip(self.source, self.requests, strict=True)
        )
        return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=int)

    @property
    def plain(self) -> np.ndarray:
        """A mask of the rows that count: timed, not marked, not converted from FLOPs."""
        return np.asarray(np.isfinite(self.seconds) & ~self.apart & ~self.converted)


def once_a_layout(values: np.ndarray, layout: np.ndarray) -> np.ndarray:
    """The median value of each layout."""
    return np.array([np.median(values[layout == number]) for number in np.unique(layout)])


def read_table(path: str | Path) -> list[dict[str, str]]:
    """The rows of a CSV file; raises UserError when it can't be read."""
    try:
        with TextIOWrapper(open_regular(path), encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"cannot read the table: {reason(error)}", str(path), "give a CSV file with a header") from None


def runs_of(rows: Iterable[Row]) -> Runs:
    """The runs of these rows; rows that can't be expressed are in `refused`, with the reason."""
    rows = list(rows)
    kept: list[Row] = []
    requests, refused, numbers = [], [], []
    for row, request in zip(rows, resolve_rows(rows), strict=True):
        try:
            if isinstance(request, UserError):
                raise request
            numbers.append((*measured_seconds(row, request), number(row, "peak_mem_gib") or np.nan))
            kept.append(row)
            requests.append(request)
        except UserError as error:
            refused.append({"id": text(row, "id"), "error": str(error)})
    seconds, converted, memory = np.array(numbers).reshape(-1, 3).T
    return Runs(
        rows=kept,
        requests=requests,
        seconds=seconds,
        memory=memory,
        memory_kind=np.array([kind_of(text(row, "notes")) for row in kept]),
        apart=np.array(["1" in (text(row, "stall"), text(row, "suspect")) for row in kept], dtype=bool),
        converted=converted > 0,
        source=np.array([text(row, "source") for row in kept]),
        refused=tuple(refused),
    )


def measured_seconds(row: Row, request: Request) -> tuple[float, bool]:
    """Seconds of a step (nan: not measured), and whether they were converted from FLOP/s."""
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
        flops = share * request.chip.peak(request.precision)[1] / 1e14 if share else None
    if not flops:
        return np.nan, False
    notes = text(row, "notes").lower()
    halved = "causal" in notes and "non-causal" not in notes
    per_token = flops_per_token(request.model, request.seq_len, causal=halved)
    if "hardware flops" in notes and request.recompute == "full":
        per_token *= 4 / 3
    return tokens * per_token / (flops * 1e12 * request.held_devices), True


def oom_row(row: Row) -> Row:
    """A row of oom_runs.csv in the columns of measured_runs.csv."""
    zero = int(number(row, "zero_stage") or 0)
    stated = {"params_b": row["model_params_b"], "kv_heads": row["heads"], "sp": int(int(row["tp"]) > 1)}
    stated["sharding"] = ("none", "zero1", "zero2", "zero3")[zero]
    return {**NANOTRON_SWEEP, **{key: row[key] for key in (*OOM_COLUMNS, "outcome")}, **stated}


def run_facts(row: Mapping[str, str], request: Request) -> MeasuredRun:
    """The keys of `evidence.nearest` for a measured run, without its times."""
    return {
        "source": text(row, "source"),
        "trainer": text(row, "framework") or request.framework.name,
        "date": stated_date(row) or f"{int(request.framework.year)}",
        "model": request.model.name,
        "device": request.chip.name,
        "n_devices": request.devices,
        "layout": layout_keys(request),
        "seq_len": request.seq_len,
    }


def stated_date(row: Mapping[str, str]) -> str:
    """`2025-05` or `2021`, from the trainer's version, the source or the notes; empty when none states it."""
    cells = [text(row, key) for key in ("framework", "source_ref", "notes")]
    for (pattern, century), cell in product(((RELEASE, "20"), (DAY, "")), cells):
        if match := pattern.search(cell):
            return f"{century}{match[1]}-{match[2]}"
    years = filter(None, map(YEAR.search, cells[:2]))
    return next((match[1] for match in years), "")

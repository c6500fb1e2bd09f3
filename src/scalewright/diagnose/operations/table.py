"""A table of a pipeline's operations (parquet) as arrays: who did what, in which step, from when to when.

    dp_rank  stage  rank  step  optype            start_ts  duration  seq_id  mc  mb_id  gmc
    0        3      3     23    forward-compute   0.240     0.134     0       0   0      3

    operations   (stage, name, number within the step), the same in every step and replica
    start, end   float64 [operations, steps, replicas], seconds

A replica is a data-parallel rank; `rank` stands for its whole tensor-parallel group. Steps or replicas that lack an
operation are left out, since everything is computed for all of them at a time. What the operations do is data, too: a
new name is a new row.

    name                 does             waits for                  passes on
    forward-compute      compute          its receive
    forward-send         send             its compute                to the next stage's forward-recv
    params-all-gather    communication    all replicas of a stage

The names are those of ByteDance's traces (Lin et al., "Understanding Stragglers in Large Model Training Using What-if
Analysis", OSDI 2025), which follow Megatron-LM.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.diagnose.traces.json_array import NotATrace
from scalewright.spec.base import read_yaml
from scalewright.spec.errors import UserError

TIMES = ("start_ts", "duration")
COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", *TIMES, "seq_id", "mc", "mb_id", "gmc")


@dataclass(frozen=True)
class Kind:
    """An operation's part: its direction along the pipeline, and over what it is one collective.

    `direction`: +1 forward, -1 backward, 0 neither. `over_replicas`, `over_stages`: who must have come.
    """

    compute: bool = False
    sends: bool = False
    receives: bool = False
    direction: int = 0
    over_replicas: bool = False
    over_stages: bool = False

    @property
    def passes(self) -> bool:
        """Between neighbouring stages."""
        return self.sends or self.receives

    @property
    def waits(self) -> bool:
        """Whether others must come: its duration is waiting and transfer."""
        return self.passes or self.over_replicas or self.over_stages


FORWARD, BACKWARD = "forward-compute", "backward-compute"
KINDS = {name: Kind(**what) for name, what in read_yaml(Path(__file__).with_name("kinds.yaml")).items()}
GATHERS = "params-all-gather"  # before the first forward of its model chunk
LOCAL = Kind()  # of a name that isn't in the table
COMMUNICATES = (*(name for name, kind in KINDS.items() if kind.waits), "layernorm-grads-all-reduce")


def kind_of(name: str) -> Kind:
    """The kind of an operation; one without a row takes its own time and waits for nobody."""
    return KINDS.get(name, LOCAL)


MAGIC = b"PAR1"
MOST_ROWS = 50_000_000
LATEST = 1e10  # seconds, beyond any clock; more wouldn't fit into nanoseconds either
SPARSE = 4  # times as many cells as rows: the steps don't hold the same operations


@dataclass(frozen=True)
class Operation:
    """One of a step's operations; `chunk` of the stage, `place` of the chunk in the model, -1 for neither."""

    stage: int
    name: str
    number: int
    chunk: int
    micro_batch: int
    place: int


@dataclass(frozen=True)
class Table:
    """The operations, and when each began and ended; `ranks`: [stages, replicas]."""

    operations: list[Operation]
    start: np.ndarray
    end: np.ndarray
    steps: list[int]
    stages: list[int]
    replicas: list[int]
    ranks: np.ndarray
    warnings: list[str]

    @property
    def step_s(self) -> np.ndarray:
        """Seconds of each step, from the first start to the last end; float64 [steps]."""
        return np.asarray(self.end.max(axis=(0, 2)) - self.start.min(axis=(0, 2)))


def read_table(path: Path) -> Table:
    """The table of a file; raises NotATrace where columns or steps don't fit, UserError without pyarrow."""
    columns = _columns(path)
    names, name = np.unique(columns.pop("optype"), return_inverse=True)
    keys = np.stack((columns["stage"], name, columns["seq_id"]), axis=1)
    distinct, first, operation = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    steps, step = np.unique(columns["step"], return_inverse=True)
    replicas, replica = np.unique(columns["dp_rank"], return_inverse=True)
    shape = (len(distinct), len(steps), len(replicas))
    if np.prod(shape, dtype=float) > SPARSE * len(name) + 1000:
        raise NotATrace("its steps don't hold the same operations")
    start, end = np.full(shape, np.nan), np.full(shape, np.nan)
    cell = (operation.ravel(), step, replica)
    start[cell] = columns["start_ts"]
    end[cell] = columns["start_ts"] + columns["duration"]
    operations = [
        Operation(int(stage), str(names[index]), int(number), int(columns["mc"][row]),
                  int(columns["mb_id"][row]), int(columns["gmc"][row]))
        for (stage, index, number), row in zip(distinct, first, strict=True)
    ]  # fmt: skip
    stages, stage = np.unique(columns["stage"], return_inverse=True)
    ranks = np.full((len(stages), len(replicas)), -1)
    ranks[stage, replica] = columns["rank"]
    table = Table(operations, start, end, steps.tolist(), stages.tolist(), replicas.tolist(), ranks, [])
    return _complete(table, unknown=[str(label) for label in names if label not in KINDS])


def _columns(path: Path) -> dict[str, NDArray[Any]]:
    """Arrays of every column, numbers as float64 or int64."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError("reading parquet needs pyarrow", str(path), "run `pip install pyarrow`") from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            missing = sorted(set(COLUMNS) - set(file.schema_arrow.names))
            if missing:
                raise NotATrace(f"it has no column {missing[0]}: no table of a pipeline's operations")
            if not 0 < file.metadata.num_rows <= MOST_ROWS:
                raise NotATrace(f"it has {file.metadata.num_rows:,} rows")
            read = file.read(columns=[*COLUMNS])
        arrays = {}
        kinds = {"optype": pyarrow.string(), **dict.fromkeys(TIMES, pyarrow.float64())}
        for name in COLUMNS:
            column = read.column(name).combine_chunks().cast(kinds.get(name, pyarrow.int64()))
            arrays[name] = column.fill_null("" if name == "optype" else -1).to_numpy(zero_copy_only=False)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
        raise NotATrace(f"its parquet can't be read: {str(error).splitlines()[0][:120]}") from None
    if not all((np.abs(arrays[name]) < LATEST).all() for name in TIMES):
        raise NotATrace("its times aren't all seconds")
    arrays["optype"] = arrays["optype"].astype(str)
    return arrays


def _complete(table: Table, unknown: list[str]) -> Table:
    """The steps and replicas in which every operation that most of them have was recorded."""
    there = ~np.isnan(table.start)
    usual = there.mean(axis=(1, 2)) >= 0.5
    whole = there[usual].all(axis=(0, 2))
    if not whole.any():
        raise NotATrace("no step holds all operations that the others have")
    warnings = [f"operations of unknown names count as work: {', '.join(unknown[:5])}"] if unknown else []
    if not whole.all():
        warnings.append(f"{int((~whole).sum()):,} of {len(whole):,} steps lack an operation: left out")
    if not usual.all():
        warnings.append(f"{int((~usual).sum()):,} operations that few steps have are left out")
    return replace(
        table,
        operations=[*compress(table.operations, usual)],
        start=table.start[usual][:, whole],
        end=table.end[usual][:, whole],
        steps=[*compress(table.steps, whole)],
        warnings=warnings,
    )

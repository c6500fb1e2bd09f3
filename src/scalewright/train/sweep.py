"""Many runs of one run file, some at a time, each in a folder and a process of its own.

    points --threads--> scalewright train RUN.yaml key=value … --json --> runs/<name>-sweep/<label>/ --> rows

As many at once as this machine has cores (or GPUs) for. A run that fails is a row like the others. A second call leaves
finished runs alone and goes on with the rest: `sweep.json` in a run's folder holds a digest of its settings, and a run
whose settings differ since is set aside and begins anew.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import SimpleQueue
from statistics import median

from scalewright.launch.begin import cores
from scalewright.launch.child import Share, start_child
from scalewright.launch.settings import tracking_variables
from scalewright.launch.stop import stop_signals
from scalewright.spec.common.formatting import counted
from scalewright.spec.common.jsonl import read_jsonl
from scalewright.spec.common.untrusted import read_json
from scalewright.spec.errors import UserError
from scalewright.spec.run import RunSpec, load_run
from scalewright.spec.sweep import Point, read_sweep
from scalewright.spec.tracking import MlflowSpec
from scalewright.track.store import find_store
from scalewright.train.resolve import device_kind, resolve

NOTE = "sweep.json"  # in a run's folder: the digest of its settings
STOPPED = 75


@dataclass
class Row:
    """How one run of a sweep went."""

    run: str
    values: dict[str, str]
    status: str  # finished | failed | stopped
    out_dir: str
    step: int = 0
    loss: float | None = None  # of the last step
    valid_loss: float | None = None  # the last
    bits_per_byte: float | None = None
    tokens_per_s: float | None = None  # median
    memory_gib: float | None = None
    seconds: float = 0.0  # of training, over all its lives
    error: str = ""
    again: bool = True  # false: it was finished before

    def dump(self) -> dict[str, object]:
        """Plain data."""
        return asdict(self)


@dataclass
class Sweep:
    """All rows, best first, and what they were ranked by."""

    name: str
    folder: str
    rows: list[Row]
    by: str = "valid_loss"  # or loss, where a finished run has no validation
    seconds: float = 0.0
    best: str | None = None
    notes: list[str] = field(default_factory=list)

    def dump(self) -> dict[str, object]:
        """Plain data."""
        return asdict(self)


Tell = Callable[[int, int, Row], None]  # (runs done, of all, the newest)


def sweep(run: str | Path, arguments: Sequence[str], *, jobs: int | None = None, tell: Tell | None = None) -> Sweep:
    """Runs every combination of the values; `tell` is called as runs end. Raises UserError."""
    started = time.perf_counter()
    fixed, points = read_sweep(arguments)
    base = load_run(run, fixed)
    checked = [_spec(run, fixed, point) for point in points]
    if not (specs := [spec for spec in checked if isinstance(spec, RunSpec)]):
        raise next(error for error in checked if isinstance(error, UserError))
    resolve(specs[0])  # the data, once
    folder = base.folder.parent / f"{base.name}-sweep"
    shares, notes = _shares(specs, jobs)
    free: SimpleQueue[Share] = SimpleQueue()
    for share in shares:
        free.put(share)
    lock, done = threading.Lock(), [0]
    children = _Children()
    with stop_signals(children.interrupt), closing(children):

        def run_point(point: Point, spec: RunSpec | UserError) -> Row:
            if isinstance(spec, UserError):
                row = Row(point.label, point.values, "failed", "", error=str(spec))
            else:
                share = free.get()
                try:
                    row = _run(Path(run), fixed, point, spec, folder / point.label, share, children)
                finally:
                    free.put(share)
            with lock:
                done[0] += 1
                if tell is not None:
                    tell(done[0], len(points), row)
            return row

        with ThreadPoolExecutor(len(shares)) as pool:
            rows = list(pool.map(run_point, points, checked))
    ranked, by, best = rank(rows)
    return Sweep(folder.name, str(folder), ranked, by, time.perf_counter() - started, best, notes)


def rank(rows: Sequence[Row]) -> tuple[list[Row], str, str | None]:
    """Rows best first, by validation loss where all that finished have one; that key, and the best's name."""
    finished = [row for row in rows if row.status == "finished"]
    by = "valid_loss" if finished and all(row.valid_loss is not None for row in finished) else "loss"

    def key(row: Row) -> tuple[bool, float]:
        value = getattr(row, by)
        return row.status != "finished" or value is None, float("inf") if value is None else value

    ordered = sorted(rows, key=key)
    best = ordered[0].run if ordered and not key(ordered[0])[0] else None
    return ordered, by, best


def _spec(run: str | Path, fixed: Sequence[str], point: Point) -> RunSpec | UserError:
    """A combination's run; the error where there can be no such run."""
    try:
        spec = load_run(run, [*fixed, *point.overrides])
        resolve(spec, read_data=False)
        return spec
    except UserError as error:
        return error


def _shares(specs: Sequence[RunSpec], jobs: int | None) -> tuple[list[Share], list[str]]:
    """A share of this machine for each run at a time; raises UserError for more jobs than GPUs allow."""
    kind, count = device_kind(specs[0])
    devices = max(spec.layout.devices for spec in specs)
    most = max(1, count // devices)
    at_once = min(jobs or most, len(specs))
    notes = []
    if at_once > most:
        if kind != "cpu":
            how = f"use --jobs {most} or fewer"
            what = f"{counted(at_once, 'runs')} of {devices} at once, and {counted(count, f'{kind} devices')}"
            raise UserError(what, "--jobs", how)
        notes.append(f"{at_once} runs of {devices} at once share {count} cores: each is slower for it")
    threads = max(1, cores() // (at_once * (devices if kind == "cpu" else 1)))
    if kind != "cuda":
        return [Share(threads)] * at_once, notes
    return [Share(threads, tuple(range(job * devices, (job + 1) * devices))) for job in range(at_once)], notes


def _run(
    file: Path, fixed: Sequence[str], point: Point, spec: RunSpec, folder: Path, share: Share, children: _Children
) -> Row:
    """One run, unless it is finished; whatever goes wrong is in its row."""
    row = Row(point.label, point.values, "finished", str(folder))
    digest, before = _digest(spec), _note_in(folder)
    if before == digest and _finished(folder, resolve(spec, read_data=False).steps):
        row.again = False
        return _read(row, folder)
    overrides = [*fixed, *point.overrides, f"name={point.label}", f"out_dir={json.dumps(str(folder))}"]
    overrides += _tracking(spec, folder)
    if spec.checkpoint.store is not None:  # a place in a store is one run's
        overrides.append(f"checkpoint.store={json.dumps(f'{spec.checkpoint.store}/{point.label}')}")
    if before is not None and before != digest:
        overrides.append("resume=never")  # which sets what is there aside
    code, error = children.run(["train", str(file), *overrides, "--json"], share)
    if code is None or code == STOPPED or (code and children.stopping):
        row.status = "stopped"
    elif code:
        row.status, row.error = "failed", error
    if folder.is_dir():
        with suppress(OSError):
            (folder / NOTE).write_text(json.dumps({"asked": digest, "values": point.values}, indent=1) + "\n")
    return _read(row, folder)


def _digest(spec: RunSpec) -> str:
    """A digest of a run's settings, without its name, its folder, `resume` and `track`."""
    keys = {key: value for key, value in spec.dump().items() if key not in ("name", "out_dir", "resume", "track")}
    return hashlib.sha256(json.dumps(keys, sort_keys=True).encode()).hexdigest()[:16]


def _note_in(folder: Path) -> str | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        return str(read_json(folder / NOTE)["asked"])
    return None


def _finished(folder: Path, steps: int) -> bool:
    events = read_jsonl(folder / "events.jsonl")
    return any(event.get("kind") == "finish" and event.get("step") == steps for event in events)


def _tracking(spec: RunSpec, folder: Path) -> list[str]:
    """One experiment for all runs of a sweep, in the store of single runs, unless something names another."""
    if not spec.track.mlflow:
        return []
    variables = tracking_variables()
    store = find_store(spec.track, variables)
    keys = spec.track.mlflow if isinstance(spec.track.mlflow, MlflowSpec) else MlflowSpec()
    if keys.experiment is None and "MLFLOW_EXPERIMENT_NAME" not in variables:
        keys = keys.replace(experiment=folder.parent.name)
    if store.uri is None:
        keys = keys.replace(uri=store.mlflow_uri(folder.parent))
    return [f"track.mlflow={json.dumps({k: v for k, v in keys.dump().items() if v})}"]


def _read(row: Row, folder: Path) -> Row:
    """The row with what the run's folder has."""
    rows = read_jsonl(folder / "metrics.jsonl")
    train = [line for line in rows if line["kind"] == "train"]
    valid = [line for line in rows if line["kind"] == "valid"]
    if train:
        row.step, row.loss = train[-1]["step"], train[-1].get("loss")
        row.seconds = sum(line.get("step_time_s") or 0.0 for line in train)
        speeds = [line["tokens_per_s"] for line in train if line.get("tokens_per_s")]
        row.tokens_per_s = median(speeds) if speeds else None
        row.memory_gib = max((line.get("memory_gib") or 0.0 for line in train), default=None)
    if valid:
        row.valid_loss, row.bits_per_byte = valid[-1].get("loss"), valid[-1].get("bits_per_byte")
    if row.status == "finished" and row.loss is None:
        row.status, row.error = "failed", row.error or "its loss is not finite"
    return row


class _Children:
    """The processes of a sweep; a signal to it stops them all, and starts no more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self.stopping = False

    def run(self, arguments: Sequence[str], share: Share) -> tuple[int | None, str]:
        """Exit code (null: it wasn't started, as the sweep is stopping) and the last line of stderr."""
        with self._lock:
            if self.stopping:
                return None, ""
            process = start_child(arguments, share)
            self._running.add(process)
        try:
            _, stderr = process.communicate()
        finally:
            with self._lock:
                self._running.discard(process)
        lines = [line for line in stderr.strip().splitlines() if line.startswith("error: ")]
        last = (lines or stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        return process.returncode, last.removeprefix("error: ")

    def close(self) -> None:
        """Asks all to save and leave."""
        with self._lock:
            self.stopping = True
            for process in self._running:
                with suppress(OSError):
                    process.terminate()

    def interrupt(self, number: int) -> None:
        """At a signal: the runs save, and the sweep then ends by itself."""
        threading.Thread(target=self.close, daemon=True).start()  # the interrupted thread may hold the lock

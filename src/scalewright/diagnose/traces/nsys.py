"""Reads Nsight Systems' SQLite exports (`nsys export --type sqlite`) into a `Trace` for each process and GPU.

    CUPTI_ACTIVITY_KIND_KERNEL, _MEMCPY, _MEMSET ──► GPU rows   _RUNTIME ──► calls   NVTX_EVENTS ──► ranges
    names are numbers into StringIds · times are nanoseconds since the session began, which has a UTC time

Tables are there only when they hold something, their columns grow with every version, and some exports number them
(`..._V2`): what is read is what `PRAGMA table_info` lists. The file is opened read-only, and only tables are read, so
that a view or a trigger in it isn't run. A gzipped one is unpacked into a temporary file, which SQLite needs.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.diagnose.traces.json_array import NotATrace
from scalewright.diagnose.traces.trace import ANNOTATION, CALL, KERNEL, MEMCPY, MEMSET, Trace
from scalewright.diagnose.traces.unpack import Unpacked, is_gzip

TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
MAGIC = b"SQLite format 3\x00"
ACTIVITY = "CUPTI_ACTIVITY_KIND_"
PROCESS = ~0xFFFFFF  # bits of a globalTid that are its process's globalPid
PUSH_POP, START_END = 59, 60  # eventType of NVTX ranges
COPIES = {1: "Memcpy HtoD", 2: "Memcpy DtoH", 8: "Memcpy DtoD", 10: "Memcpy PtoP"}
ROWS = 100_000  # at a time
MOST, RATIO = 32 << 30, 100  # bytes of an export that was gzipped, in all and for each of the file's: tables take 10


def read_nsys(path: Path) -> list[Trace]:
    """A trace for each process and GPU in the export, by process and number of the GPU.

    Raises NotATrace where the file isn't an export, is damaged, or holds no GPU activity.
    """
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = _unpacked(path, Path(folder) / "export.sqlite") if is_gzip(path) else path
            with closing(sqlite3.connect(f"file:{file.as_posix()}?mode=ro", uri=True)) as base:
                base.execute("PRAGMA trusted_schema=OFF")
                return _Export(base, path).traces()
    except (sqlite3.Error, UnicodeDecodeError, OverflowError) as error:
        raise NotATrace(f"it isn't an export of Nsight Systems, or damaged ({error})") from None


def _unpacked(path: Path, to: Path) -> Path:
    size, most = 0, min(MOST, RATIO * path.stat().st_size)
    with to.open("wb") as file:
        for piece in Unpacked(path):
            if (size := size + len(piece)) > most:
                raise NotATrace(f"unpacked it is larger than {most >> 20:,} MiB, as no export is")
            file.write(piece)
    return to


class _Export:
    def __init__(self, base: sqlite3.Connection, path: Path) -> None:
        self.base, self.path = base, path
        base.text_factory = lambda text: text.decode("utf-8", "replace")
        self.tables = {
            name: [row[1] for row in base.execute(f'PRAGMA table_info("{name}")')]
            for (name,) in base.execute(TABLES).fetchall()
        }
        self.names: dict[str, int] = {}
        self.strings = dict(self.rows("StringIds", ("id", "value")))

    def rows(self, table: str, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """The rows of a table or of its numbered form; columns that it doesn't have are None."""
        known = sorted(name for name in self.tables if name == table or name.startswith(table + "_V"))
        if not known:
            return
        chosen = ", ".join(f'"{name}"' if name in self.tables[known[0]] else "NULL" for name in columns)
        cursor = self.base.execute(f'SELECT {chosen} FROM "{known[0]}"')
        while some := cursor.fetchmany(ROWS):
            yield from some

    def traces(self) -> list[Trace]:
        """All traces."""
        gpu = np.array([*self._gpu()], dtype=ROW)
        if not len(gpu):
            raise NotATrace("it contains no activity of a GPU")
        host = np.array([*self._host()], dtype=ROW)
        session = next(self.rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",)), (0,))
        zero = int(session[0] or 0)
        devices = {row[0]: str(row[1]) for row in self.rows("TARGET_INFO_GPU", ("id", "name"))}
        result = []
        for process in np.unique(gpu["process"]).tolist():
            for device in np.unique(gpu["device"][gpu["process"] == process]).tolist():
                here = gpu[(gpu["process"] == process) & (gpu["device"] == device)]
                rows = np.concatenate([here, host[host["process"] == process]])
                result.append(self._trace(rows, zero, device, devices))
        for number, trace in enumerate(result):
            trace.rank = number if len(result) > 1 else None
        return result

    def _gpu(self) -> Iterator[tuple[int, ...]]:
        columns = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
        for row in self.rows(ACTIVITY + "KERNEL", (*columns, "demangledName", "shortName", "name")):
            name = self.strings.get(next((word for word in row[6:] if word is not None), None), "?")
            yield from self._row(KERNEL, str(name), row[:6])
        for *copy, kind in self.rows(ACTIVITY + "MEMCPY", (*columns, "copyKind")):
            yield from self._row(MEMCPY, COPIES.get(kind, "Memcpy"), copy)
        for row in self.rows(ACTIVITY + "MEMSET", columns):
            yield from self._row(MEMSET, "Memset", row)

    def _host(self) -> Iterator[tuple[int, ...]]:
        calls = self.rows(ACTIVITY + "RUNTIME", ("start", "end", "globalTid", "correlationId", "nameId"))
        for start, end, thread, correlation, name in calls:
            word = str(self.strings.get(name, "?")).partition("_v")[0]
            yield from self._row(CALL, word, (start, end, -1, thread, correlation, _process(thread)))
        ranges = self.rows("NVTX_EVENTS", ("start", "end", "globalTid", "eventType", "text", "textId"))
        for start, end, thread, kind, text, number in ranges:
            if kind in (PUSH_POP, START_END):
                word = text if text is not None else self.strings.get(number, "?")
                yield from self._row(ANNOTATION, str(word), (start, end, -1, thread, -1, _process(thread)))

    def _row(self, category: int, name: str, row: Sequence[Any]) -> Iterator[tuple[int, ...]]:
        """A row of `ROW`; none where the recorder left times out."""
        start, end, *places = row
        if isinstance(start, int) and isinstance(end, int):
            number = self.names.setdefault(name, len(self.names))
            known = [-1 if value is None else int(value) for value in places]
            yield category, number, start, max(end, start), *known

    def _trace(self, rows: np.ndarray, zero: int, device: int, devices: dict[Any, str]) -> Trace:
        keys = np.stack((rows["device"], rows["line"]), axis=1)
        lanes, lane = np.unique(keys, axis=0, return_inverse=True)
        about = {"deviceProperties": [{"name": devices[device]}]} if device in devices else {}
        return Trace(
            self.path, None, [*self.names], [(str(place), str(line)) for place, line in lanes.tolist()],
            category=rows["category"].astype(np.int8), name=rows["name"].astype(np.int32), start=rows["start"] + zero,
            end=rows["end"] + zero, lane=lane.reshape(-1).astype(np.int32), correlation=rows["correlation"],
            about=about,
        )  # fmt: skip


COLUMNS = ("category", "name", "start", "end", "device", "line", "correlation", "process")
ROW = np.dtype([(name, np.int64) for name in COLUMNS])


def _process(thread: Any) -> int | None:
    return int(thread) & PROCESS if isinstance(thread, int) else None

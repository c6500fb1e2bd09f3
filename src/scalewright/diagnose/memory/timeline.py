"""Memory by PyTorch's own profiler, with its categories: `export_memory_timeline("memory.raw.json.gz")`.

    [[time in ns, action, bytes, category], ...]       actions: 1 was there before, 2 new, 3 changed, 4 freed

    category   0 parameter  1 optimizer  2 input  3 temporary  4 activation  5 gradient  6 autograd  7 none

A change of category is two rows, bytes taken from one and given to the other; a free's bytes are negative.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from scalewright.diagnose.memory.answer import Device, answer_of, curve
from scalewright.diagnose.memory.categories import CATEGORIES
from scalewright.diagnose.memory.verdicts import GIB, parts_of, peak_verdict, savings
from scalewright.diagnose.traces.unpack import Unpacked, read_each
from scalewright.spec.common.pickles import NotPlainData

START = re.compile(rb"\[\s{0,9}\[\s{0,9}-?\d{1,20}\s{0,9},\s{0,9}[1-4]\s{0,9},\s{0,9}-?\d{1,20}\s{0,9},\s{0,9}\d\s*\]")
# By PyTorch's number of a category ours.
GROUPS = [CATEGORIES.index(name) for name in (
    "parameters", "optimizer", "other", "temporary", "activations", "gradients", "temporary", "other",
)]  # fmt: skip
BEFORE = -1  # the time of what was there before
LIMIT = 1 << 30  # bytes of JSON
Row = tuple[int, int, int, int]


def is_timeline(start: bytes) -> bool:
    """Whether a text begins as such a file does."""
    return START.match(start) is not None


def timeline_answer(files: Sequence[Path]) -> dict[str, object]:
    """The answer's keys, of the file with the highest peak; raises NotPlainData where none can be read."""
    read, warnings = read_each(files, _memory, NotPlainData)
    if not read:
        raise NotPlainData(warnings[0].partition(": ")[2].removesuffix(": left out"))
    return answer_of(read, warnings)


def _memory(path: Path) -> Device:
    table = _rows(path)
    changes = np.zeros((len(CATEGORIES) + 1, len(table)), dtype=np.int64)
    changes[np.array(GROUPS)[table[:, 3]], np.arange(len(table))] = table[:, 2]
    level = np.cumsum(changes, axis=1)
    total = level.sum(axis=0)
    row = int(total.argmax())
    peak = int(total[row])
    by_category = dict(zip(CATEGORIES, level[: len(CATEGORIES), row].tolist(), strict=True))
    saved = savings(level)
    times = table[:, 0]
    begun = int(times[times > BEFORE].min(initial=int(times.max())))
    memory = {
        "file": path.name, "peak_bytes": peak, "peak_gib": peak / GIB, "by_category": by_category,
        "savings": [saving.dump() for saving in saved], "reserved_bytes": None,
        "allocated_bytes": int(total[-1]), "fragmentation_pct": None, "out_of_memory": [], "top_stacks": [],
        "curve": curve(total, lambda row: max(int(times[row]) - begun, 0) / 1e9),
    }  # fmt: skip
    causes = [peak_verdict([parts_of(by_category, peak)], saved, peak, 0.8)] if peak > 0 else []
    return peak, memory, causes, {}


def _rows(path: Path) -> np.ndarray:
    """int64 [n, 4]; raises NotPlainData."""
    text = b""
    for piece in Unpacked(path):
        text += piece
        if len(text) > LIMIT:
            raise NotPlainData(f"it is larger than {LIMIT >> 30} GiB")
    try:
        rows = msgspec.json.decode(text, type=list[Row])
        table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    except (msgspec.DecodeError, UnicodeDecodeError, OverflowError) as error:
        raise NotPlainData(f"its rows aren't [time, action, bytes, category]: {error}") from None
    kinds = table[:, 3]
    if not len(table) or kinds.min() < 0 or kinds.max() >= len(GROUPS) or np.abs(table[:, 2]).max() > 1 << 50:
        raise NotPlainData("its rows have categories or bytes that PyTorch doesn't write")
    return table

"""Memory of a trace recorded with `profile_memory=True`: its curve, its peak, and which operators hold that.

    thread   ── aten::linear ──────── autograd::engine::evaluate_function: MmBackward0 ── Optimizer.step ──
    memory        ▲ +64 MiB                          ▲ +32 MiB     ▲ -64 MiB

    owner    the outermost operator on the thread at the time; before the recording: nobody is known
    phase    backward within autograd's engine, optimizer within its step, else forward

Without addresses (PyTorch 1.8 to 1.10) the curve is relative to the recording's start, and has no owners.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from scalewright.diagnose.memory.answer import OWNERS, peaks_of
from scalewright.diagnose.traces.memory_events import HOST, MemoryEvents
from scalewright.diagnose.traces.trace import ANNOTATION, OPERATOR, Trace

GIB = 1 << 30
BEFORE = "(before the recording)"
NOBODY = "(no operator)"
BACKWARD, OPTIMIZER = "autograd::engine", "optimizer."
PHASES = ("before", "forward", "backward", "optimizer")


@dataclass(frozen=True)
class Held:
    """Bytes that are allocated at the peak, by owner and by phase."""

    by_owner: dict[str, int]
    by_phase: dict[str, int]


def traced_memory(trace: Trace) -> dict[str, Any] | None:
    """The keys of `memory`; None where nothing of a device was recorded."""
    events = trace.memory
    if events is None:
        return None
    mine = _device(events)
    if not len(mine):
        return None
    changes, total = events.size[mine], events.total[mine]
    absolute = bool((total >= 0).all())
    level = total if absolute else np.cumsum(changes)
    peak = int(np.argmax(level))
    reserved = events.reserved[mine]
    rows = peaks_of(level)
    held = _held(trace, events, mine[: peak + 1], int(level[peak])) if absolute else None
    start = int(trace.start.min(initial=events.start[mine].min()))
    return {
        "peak_bytes": int(level[peak]),
        "peak_gib": int(level[peak]) / GIB,
        "peak_at_s": (int(events.start[mine[peak]]) - start) / 1e9,
        "since_the_recording": not absolute,
        "reserved_bytes": int(reserved.max()) if (reserved >= 0).all() else None,
        "by_phase": held.by_phase if held else None,
        "top_stacks": [{"owner": owner, "bytes": size} for owner, size in list(held.by_owner.items())[:OWNERS]]
        if held
        else [],
        "curve": {
            "time_s": [(int(events.start[mine[row]]) - start) / 1e9 for row in rows],
            "allocated_bytes": [int(level[row]) for row in rows],
        },
    }


def _device(events: MemoryEvents) -> np.ndarray:
    """Rows of the device that most was allocated on, in order of time; none of the host's."""
    devices = events.device_type * (1 << 20) + np.clip(events.device, 0, (1 << 20) - 1)
    there = np.flatnonzero(events.device_type != HOST)
    if not len(there):
        return there
    names, inverse = np.unique(devices[there], return_inverse=True)
    most = np.bincount(inverse, weights=np.abs(events.size[there])).argmax()
    mine = there[devices[there] == names[most]]
    return np.asarray(mine[np.argsort(events.start[mine], kind="stable")])


def _held(trace: Trace, events: MemoryEvents, rows: np.ndarray, peak: int) -> Held:
    """Allocations that aren't freed yet, by the operators that made them."""
    live: dict[int, int] = {}  # address -> row
    for row, size, address in zip(
        rows.tolist(), events.size[rows].tolist(), events.address[rows].tolist(), strict=True
    ):
        if size > 0:
            live[address] = row
        else:
            live.pop(address, None)
    held = np.array(sorted(live.values()), dtype=np.int64)
    names = _owners(trace, events, held)
    by_owner: dict[str, int] = {BEFORE: peak - int(events.size[held].sum())}
    by_phase = dict.fromkeys(PHASES, 0)
    by_phase["before"] = by_owner[BEFORE]
    for name, size in zip(names, events.size[held].tolist(), strict=True):
        low = name.lower()
        phase = "backward" if low.startswith(BACKWARD) else "optimizer" if low.startswith(OPTIMIZER) else "forward"
        by_owner[name] = by_owner.get(name, 0) + size
        by_phase[phase] += size
    return Held(dict(sorted(by_owner.items(), key=lambda item: -item[1])), by_phase)


def _owners(trace: Trace, events: MemoryEvents, rows: np.ndarray) -> list[str]:
    """For each row the outermost operator, or the optimizer's step, on its thread at the time."""
    around = (trace.category == OPERATOR) | ((trace.category == ANNOTATION) & trace.starting((OPTIMIZER,)))
    candidates = np.flatnonzero(around)
    names = [NOBODY] * len(rows)
    for lane in np.unique(events.lane[rows]).tolist():
        mine = candidates[trace.lane[candidates] == lane]
        mine = mine[np.lexsort((-trace.end[mine], trace.start[mine]))]
        if not len(mine):
            continue
        reach = np.maximum.accumulate(trace.end[mine])
        outermost = mine[np.concatenate(([True], trace.start[mine][1:] >= reach[:-1]))]
        places = np.flatnonzero(events.lane[rows] == lane)
        when = events.start[rows[places]]
        before = np.searchsorted(trace.start[outermost], when, side="right") - 1
        inside = (before >= 0) & (when <= trace.end[outermost[np.maximum(before, 0)]])
        for place, row in zip(places[inside].tolist(), outermost[before[inside]].tolist(), strict=True):
            names[place] = trace.names[trace.name[row]]
    return names

"""Memory of a trace recorded with `profile_memory=True`: its curve, its peak, and which operators hold that.

    thread   ── aten::linear ──────── autograd::engine::evaluate_function: MmBackward0 ── Optimizer.step ──
    memory        ▲ +64 MiB                          ▲ +32 MiB     ▲ -64 MiB

    owner    the outermost operator on the thread at the time; before the recording: nobody is known
    phase    backward within autograd's engine, optimizer within its step, else forward

Without addresses (PyTorch 1.8 to 1.10) the curve is relative to the recording's start, and has no owners.
"""

from __future__ import annotations

import numpy as np

from scalewright.diagnose import intervals
from scalewright.diagnose.memory.answer import OWNERS, curve
from scalewright.diagnose.memory.verdicts import GIB
from scalewright.diagnose.traces.memory_events import HOST, MemoryEvents
from scalewright.diagnose.traces.trace import ANNOTATION, OPERATOR, Trace

BEFORE = "(before the recording)"
NOBODY = "(no operator)"
BACKWARD, OPTIMIZER = "autograd::engine", "optimizer."
PHASES = ("before", "forward", "backward", "optimizer")


def traced_memory(trace: Trace) -> tuple[int, dict[str, object]] | None:
    """The peak in bytes and the keys of `memory`; None where nothing of a device was recorded."""
    events = trace.memory
    if events is None or not (events.device_type != HOST).any():
        return None
    mine = _device(events)
    total, reserved = events.total[mine], events.reserved[mine]
    absolute = bool((total >= 0).all())
    level = total if absolute else np.cumsum(events.size[mine])
    row = int(np.argmax(level))
    peak = int(level[row])
    by_owner, by_phase = _held(trace, events, mine[: row + 1], peak) if absolute else ({}, None)
    start = int(trace.start.min(initial=events.start[mine].min()))
    times = events.start[mine] - start
    return peak, {
        "peak_bytes": peak,
        "peak_gib": peak / GIB,
        "peak_at_s": int(times[row]) / 1e9,
        "since_the_recording": not absolute,
        "reserved_bytes": int(reserved.max()) if (reserved >= 0).all() else None,
        "by_phase": by_phase,
        "top_stacks": [{"owner": owner, "bytes": size} for owner, size in [*by_owner.items()][:OWNERS]],
        "curve": curve(level, lambda row: int(times[row]) / 1e9),
    }


def _device(events: MemoryEvents) -> np.ndarray:
    """Rows of the device that most was allocated on, in order of time; none of the host's."""
    devices = events.device_type * (1 << 20) + np.clip(events.device, 0, (1 << 20) - 1)
    there = np.flatnonzero(events.device_type != HOST)
    names, inverse = np.unique(devices[there], return_inverse=True)
    most = np.bincount(inverse, weights=np.abs(events.size[there])).argmax()
    mine = there[devices[there] == names[most]]
    return np.asarray(mine[np.argsort(events.start[mine], kind="stable")])


def _held(trace: Trace, events: MemoryEvents, rows: np.ndarray, peak: int) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes that aren't freed yet, by the operators that allocated them, the largest first, and by phase."""
    live: dict[int, int] = {}  # address -> row
    sizes, addresses = events.size[rows].tolist(), events.address[rows].tolist()
    for row, size, address in zip(rows.tolist(), sizes, addresses, strict=True):
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
    return dict(sorted(by_owner.items(), key=lambda item: -item[1])), by_phase


def _owners(trace: Trace, events: MemoryEvents, rows: np.ndarray) -> list[str]:
    """For each row the outermost operator, or the optimizer's step, on its thread at the time."""
    steps = (trace.category == ANNOTATION) & trace.starting((OPTIMIZER,))
    candidates = np.flatnonzero((trace.category == OPERATOR) | steps)
    names = [NOBODY] * len(rows)
    for lane in np.unique(events.lane[rows]).tolist():
        mine = candidates[trace.lane[candidates] == lane]
        mine = mine[np.lexsort((-trace.end[mine], trace.start[mine]))]
        reach = np.maximum.accumulate(trace.end[mine])
        outermost = mine[np.concatenate((np.ones(len(mine[:1]), bool), trace.start[mine[1:]] >= reach[:-1]))]
        places = np.flatnonzero(events.lane[rows] == lane)
        around = intervals.place(trace.start[outermost], trace.end[outermost] + 1, events.start[rows[places]])
        for place, row in zip(places[around >= 0].tolist(), outermost[around[around >= 0]].tolist(), strict=True):
            names[place] = trace.names[trace.name[row]]
    return names

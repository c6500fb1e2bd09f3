"""Where the host was while the device had nothing to do: the function with most time of its own, and idle time by it.

    device   ████│░░░░░░░░░░░░░ idle ░░░░░░░░░░░░░│████
    host       train_step ──────────────────────────────       6 ms of its own in the idle time
                   tokenize ──────────────────             70 ms: the host was in tokenize
                      aten::to ──                           4 ms

Of the threads that launch, or of all where none does. Python's frames count, where the trace has them. Pauses of a
millisecond or more in which the trace has nothing of the host are a function without a name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from scalewright.diagnose import intervals
from scalewright.diagnose.graphs import without
from scalewright.diagnose.kernels import short_name
from scalewright.diagnose.ranks import Rank, Ranks
from scalewright.diagnose.traces.trace import CALL, Trace
from scalewright.diagnose.verdict import Gain, Verdict
from scalewright.spec.common.formatting import counted

LEAST = 10.0  # percent of the window that a function, or a cause without a verdict, takes at least
LONG = 1_000_000  # ns that a kernel waits from its launch with nothing on the device: no queue does that
MOST = 100  # characters of a function's name
BRIEF = 20_000  # ns: shorter ones count as the function's that calls them
NOTHING = "nothing that the trace names"
STACK = "record with_stack=True, which names what Python does: loading data, logging, saving"
# A cause of idle time -> the verdicts that speak of it.
SPEAKS = {
    "host": {"host", "short kernels", "compilation", "host function", "straggler", "idle"},
    "launch": {"host", "short kernels", "launch", "straggler"}, "data": {"data", "straggler"},
    "sync": {"sync", "straggler", "host function", "idle"},
    "other": {"launch", "stages", "bubble", "straggler", "link"},
}  # fmt: skip
WORDS = {
    "host": "until the host launches its next kernel", "launch": "from a launch until its kernel begins",
    "data": "while the host loads data", "sync": "after the host had waited for it",
    "other": "though a kernel was queued, or its launch isn't in the trace",
}  # fmt: skip


def own_times(trace: Trace, spans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the host, and the nanoseconds of `spans` (int64 [n, 2]) that each has beyond those it calls."""
    rows = np.flatnonzero(_host(trace) & (trace.end - trace.start >= BRIEF))
    rows = rows[np.lexsort((-trace.end[rows], trace.start[rows], trace.lane[rows]))]
    start, end, lane = trace.start[rows], trace.end[rows], trace.lane[rows].tolist()
    within = intervals.length_within(spans, start, end)
    own, stack, until = within.tolist(), [0] * 0, end.tolist()
    for place, (begun, time) in enumerate(zip(start.tolist(), within.tolist(), strict=True)):
        while stack and (until[stack[-1]] <= begun or lane[stack[-1]] != lane[place]):
            stack.pop()
        if stack:
            own[stack[-1]] -= time
        stack.append(place)
    return rows, np.array(own, dtype=np.int64)


def _host(trace: Trace) -> np.ndarray:
    calls = np.unique(trace.lane[(trace.category == CALL) & trace.containing(("launch",))])
    host = ~trace.on_gpu & ~trace.starting(("profilerstep#", "##"))
    return np.asarray(host & (np.isin(trace.lane, calls) if len(calls) else True))


def idle_of(rank: Rank, *causes: str) -> np.ndarray:
    """The gaps of causes, each as long as they explain of it; int64 [n, 2]."""
    gaps, part = rank.idle.gaps, np.sum([rank.idle.by_cause[cause] for cause in causes], axis=0)
    return np.asarray(np.stack((gaps[:, 0], gaps[:, 0] + part), axis=1)[part > 0])


def busiest(ranks: Ranks, *causes: str) -> tuple[str, list[np.ndarray]]:
    """The function in which hosts spent most of the idle time of causes, "" without a name; that time of each rank."""
    idle = [idle_of(rank, *causes) for rank in ranks.ranks]
    own = [own_times(rank.trace, gaps) for rank, gaps in zip(ranks.ranks, idle, strict=True)]
    total = Counter[str]()
    for rank, (rows, time) in zip(ranks.ranks, own, strict=True):
        sums = np.bincount(rank.trace.name[rows], weights=time, minlength=len(rank.trace.names))
        total.update({rank.trace.names[number]: int(sums[number]) for number in np.flatnonzero(sums > 0).tolist()})
    spans = [intervals.minus(gaps, r.trace.spans(_host(r.trace))) for r, gaps in zip(ranks.ranks, idle, strict=True)]
    spans = [pauses[pauses[:, 1] - pauses[:, 0] >= LONG] for pauses in spans]
    name, most = total.most_common(1)[0] if total else ("", 0)
    if sum(map(intervals.length, spans)) >= most:
        return "", spans
    spans = []
    for rank, gaps, (rows, time) in zip(ranks.ranks, idle, own, strict=True):
        mine = rows[(time > 0) & np.array([rank.trace.names[number] == name for number in rank.trace.name[rows]], bool)]
        spans.append(intervals.overlap(rank.trace.spans(mine), gaps))
    return name, spans


def one_function(ranks: Ranks) -> tuple[str, list[np.ndarray], float]:
    """The function that takes most of the host's part of the idle time, when, and its percent of the window, or 0.

    What it does after it has waited for the device is its part, too: without that function there was less to hide.
    One that takes less than half a millisecond a call is the price of launching: `host`.
    """
    function, spans = busiest(ranks, "host", "sync")
    parts = [rank.idle.totals() for rank in ranks.ranks]
    took, idle = sum(map(intervals.length, spans)), sum(part["host"] + part["sync"] for part in parts)
    share = 100 * took / sum(rank.breakdown.window for rank in ranks.ranks)
    long = took >= LONG / 2 * sum(map(len, spans)) and "launch" not in function.lower()
    fits = share >= LEAST and took >= idle / 2 and long
    return function, spans, share if fits else 0.0


def in_one_function(ranks: Ranks) -> Verdict | None:
    """The host's part of the idle time, where one function takes most of it."""
    function, spans, share = one_function(ranks)
    if not share:
        return None
    took, steps = sum(map(intervals.length, spans)), sum(len(rank.steps) for rank in ranks.ranks)
    gone = [*map(without, ranks.recorded, spans)] if ranks.on_gpu else ranks.recorded_without(spans, 1.0)
    gain = max(ranks.gain_with(gone), 0.0)
    if not function:
        pauses = counted(sum(map(len, spans)), "pauses")
        line = f"{share:.1f}% of the window the device is idle in {pauses} of 1 ms or more"
        return Verdict("idle", [line, f"unexplained: the host was in {NOTHING}"], STACK, 0.4, Gain(0.0, gain / 2, gain))
    each = f"{took / steps / 1e6:,.1f} ms a step" if steps > 1 else f"{took / 1e6:,.1f} ms"
    line = f"{share:.1f}% of the window the device is idle while the host is in {function[:MOST]}: {each}"
    fix = "take it out of the step: less often, in another thread or process, or ahead of when it is needed"
    return Verdict("host function", [line], fix, 0.7, Gain(gain / 2, gain * 3 / 4, gain))


def late_after_launch(ranks: Ranks) -> Verdict | None:
    """Kernels that begin long after their launch though the device has nothing else to do."""
    late = [(rank, at) for rank in ranks.ranks for at in np.flatnonzero(_queued(rank) >= LONG).tolist()]
    lost = sum(int(_queued(rank)[at]) for rank, at in late) if ranks.on_gpu else 0
    share = 100 * lost / sum(rank.breakdown.window for rank in ranks.ranks)
    if share < LEAST:
        return None
    rank, at = max(late, key=lambda place: int(_queued(place[0])[place[1]]))
    trace, end = rank.trace, int(rank.idle.gaps[at, 1])
    after = np.flatnonzero(trace.on_gpu & (trace.start >= end))
    kernel = trace.names[trace.name[after[np.argmin(trace.start[after])]]]
    evidence = [
        f"{share:.1f}% of the window the device is idle though a kernel is launched: {len(late)} begin 1 ms or more "
        "after their launch",
        f"{short_name(kernel)} waits longest: {int(_queued(rank)[at]) / 1e6:,.1f} ms",
    ]
    fix = (
        "record after warm-up: a kernel's first launch loads its code (at the start with CUDA_MODULE_LOADING=EAGER); "
        "else look for another process on the device, or an event that the stream waits for"
    )
    return Verdict("launch", evidence, fix, 0.6, Gain(share / 4, share / 2, share))


def _queued(rank: Rank) -> np.ndarray:
    """Nanoseconds of each gap that a kernel was launched in vain; those of gaps without a known launch are 0."""
    by_cause = rank.idle.by_cause
    return np.asarray(by_cause["launch"] + np.where(rank.idle.launched, by_cause["other"], 0))


def unexplained(ranks: Ranks, known: Sequence[Verdict]) -> Verdict | None:
    """The largest part of the idle time, where no verdict speaks of it."""
    windows = sum(rank.breakdown.window for rank in ranks.ranks)
    shares = {cause: 100 * sum(rank.idle.totals()[cause] for rank in ranks.ranks) / windows for cause in SPEAKS}
    cause = max(shares, key=lambda name: shares[name])
    share = shares[cause]
    if share < LEAST or SPEAKS[cause] & {verdict.cause for verdict in known}:
        return None
    function, spans = busiest(ranks, cause)
    inside = 100 * sum(map(intervals.length, spans)) / windows
    where = f"{function[:MOST]} ({inside:.1f}% of the window)" if function else NOTHING
    evidence = [
        f"{share:.1f}% of the window the device is idle {WORDS[cause]}",
        f"unexplained: the host was in {where}",
    ]
    fix = f"look at {function[:MOST]}" if function else STACK
    return Verdict("idle", evidence, fix, 0.3, Gain(0.0, share / 2, share))

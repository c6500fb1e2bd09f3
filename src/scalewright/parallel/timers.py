"""Where a rank's step went: data, compute, communication by axis, optimizer; the rest is other.

    step  |-- data --|------------- compute -------------|--- optimizer ---|
                        |comm_tp|     |comm_dp_shard|       |comm_control|     taken out of the phase around

    breakdown_s = {data, compute, comm_<axis>, optimizer, other}          adds up to step_time_s

Every collective and message of ours passes `comm` of the mesh's timers, FSDP's through its hooks (shard.py). The time
is how long this rank is held up there: a gradient that is reduced while the backward goes on counts from when it is
waited for. So a rank ahead of the others shows its wait as communication, and a pipeline's receives hold its bubble.

On a CPU the marks are the host's clock; on a GPU events on the current stream, read when the step's report is back
(train/metrics/measured.py): the host waits for nothing. FSDP's collectives run on streams of their own there, where
time is not exposed time: they aren't marked, and their exposed part is compute. Nor is anything in a compiled block.

Off (the default, and on all ranks but the one that writes), a mark costs a comparison; on, under 1 µs on a CPU (two
events, about 10 µs, on a GPU). In a traced step every rank marks, and each mark is a range of the trace (`named`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch

from scalewright.spec.groups import HEADS, HOST, LANES

T = TypeVar("T")
PHASES = ("data", "compute", "optimizer")
# The mesh's axes as users know them: `fsdp` is dp_shard (x cp); what joins all carries scalars: control.
_REPORTED = {
    "fsdp": "dp_shard",
    "gradient": "dp_shard",  # zero_stage 0: whole replicas, over the ranks that other stages shard over
    "efsdp": "dp_shard",
    "ehsdp": "dp_shard",  # as `gradient`, of experts
    **dict.fromkeys(("pp_down", "pp_up", *LANES), "pp"),
    **dict.fromkeys((HEADS, "loss", "world", "island", "islands", "batch"), "control"),
}


def reported_axis(axis: str) -> str:
    """The axis's name in what users read: breakdowns, dry runs, reports of hangs."""
    axis = axis.removesuffix(HOST)
    return _REPORTED.get(axis, axis)


class Timers:
    """One rank's marks of the step that is running; none before `start`."""

    def __init__(self) -> None:
        self.on = False
        self._device: torch.device | None = None  # of the events; None: the host's clock
        self._spans: list[tuple[str, Any, Any]] = []
        self._named: Callable[[str], AbstractContextManager[Any]] | None = None
        self._started = False

    def start(self, device: torch.device) -> None:
        """Marks from now on; on a GPU by events."""
        self.on = self._started = True
        self._device = device if device.type == "cuda" else None

    def stop(self) -> None:
        """Marks no more, but in a traced step."""
        self._started, self.on = False, self._named is not None

    def named(self, range_of: Callable[[str], AbstractContextManager[Any]] | None) -> None:
        """From now on every mark is a range of its name, too; None: no more."""
        self._named = range_of
        self.on = self._started or range_of is not None

    def comm(self, axis: str) -> Span:
        """`with timers.comm("tp"): ...` around a collective, or a wait for one, over an axis of the mesh."""
        return self._span(f"comm_{reported_axis(axis)}") if self.on else NOTHING

    def phase(self, name: str) -> Span:
        """`with timers.phase("optimizer"): ...`: one of PHASES, without the communication in it."""
        return self._span(name) if self.on else NOTHING

    def each(self, name: str, items: Iterable[T]) -> Iterator[T]:
        """The items, with the wait for each counted as a phase."""
        remaining = iter(items)
        while True:
            with self.phase(name):
                try:
                    item = next(remaining)
                except StopIteration:
                    return
            yield item

    def take(self) -> Spans:
        """The marks since the last `take`; to be read when the device has passed them."""
        spans, self._spans = self._spans, []
        return Spans(spans)

    def _span(self, name: str) -> Span:
        return Span(self, name) if self._named is None else NamedSpan(self, name, self._named(name))

    def mark(self) -> Any:
        """This moment."""
        if self._device is None:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def add(self, name: str, begin: Any, end: Any) -> None:
        """Notes one span."""
        self._spans.append((name, begin, end))


class Span:
    """From `with` to its end."""

    __slots__ = ("_begin", "_name", "_timers")

    def __init__(self, timers: Timers | None, name: str) -> None:
        self._timers, self._name = timers, name
        self._begin: Any = None

    def __enter__(self) -> None:
        if self._timers is not None:
            self._begin = self._timers.mark()

    def __exit__(self, *error: object) -> None:
        if self._timers is not None:
            self._timers.add(self._name, self._begin, self._timers.mark())


class NamedSpan(Span):
    """A span that is a range of a trace, too."""

    __slots__ = ("_range",)

    def __init__(self, timers: Timers, name: str, range_: AbstractContextManager[Any]) -> None:
        super().__init__(timers, name)
        self._range = range_

    def __enter__(self) -> None:
        self._range.__enter__()
        super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._range.__exit__(None, None, None)


NOTHING = Span(None, "")


class Spans:
    """One step's marks."""

    def __init__(self, spans: list[tuple[str, Any, Any]]) -> None:
        self._spans = spans

    def breakdown(self, step_time_s: float) -> dict[str, float]:
        """Seconds by name, which add up to `step_time_s`; empty where nothing was marked."""
        if not self._spans:
            return {}
        parts = dict.fromkeys(PHASES, 0.0)
        inside: list[tuple[float, float]] = []  # (begin, seconds) of communication since the last phase
        for name, begin, end in self._seconds():
            seconds = end - begin
            if name in PHASES:
                seconds -= sum(nested for when, nested in inside if when >= begin)
                inside = []
            else:
                inside.append((begin, seconds))
            parts[name] = parts.get(name, 0.0) + seconds
        total = sum(parts.values())
        if total > step_time_s > 0:  # a GPU's clock beside the host's
            parts = {name: seconds * step_time_s / total for name, seconds in parts.items()}
        return parts | {"other": max(0.0, step_time_s - sum(parts.values()))}

    def _seconds(self) -> list[tuple[str, float, float]]:
        """The marks as seconds; a span is noted when it ends, so that a phase follows the spans in it."""
        zero = self._spans[0][1]
        if isinstance(zero, float):
            return self._spans
        after = zero.elapsed_time  # milliseconds
        return [(name, after(begin) / 1000, after(end) / 1000) for name, begin, end in self._spans]

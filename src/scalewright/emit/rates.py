"""The learning rate over the steps, as most trainers have it: warm-up, a plateau, a decay to a least rate.

    0 --warmup--> peak ------ start --length--> least ------ steps

A cosine or a line begins its decay at the end of the warm-up, WSD at its own start. Saves and data, likewise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from scalewright.emit.foreign import RunKeys, whole
from scalewright.emit.settings import Settings
from scalewright.spec.run import ScheduleSpec


class Rates(NamedTuple):
    """A schedule in steps."""

    kind: str  # theirs
    peak: float
    least: float
    warmup: int
    start: int
    length: int  # of the decay
    steps: int  # of the run

    @property
    def to_the_end(self) -> bool:
        """Whether the decay ends with the run."""
        return self.start + self.length == self.steps


def take_rates(s: Settings, kinds: Mapping[str, str], why: str) -> Rates:
    """The run's schedule; a kind that they don't have is written as a cosine."""
    schedule, peak, steps = s.run.lr_schedule, s.values["optimizer.lr"], s.take_steps()
    s.take_each("lr_schedule", "warmup_steps", "min_ratio", "decay_steps")
    kind = schedule.kind
    if kind in kinds:
        s.take("lr_schedule.kind")
    else:
        s.nearly("lr_schedule.kind", "cosine", why)
        kind = "cosine"
    start = warmup = schedule.warmup_steps
    length = decay_length(schedule, steps)
    if schedule.kind == "wsd" and kind != "cosine":
        start = max(warmup, steps - length)
    elif schedule.decay_steps is None or schedule.kind == "wsd":
        length = max(1, steps - warmup)
    ratio = 1.0 if schedule.kind == "constant" else schedule.min_ratio
    return Rates(kinds[kind], peak, float(f"{peak * ratio:.12g}"), warmup, start, length, steps)


def decay_length(schedule: ScheduleSpec, steps: int) -> int:
    """Steps of the decay; where the run doesn't state them, to the end, and of wsd the last fifth."""
    if schedule.decay_steps is not None:
        return schedule.decay_steps
    return max(1, steps // 5) if schedule.kind == "wsd" else steps - schedule.warmup_steps


def put_rates(run: RunKeys, kind: str, warmup: int, length: int | None, least: float | None) -> None:
    """The schedule of a run; `length` None: to the end. A decay that leads nowhere is a constant rate."""
    peak, steps = run["optimizer"].get("lr"), run.get("train", {}).get("steps")
    ratio = 0.0 if least is None or not peak else min(1.0, float(f"{least / peak:.9g}"))
    if kind == "constant" or ratio == 1.0:
        run["lr_schedule"] = {"kind": "constant", "warmup_steps": warmup}
        return
    schedule = {"kind": kind, "warmup_steps": warmup, "min_ratio": ratio}
    whole = kind != "wsd" and steps is not None and length is not None and warmup + length == max(steps, warmup + 1)
    if length is not None and not whole:
        schedule["decay_steps"] = length
    run["lr_schedule"] = schedule


def put_sources(paths: Any, weights: Iterable[Any] | None = None) -> list[dict[str, object]]:
    """Sources of a run from their paths: one, several, or with weights."""
    if isinstance(paths, Mapping):
        return [{"path": str(path), "weight": float(weight)} for path, weight in paths.items()]
    listed = [str(path) for path in (paths if isinstance(paths, list) else [paths])]
    shares = list(weights or ())
    if len(shares) != len(listed) or len(listed) == 1:
        return [{"path": path} for path in listed]
    return [{"path": path, "weight": float(share)} for path, share in zip(listed, shares, strict=True)]


def put_saves(run: RunKeys, every: Any) -> None:
    """Steps between saves, of a file that states them; none where only the end is saved."""
    if every is not None and whole(every) < run.get("train", {}).get("steps", 0):
        run["checkpoint"] = {"every": whole(every)}

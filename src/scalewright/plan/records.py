"""Records of an answer: the keys of `--json` and their types."""

from __future__ import annotations

from typing import Any, TypedDict

LayoutKeys = dict[str, Any]  # a layout as run files and flags have it; checked by spec/layout.py


class Gain(TypedDict):
    """A change of the layout ("setting") or of the machine ("hardware"), and its gain in tokens/s each."""

    change: str
    kind: str
    step_time_s: float
    gain_pct: float


class Fix(TypedDict):
    """One change of a layout that doesn't fit, and what the layout then takes."""

    change: str
    fits: bool
    peak_gib: float
    step_time_s: float


class Removed(TypedDict):
    """A layout without one of its axes or techniques; None where that isn't legal.

    `gain_pct`: speedup from the part; below 0 it costs time. `fits`: whether the layout without it does.
    """

    what: str
    step_time_s: float | None
    gain_pct: float | None
    saves_gib: float | None
    fits: bool
    why: str


class Stage(TypedDict):
    """A pipeline stage: seconds of one micro-batch, and GiB of its rank by kind."""

    stage: int
    rank: int
    layers: int
    seconds: dict[str, float]
    memory_gib: dict[str, float]


class Total(TypedDict):
    """A whole run; the cost is None without a price, the power of a CPU. `band`: p10 and p90 of each.

    They are the step time's; the cost by a list has its range over clouds, too. `failures_device_hours`: what saves,
    stops, restarts and lost work take; `left_out`: what isn't in any. kWh and kg of CO2 have p10, p50 and p90.
    """

    days: float
    device_hours: float
    cost: float | None
    currency: str | None
    goodput: float
    failures_device_hours: float
    left_out: str
    band: dict[str, dict[str, float]]
    energy_kwh: dict[str, float] | None
    co2_kg: dict[str, float] | None


class Link(TypedDict):
    """A level of links; `devices` that one joins (None: all)."""

    kind: str
    devices: int | None
    bytes_per_s: float


class MeasuredRun(TypedDict):
    """A run of measured_runs.csv, without its times."""

    source: str
    trainer: str
    date: str
    model: str
    device: str
    n_devices: int
    layout: LayoutKeys
    seq_len: int


class Nearby(TypedDict):
    """The best layout on another number of devices or with another batch; the gain in tokens/s."""

    devices: int
    global_batch: int
    step_time_s: float
    tokens_per_s: float
    gain_pct: float
    layout: LayoutKeys


class ScalingRow(TypedDict):
    """One device count: the best layout and its gain over the fewest devices, or why there is none."""

    devices: int
    step_time_s: float | None
    tokens_per_s: float | None
    speedup: float | None
    efficiency: float | None
    prediction: dict[str, object] | None
    problem: str | None


class Curve(TypedDict):
    """Amdahl's law fitted to several counts; None with fewer than two that fit.

    `serial_share` is of one device's work, `fit_error` the largest relative one, `limit` the speed-up over
    one device that no count exceeds.
    """

    serial_share: float | None
    one_device_s: float | None
    fit_error: float | None
    limit: float | None
    serial_part: list[SerialPart]


class SerialPart(TypedDict):
    """Seconds by which a part of a step exceeds perfect scaling."""

    part: str
    words: str
    seconds: float
    share: float

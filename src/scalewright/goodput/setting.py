"""The numbers of a run that decide its goodput: given ones, and usual ones of plan/data/failures.yaml.

    given                         then
    a rate of stops               it is all of them: no planned stops, no lemon nodes, no range of rates
    seconds of a restart          they are all from a stop to work again: nothing is searched for, no node is awaited
    seconds of a save             the run's checkpoint size and storage aren't used

So a run with all three is the renewal process of plan/reliability.py, which simulation and closed form both give.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil, exp, isfinite
from typing import Any

from scalewright.plan.reliability import P90, Habits, Rhythm, Usual, best_spares, failures, rhythm, usual
from scalewright.spec.common.formatting import counted, short_time
from scalewright.spec.errors import UserError

MOST_DEVICES = 10**7
MOST_DAYS = 36525.0  # as of a budget
MOST_RATE = 3600.0  # stops per device and hour: one each second
LEAST_SAVE_S = 1.0  # files opened, written and named, however few bytes each device has
MORE_SPARES = 10  # than nodes
USUAL_DAYS = 30.0  # of work, where a run's length isn't known


@dataclass(frozen=True)
class Cause:
    """A kind of stop: its share, seconds until it is found, seconds until what failed is back."""

    name: str
    share: float
    found_s: float
    away_s: float


@dataclass(frozen=True)
class Asked:
    """What was given; None: not. Seconds, except rates (per device and hour) and `storage` (bytes/s of all devices)."""

    devices: int | None = None
    save_s: float | None = None
    restart_s: float | None = None
    detect_s: float | None = None
    rate: float | None = None
    interval_s: float | None = None
    spares: int | None = None
    storage: float | None = None
    days: float | None = None  # of work

    def check(self) -> None:
        """Raises UserError for impossible numbers."""
        if self.devices is not None and not 1 <= self.devices <= MOST_DEVICES:
            raise UserError(f"devices is {self.devices}", "--devices", f"give a number from 1 to {MOST_DEVICES:,}")
        most_s = MOST_DAYS * 86400
        bounds = {
            "save_s": (0.0, most_s, "--save-s", "give the seconds that a save stops the run, such as 30"),
            "restart_s": (0.0, most_s, "--restart-s", "give seconds from a stop to work again, such as 600"),
            "detect_s": (0.0, most_s, "--detect-s", "give seconds until a stop is found, such as 60"),
            "rate": (0.0, MOST_RATE, "--failures-per-device-hour", "give stops of a device in an hour, such as 2e-5"),
            "spares": (0.0, MOST_DEVICES, "--spares", "give spare nodes, 0 or more"),
            "interval_s": (1e-3, most_s, "--interval-s", "give seconds of work between saves, such as 1800"),
            "storage": (1e3, 1e18, "--storage-bytes-per-s", "give bytes/s of all devices together, such as 50GB/s"),
            "days": (1e-3, MOST_DAYS, "--days", f"give days of work, such as 30, up to {MOST_DAYS:,.0f}"),
        }
        for name, (least, most, flag, how) in bounds.items():
            value = getattr(self, name)
            if value is not None and not (isfinite(value) and least <= value <= most):
                raise UserError(f"{name} is {value:g}", flag, how)


@dataclass(frozen=True)
class Run(Habits):
    """What is known of the run itself; None: not."""

    devices: int | None = None
    per_node: int = 8
    steps: int | None = None
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class Setting(Rhythm):
    """All numbers of a simulation; seconds, rates per second of the whole job."""

    devices: int
    nodes: int
    work_s: float
    rate: float  # stops per device and hour
    causes: tuple[Cause, ...]
    spread: float = 0.0  # of the rate's logarithm over runs: nobody gave it
    planned_rate: float = 0.0
    planned_s: float = 0.0
    spares: int | None = None  # nodes; None: none is ever awaited
    lemon_nodes: float = 0.0
    lemon_share: float = 0.0  # of stops
    strikes: float = 3.0
    state_bytes: float = 0.0  # of a save
    assumed: tuple[str, ...] = field(default=())

    @property
    def found_s(self) -> float:
        """Mean seconds until a stop is found."""
        return sum(cause.share * cause.found_s for cause in self.causes)

    @property
    def start_s(self) -> float:
        """Seconds of a restart after that."""
        return self.restart_s - self.found_s

    @property
    def best_spares(self) -> int:
        """Spare nodes with which device-hours are fewest."""
        away = sum(cause.share * cause.away_s for cause in self.causes) / self.mtbf_s * exp(P90 * self.spread)
        return best_spares(self.nodes, away)


def make_setting(asked: Asked, run: Run) -> Setting:
    """The numbers to simulate; `assumed` names those that nobody gave. Raises UserError."""
    asked.check()
    devices = asked.devices or run.devices
    if devices is None:
        how = "add --devices 1024, or give a run file or a run's folder"
        raise UserError("how many devices isn't known", "scalewright goodput", how)
    base, notes = (
        usual(),
        [] if asked.devices is None or not run.source else [f"devices {devices} in place of the run's"],
    )
    own = rhythm(
        devices, _slow_enough(asked, run, base, devices, notes), rate=asked.rate, save_s=asked.save_s,
        storage=asked.storage, restart_s=asked.restart_s,
        detect_s=asked.detect_s, interval_s=asked.interval_s,
    )  # fmt: skip
    if asked.save_s is not None and own.best_s < own.written_s:  # a save that hardly stops the run is written beside it
        best = own.written_s if not run.step_s else run.step_s * ceil(own.written_s / run.step_s)
        own = replace(own, best_s=best, interval_s=best if own.interval_s == own.best_s else own.interval_s)
    _name_saves(asked, run, base, notes)
    causes = _causes(asked, base, own.written_s, notes)
    days = asked.days
    if days is None and not (run.steps and run.step_s):
        days = USUAL_DAYS
        notes.append(f"{USUAL_DAYS:g} days of work (--days, or a run file with a cluster)")
    work_s = days * 86400 if days is not None else float(run.steps or 0) * float(run.step_s or 0)
    if own.interval_s == own.best_s and asked.interval_s is None:
        often = f"at the best interval, every {short_time(own.best_s)} of work"
        notes.append(f"saves {often}" if own.best_s < work_s else "one save, at the end")
    setting = Setting(
        **vars(own), devices=devices, nodes=ceil(devices / run.per_node), causes=causes, spares=asked.spares,
        work_s=work_s,
        rate=base.rate if asked.rate is None else asked.rate,
        state_bytes=base.device_bytes * devices if run.state_bytes is None else run.state_bytes,
    )  # fmt: skip
    if asked.spares is not None and asked.spares > setting.nodes + MORE_SPARES:
        how = f"give up to {setting.nodes + MORE_SPARES:,}: the run has {counted(setting.nodes, 'nodes')}"
        raise UserError(f"spares is {asked.spares:,}", "--spares", how)
    if asked.rate is None:
        setting = replace(setting, **_usual_stops(base, notes))
    if asked.spares is None and asked.restart_s is None:
        setting = replace(setting, spares=setting.best_spares)
        notes.append(f"{counted(setting.best_spares, 'spare nodes')} of {run.per_node} devices, paid for as the others")
    if setting.spares is not None:
        notes.append("of what stops a run half is a node that is mended within a day, a quarter one that boots again")
    return replace(setting, assumed=tuple(notes))


def _slow_enough(asked: Asked, run: Run, base: Usual, devices: int, notes: list[str]) -> Run:
    """A model that no run file has, on so many devices that its state is written in no time: storage has a latency."""
    state = run.state_bytes
    if run.source or run.asynchronous or state is None or asked.save_s is not None:
        return run
    if (base.save_s(state, devices) if asked.storage is None else state / asked.storage) >= LEAST_SAVE_S:
        return run
    notes.append(f"a save takes {LEAST_SAVE_S:g} s at least: the storage's latency (--save-s)")
    return replace(run, save_s=LEAST_SAVE_S)


def _name_saves(asked: Asked, run: Run, base: Usual, notes: list[str]) -> None:
    """What of a save's seconds nobody gave."""
    if asked.save_s is not None or run.save_s is not None:
        return
    if run.state_bytes is None:
        notes.append(f"a state of {base.device_bytes / 1e9:g} GB a device")
    if asked.storage is None:
        notes.append(f"storage that takes {base.device_rate / 1e9:g} GB/s from each device (--storage-bytes-per-s)")


def _causes(asked: Asked, base: Usual, written: float, notes: list[str]) -> tuple[Cause, ...]:
    """Causes with what finds them and what is away; where the whole of a restart is given, nothing is searched for."""
    data, given = failures(), asked.restart_s is not None
    total = sum(cause["count"] for cause in data["causes"].values())
    seconds = {
        table: {name: float(row["value"]) for name, row in data[table].items()} for table in ("found_s", "away_s")
    }
    if asked.detect_s is None and not given:
        notes.append(f"a stop is found after {base.found_s:.0f} s on average: 60 s, or 600 s where it hangs")
    if not given:
        notes.append(f"a restart takes {base.restart_s:g} s and {short_time(written)} to read the state")
    return tuple(
        Cause(
            name, cause["count"] / total,
            asked.detect_s if asked.detect_s is not None else 0.0 if given else seconds["found_s"][cause["found"]],
            seconds["away_s"][cause["away"]],
        )
        for name, cause in data["causes"].items()
    )  # fmt: skip


def _usual_stops(base: Usual, notes: list[str]) -> dict[str, Any]:
    """Stops of usual clusters: planned ones, lemon nodes, and a rate that differs between runs."""
    notes.append(
        f"{base.rate:.3g} stops a device and hour as in Llama 3's run, {exp(base.spread):.1f} times more or less"
    )
    lemons = {name: float(entry["value"]) for name, entry in failures()["lemons"].items()}
    return {
        "spread": base.spread, "planned_rate": base.planned_rate, "planned_s": base.planned_s,
        "lemon_nodes": lemons["nodes"], "lemon_share": lemons["share_of_stops"], "strikes": lemons["strikes"],
    }  # fmt: skip

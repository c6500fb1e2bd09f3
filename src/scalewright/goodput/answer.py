"""The answer of `goodput`: shares, intervals, spares, days and money, and beside them what a run's own folder has.

Setting ──simulate──► Trials: p10, p50, p90 of goodput, days    reliability.py ──► best interval, Young/Daly, renewal
Ledger (of a folder)  the same shares, as they were             spec/prices.py ──► money, kWh, CO2 of the device-hours
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.goodput.ledger import Ledger
from scalewright.goodput.setting import Asked, Run, make_setting
from scalewright.goodput.simulate import simulate
from scalewright.plan.reliability import FOREVER, daly_interval, young_interval
from scalewright.spec.errors import UserError
from scalewright.spec.prices import Band, Footprint, Named, footprint, product

CHANGES = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the best interval, in the table of intervals
MOST_TRIALS = 100_000


@dataclass(frozen=True)
class Paid:
    """What a device-hour costs, and whose electricity it takes; None: not known."""

    price: Band | None = None
    currency: str | None = None
    device: Named | None = None
    region: str | None = None
    notes: tuple[str, ...] = ()


def answer(
    asked: Asked,
    run: Run,
    paid: Paid = Paid(),
    *,
    step: Band | None = None,
    ledger: Ledger | None = None,
    trials: int = 200,
    seed: int = 0,
) -> dict[str, Any]:
    """The keys of `goodput --json`; `step`: seconds of a step with its band. Raises UserError."""
    if not 1 <= trials <= MOST_TRIALS:
        raise UserError(f"trials is {trials}", "--trials", f"give a number from 1 to {MOST_TRIALS:,}")
    setting = make_setting(asked, run)
    found = simulate(setting, trials, seed)
    wall = _band(found.wall_s)
    speed = step.times(1 / step.median) if step is not None and asked.days is None else Band(1.0, 1.0, 1.0)
    days = product(wall, speed).times(1 / 86400) if np.isfinite(wall.high) else wall.times(1 / 86400)
    hours = days.times(24 * (setting.devices + (setting.spares or 0) * run.per_node))
    power = _power(hours, paid)
    money = product(hours, paid.price) if paid.price is not None and np.isfinite(hours.high) else None
    return {
        "devices": setting.devices,
        "goodput": _band(found.goodput).dump(),
        "closed_form": setting.goodput(),
        "interval_s": setting.interval_s,
        "best_interval_s": setting.best_s,
        "best_interval_steps": round(setting.best_s / run.step_s) if run.step_s else None,
        "young_daly_interval_s": young_interval(setting.save_s, setting.mtbf_s),
        "daly_interval_s": daly_interval(setting.save_s, setting.mtbf_s),
        "intervals": [
            {"interval_s": change * setting.best_s, "goodput": setting.goodput(change * setting.best_s)}
            for change in CHANGES
        ],
        "state_bytes": setting.state_bytes,
        "save_s": setting.save_s,
        "written_s": setting.written_s,
        "restart_s": setting.restart_s,
        "failures": float(np.median(found.stops)),
        "mtbf_h": setting.mtbf_s / 3600 if setting.mtbf_s < FOREVER else None,
        "failures_per_device_hour": setting.rate,
        "causes": {cause.name: cause.share for cause in setting.causes},
        "spares": {"used": setting.spares, "best": setting.best_spares},
        "lost": found.lost,
        "work_days": setting.work_s / 86400,
        "days": days.dump(),
        "device_hours": hours.dump(),
        "cost": money.dump() if money else None,
        "currency": paid.currency if money else None,
        "energy_kwh": power.energy_kwh.dump() if power else None,
        "co2_kg": power.co2_kg.dump() if power else None,
        "ledger": ledger.dump() if ledger is not None else None,
        "trials": trials,
        "assumed": [*setting.assumed, *paid.notes, *(power.assumed if power else ())],
    }


def _band(values: NDArray[np.float64]) -> Band:
    """p10, p50 and p90; one that nothing reaches is infinite."""
    ordered = np.sort(values)
    return Band(*(float(ordered[round(q * (len(ordered) - 1))]) for q in (0.1, 0.5, 0.9)))


def _power(hours: Band, paid: Paid) -> Footprint | None:
    if paid.device is None or not np.isfinite(hours.high):
        return None
    return footprint(hours, paid.device, paid.region)

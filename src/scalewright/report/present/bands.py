"""Figures with their bands in words.

>>> span({"p10": 1.3e6, "p50": 1.6e6, "p90": 1.95e6})
'1.6M (1.3M to 1.95M)'
"""

from __future__ import annotations

from collections.abc import Mapping

from scalewright.spec.common.formatting import count

Bounds = Mapping[str, float]


def span(band: Bounds | None) -> str:
    """A median, and between what it lies; nothing of nothing."""
    return "" if band is None else f"{count(band['p50'])} ({count(band['p10'])} to {count(band['p90'])})"


def footprint(energy_kwh: Bounds, co2_kg: Bounds) -> str:
    """Electricity and CO2: `47.6 (33.9 to 70.6) MWh, 16.7 (1.39 to 31.1) t of CO2`."""
    return f"{_weight(energy_kwh, 'kWh', 'MWh')}, {_weight(co2_kg, 'kg', 't')} of CO2"


def _weight(band: Bounds, small: str, large: str) -> str:
    """In thousands of the small unit where it is that much."""
    times, unit = (1e3, large) if band["p50"] >= 1e3 else (1.0, small)
    return f"{span({key: value / times for key, value in band.items()})} {unit}"

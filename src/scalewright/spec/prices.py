"""What device-hours cost: money by a dated list of prices, electricity, and the CO2 of its grid.

    money   device-hours x price                    lowest, median and highest over clouds; your own file first
    IT      (device + host + network) W / supply    watts of one device with its share of the rest
    kWh     device-hours x IT x PUE / 1000
    CO2     kWh x grams of the region's grid / 1000

    >>> price_of("h100", "reserved_1y").median      USD of a GPU for an hour
    >>> footprint(1_000_000, "h100", region="us-central1").co2_kg

Clouds that print a year's price aren't those that print an hour's: what another commitment costs beside on demand is
taken from clouds that print both, so that the two can be compared.

A price is of one device of spec/hardware: a GPU (of a GB200 superchip there are two), a TPU's chip (not its cores).
The figures and their sources are in prices.yaml. Bands of energy: devices, hosts and fans are low or high together;
PUE and grid are independent of that, so that their ratios to the median add as squares of logarithms. What model cards
print is mostly `device_kwh`, the limit of the devices alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any, Literal, get_args

from pydantic import Field, field_validator

from scalewright.spec.base import Spec, from_keys, read_yaml
from scalewright.spec.errors import UserError, unknown
from scalewright.spec.hardware.cluster import ClusterSpec, load_cluster
from scalewright.spec.hardware.devices import DeviceSpec, find_device, load_device

FILE = Path(__file__).with_name("prices.yaml")
Commitment = Literal["on_demand", "reserved_1y", "reserved_3y", "block", "spot"]
Named = str | DeviceSpec | ClusterSpec
COMMITMENTS: tuple[str, ...] = get_args(Commitment)
CLOUDS_OF_PRESETS = ("aws", "gcp", "azure", "oci")  # clusters are named after them: aws-p5
HOURS = 8766.0  # of a year
NOT_IN_IT = "storage, egress, staff and what the hardware's making emitted"


@dataclass(frozen=True)
class Band:
    """A figure with its range."""

    low: float
    median: float
    high: float

    def times(self, factor: float) -> Band:
        """The same in another unit, or of more."""
        return Band(self.low * factor, self.median * factor, self.high * factor)

    def dump(self) -> dict[str, float]:
        """The keys of `--json`."""
        return {"p10": self.low, "p50": self.median, "p90": self.high}


@dataclass(frozen=True)
class Price(Band):
    """Of one device for an hour: lowest, median over clouds (one figure each), highest."""

    currency: str
    date: str  # of the newest row
    sources: tuple[str, ...]  # a line for each row: cloud, price, date, where it was printed
    device: str
    commitment: str
    clouds: tuple[str, ...]
    discount: str = ""  # how the median follows from on demand's, where it does
    lacking: str = ""  # the file that was asked first, and has no price of this device

    @property
    def words(self) -> str:
        """`h100-sxm on demand 2.40 to 12.29 USD an hour, median 3.99 (7 clouds, 2026-11-09)`."""
        where = self.clouds[0] if len(self.clouds) == 1 else f"{len(self.clouds)} clouds"
        span = f"{self.median:.2f}"
        if self.low < self.high:
            span = f"{self.low:.2f} to {self.high:.2f}, median {self.median:.2f}{self.discount}"
        lacking = f"; {self.lacking} has none of it" if self.lacking else ""
        kind = self.commitment.replace("_", " ")
        return f"{self.device} {kind} {span} {self.currency} an hour ({where}, {self.date}{lacking})"


@dataclass(frozen=True)
class Footprint:
    """Electricity and CO2 of device-hours; `assumed`: a line for each figure that wasn't given."""

    energy_kwh: Band
    co2_kg: Band
    device_kwh: float  # of the devices alone at their limit, without PUE
    assumed: tuple[str, ...]


class PriceRow(Spec):
    """A row of a price list: `price` of `devices` devices for an hour."""

    device: str
    price: float = Field(gt=0, le=1e6)
    devices: int = Field(1, ge=1)
    commitment: Commitment = "on_demand"
    cloud: str = "yours"
    date: str = ""
    source: str = ""
    recalled: bool = False

    @field_validator("device")
    @classmethod
    def _known(cls, name: str) -> str:
        return load_device(name).id

    @property
    def each(self) -> float:
        """Of one device for an hour."""
        return self.price / self.devices

    @property
    def words(self) -> str:
        """Where it is from, in a line."""
        recalled = ", recalled" if self.recalled else ""
        return f"{self.cloud} {self.each:.4g} ({self.date or 'no date'}{recalled}): {self.source or 'your price list'}"


class PriceList(Spec):
    """A price list of one's own: `prices: [{device, price, ...}]`, in one currency."""

    currency: str = "USD"
    prices: tuple[PriceRow, ...] = Field(min_length=1)

    @field_validator("currency")
    @classmethod
    def _coined(cls, code: str) -> str:
        return currency_of(code, "currency")

    @from_keys
    def _dates(cls, data: Any) -> Any:
        """A date without quotation marks is one in YAML, too."""
        rows = data.get("prices")
        if isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
            data["prices"] = [{**row, "date": str(row["date"])} if "date" in row else row for row in rows]
        return data


@lru_cache(maxsize=1)
def _data() -> dict[str, Any]:
    data: dict[str, Any] = read_yaml(FILE)
    return data


def currency_of(code: str, where: str = "--currency") -> str:
    """The code in capitals; raises UserError where ISO 4217 has no such money."""
    if code.upper() not in _data()["currencies"].split():
        raise UserError(f"currency is '{code}'", where, "give a code of ISO 4217, such as EUR")
    return code.upper()


@lru_cache(maxsize=1)
def _list() -> PriceList:
    return PriceList.parse({"prices": _data()["prices"]}, FILE.name)


def price_of(
    device: Named, commitment: str = "on_demand", cloud: str | None = None, file: str | Path | None = None
) -> Price:
    """USD (or the file's currency) of one device for an hour, with its range over clouds.

    `device`: a device or a cluster, or its name; a cluster of one cloud (aws-p5) has that cloud's price
    where the list has one. `file`: a price list of your own, used alone for the devices in it. Raises UserError for
    names that aren't known, and where the list has no such price: what it has is in the message.
    """
    if commitment not in COMMITMENTS:
        raise unknown("commitment", commitment, COMMITMENTS, "--commitment")
    identifier, own_cloud = _resolve(device)
    yours = PriceList.parse(read_yaml(file), str(file)) if file is not None else None
    lists = [prices for prices in (yours, _list()) if prices and any(r.device == identifier for r in prices.prices)]
    if not lists:
        how = "give what an hour of one costs you, --price 2.50, or your list, --prices FILE"
        raise UserError(f"no price of {identifier} is known", "price", how)
    of_device = [row for row in lists[0].prices if row.device == identifier]
    rows = [row for row in of_device if row.commitment == commitment and cloud in (None, row.cloud)]
    if not rows:
        has = "; ".join(
            f"{kind} by {', '.join(dict.fromkeys(row.cloud for row in of_device if row.commitment == kind))}"
            for kind in dict.fromkeys(row.commitment for row in of_device)
        )
        asked = commitment if cloud is None else f"{commitment} by {cloud}"
        raise UserError(f"no price of {identifier}, {asked}, is known", "price", f"give --price; the list has {has}")
    if cloud is None:
        rows = [row for row in rows if row.cloud == own_cloud] or rows
    clouds, each = _by_cloud(rows), [row.each for row in rows]
    middle, discount = median(clouds.values()), ""
    on_demand = _by_cloud(row for row in of_device if row.commitment == "on_demand")
    if commitment != "on_demand" and cloud is None and (both := clouds.keys() & on_demand.keys()):
        share = median(clouds[name] / on_demand[name] for name in both)
        middle = share * median(on_demand.values())
        discount = f" ({share:.0%} of on demand, as with {' and '.join(sorted(both))})"
    return Price(
        min(*each, middle), middle, max(*each, middle), lists[0].currency.upper(),
        max(row.date for row in rows), tuple(row.words for row in rows), identifier, commitment, tuple(clouds),
        discount, str(file) if yours is not None and lists[0] is not yours else "",
    )  # fmt: skip


def _by_cloud(rows: Iterable[PriceRow]) -> dict[str, float]:
    """Of each cloud the median of what it prints, so that each counts once."""
    each: dict[str, list[float]] = {}
    for row in rows:
        each.setdefault(row.cloud, []).append(row.each)
    return {name: median(prices) for name, prices in each.items()}


def buy_below(hourly: float, device: Named) -> float:
    """What a device with its share of everything may cost so that owning it is no dearer than renting at this price.

    price (1 + upkeep x years) = hours that it works x (rent of an hour - its electricity); prices.yaml: `owned`.
    """
    owned = {key: float(entry["value"]) for key, entry in _data()["owned"].items()}
    power = footprint(1.0, device).energy_kwh.median * owned["usd_per_kwh"]
    hours = owned["years"] * HOURS * owned["busy"]
    return max(hourly - power, 0.0) * hours / (1 + owned["upkeep"] * owned["years"])


def _resolve(named: Named) -> tuple[str, str | None]:
    """The device's id, and the cloud that a cluster's name begins with."""
    if isinstance(named, str):
        named = find_device(named) or load_cluster(named)
    if isinstance(named, DeviceSpec):
        return named.id, None
    cloud = named.name.lower().split("-")[0]
    return named.device.id, cloud if cloud in CLOUDS_OF_PRESETS else None


def device_power(device: str) -> tuple[float, str]:
    """Watts of one device at its limit by the beginning of its id, and their source; `other` where none fits."""
    entry = _longest(_data()["power"]["device_w"], device)
    return float(entry["value"]), str(entry["source"])


def _longest(table: Mapping[str, Any], device: str) -> Any:
    """The entry whose name is the longest beginning of the id."""
    return table[max((key for key in table if device.lower().startswith(key)), key=len, default="other")]


def regions() -> list[str]:
    """Names that `footprint` takes: regions of Google Cloud, countries by their code, europe, world."""
    return [*_data()["grid"]["regions"], *_data()["grid"]["countries"]]


def footprint(
    device_hours: float | Band, device: Named, region: str | None = None, pue: float | None = None
) -> Footprint:
    """kWh and kg of CO2 of so many hours of one device, with what they assume. Raises UserError.

    `device`: a device or a cluster, or its name. `region`: of `regions()`; None: the median region of data
    centres, with the range over all. `pue`: the site's; None: from the best large operators to the average of all.
    """
    identifier, _ = _resolve(device)
    hours = device_hours if isinstance(device_hours, Band) else Band(device_hours, device_hours, device_hours)
    watts, source = device_power(identifier)
    power = _data()["power"]
    load = _three(power["load"])
    host = _longest(power["host_w"], identifier)
    hosts = Band(*(share * watts for share in host["share"])) if "share" in host else _three(host)
    network = _longest(power["network_w"], identifier)["value"]
    it = Band(*((watts * part + other + network) / power["supply"]["value"] for part, other in _pairs(load, hosts)))
    site = _three(power["pue"]) if pue is None else Band(pue, pue, pue)
    if not (math.isfinite(site.median) and 1 <= site.median <= 10):
        raise UserError(f"pue is {site.median:g}", "--pue", "give all of the site's power over its computers', as 1.2")
    grams, grid = _grams(region)
    site_words = [] if pue is not None else [f"PUE {site.low:g} to {site.high:g}"]
    limit = f"{load.low:.0%} to {load.high:.0%} of {watts:g} W ({source})"
    rest = f"{hosts.low:.0f} to {hosts.high:.0f} W of its host, {network:g} W of network"
    return Footprint(
        energy_kwh=product(it, site, hours).times(1e-3),
        co2_kg=product(it, site, hours, grams).times(1e-6),
        device_kwh=hours.median * watts / 1000,
        assumed=(", ".join([f"energy: {identifier} draws {limit}", rest, *site_words]), grid),
    )


def _grams(region: str | None) -> tuple[Band, str]:
    """Grams of CO2 of a kWh at the plug, and the same in words."""
    grid = _data()["grid"]
    if region is None:
        known = sorted(grid["regions"].values())
        tenth = len(known) // 10
        grams = Band(known[tenth], median(known), known[-1 - tenth])
        return (
            grams,
            f"grid {grams.median:.0f} g CO2/kWh, {grams.low:.0f} to {grams.high:.0f} by region ({grid['source']})",
        )
    values = {**grid["regions"], **grid["countries"]}
    if (value := values.get(region.lower())) is None:
        raise unknown("region", region, values, "--region", more="regions of Google Cloud, or a country's code")
    spread = math.exp(grid["year_to_year"])
    source = grid["source"] if region.lower() in grid["regions"] else "Ember, by Our World in Data"
    return Band(value / spread, value, value * spread), f"grid {value:g} g CO2/kWh in {region.lower()} ({source})"


def _three(entry: Mapping[str, Any]) -> Band:
    """Low, median and high of a table's entry, each a number or one with its source."""
    values = (entry[key] for key in ("low", "median", "high"))
    return Band(*(float(value["value"] if isinstance(value, Mapping) else value) for value in values))


def _pairs(one: Band, other: Band) -> Iterable[tuple[float, float]]:
    return ((one.low, other.low), (one.median, other.median), (one.high, other.high))


def product(*factors: Band) -> Band:
    """A product of independent factors: ratios to the medians add as squares of logarithms."""
    middle = math.prod(band.median for band in factors)
    if middle == 0:  # a price may be
        return Band(0.0, 0.0, 0.0)
    below = math.hypot(*(math.log(band.median / band.low) for band in factors if band.low > 0))
    above = math.hypot(*(math.log(band.high / band.median) for band in factors))
    return Band(middle * math.exp(-below), middle, middle * math.exp(above))

"""Money, electricity and CO2 of a million tokens, of devices that are rented all the time.

    input, output   price x devices x seconds of their prefills, or of their decode steps
    output_alone    price x devices x hours / output tokens: with the inputs that they need

Bands: the rate's spread, times the list's range of prices; of energy times that of hosts, sites and grids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalewright.inference.setup import Question
from scalewright.plan.whole_run import USUAL_CURRENCY, WholeRun
from scalewright.spec.errors import UserError
from scalewright.spec.prices import Band, footprint, product

MILLION = 1e6


def money(
    q: Question, requests: Mapping[str, float], parts: Mapping[str, float], paid: WholeRun, assumed: list[str]
) -> dict[str, Any]:
    """The keys `cost_per_million`, `energy_kwh_per_million_output`, `co2_kg_per_million_output`.

    `requests`: a second, with their band; `parts`: shares of a replica's time; `paid`: prices, and whose grid.
    """
    devices, middle = q.shape.total, requests["p50"]
    tokens = Band(*(requests[key] * q.output_len for key in ("p90", "p50", "p10")))  # fewest hours first
    hours = Band(*(devices / 3600 / each * MILLION for each in (tokens.low, tokens.median, tokens.high)))
    priced = paid.on(q.cluster)
    if priced.price is None and paid.currency is not None:
        raise UserError("currency is given without a price", "--currency", "add --price 2.5: a list has its own")
    keys: dict[str, Any] = {}
    if (price := priced.hourly) is None:
        assumed.append(f"no cost: no price of {q.cluster.device.id} is known (--price)")
    else:
        listed = priced.listed if priced.price is None else None
        hourly, apart = price * devices / 3600, q.shape.prefill / (q.shape.prefill + q.shape.replicas)
        prefill = apart if q.shape.prefill else parts["prefill"]
        entering, out = middle * q.input_len, tokens.median
        keys["cost_per_million"] = {
            "input": hourly * prefill / entering * MILLION if entering else None,
            "output": hourly * (1 - prefill) / out * MILLION, "output_alone": hourly / out * MILLION,
            "all": hourly / (entering + out) * MILLION,
            "currency": listed.currency if listed else (paid.currency or USUAL_CURRENCY).upper(),
            "price_per_device_hour": price,
            "output_alone_band": product(hours, listed or Band(price, price, price)).dump(),
        }  # fmt: skip
        if listed:
            assumed.append(f"price {listed.words}")
            if price:
                keys["cost_per_million"]["range"] = {"low": listed.low / price, "high": listed.high / price}
    if priced.cluster is not None:
        used = footprint(hours, priced.cluster, paid.market.region)
        keys["energy_kwh_per_million_output"] = used.energy_kwh.dump()
        keys["co2_kg_per_million_output"] = used.co2_kg.dump()
        assumed += used.assumed[:1]
    return keys

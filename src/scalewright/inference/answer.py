"""The answer: memory, latency, throughput, money and energy of one layout under one load: keys of `--json`."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from scalewright.inference import cost, load
from scalewright.inference.constants import Constants, constants
from scalewright.inference.counts import counts
from scalewright.inference.evidence import nearest
from scalewright.inference.layouts import loads
from scalewright.inference.load import ENDLESS, Load, Served, Times
from scalewright.inference.money import money
from scalewright.inference.search import apart_gain, pareto, search
from scalewright.inference.server import server
from scalewright.inference.setup import Columns, Question, table
from scalewright.inference.spread import band, sigmas
from scalewright.plan.whole_run import WholeRun
from scalewright.spec.common.formatting import counted
from scalewright.spec.errors import UserError

GIB = 2.0**30
SHOWN = 5
CURVE = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)  # concurrency of a replica
WORDS = {
    "weights": "reading and multiplying by the weights", "kv_cache": "reading the KV cache",
    "communication": "all-reduces between devices", "host": "the host and launches between kernels",
    "prefill": "prefills of other requests",
}  # fmt: skip


def answer_inference(
    q: Question, asked: Load, paid: WholeRun, searched: bool, devices: int | None, explain: bool
) -> dict[str, Any]:
    """The keys of `scalewright inference --json`, of the layout as it is or of the cheapest one."""
    paid.check()
    if not searched:
        if devices is not None:
            raise UserError(
                "devices is given without a search", "--devices", "add --search, or write --layout devices=8"
            )
        return answer(q, asked, paid, explain)
    found, priced = search(q, asked, devices)
    best = replace(q, shape=found[0].shape)
    limited = math.isfinite(asked.tpot) or math.isfinite(asked.ttft)
    kept = (
        asked
        if asked.kind != "closed" or asked.number < ENDLESS
        else replace(asked, kind="target" if limited else "closed")
    )
    keys = answer(best, kept, paid, explain)
    hourly = keys.get("cost_per_million", {}).get("price_per_device_hour")
    keys["search"] = {
        "evaluated": priced, "feasible": len(found), "best": [item.dump(q, hourly) for item in found[:SHOWN]],
        "pareto": [item.dump(q, hourly) for item in pareto(found)], "prefill_apart_gain": apart_gain(found),
    }  # fmt: skip
    return keys


def answer(q: Question, asked: Load, paid: WholeRun, explain: bool = True) -> dict[str, Any]:
    """The keys of one layout under a load."""
    t, c = table([q]), constants()
    served = load.serve(t, c, loads([asked], [q.shape]))
    n, shape = counts(q.model), q.shape
    fits = bool(served.fits[0])
    sigma, ttft_sigma, tpot_sigma = (float(sigmas(t, c, of)[0]) for of in ("rate", "ttft_s", "tpot_s"))
    requests = float(served.requests_per_s[0]) * shape.units
    out = requests * q.output_len
    total = requests * (q.input_len + q.output_len)
    parts = _parts(t, c, served)
    keys: dict[str, Any] = {
        "model": {"name": q.model.name, "params": n.params, "active_params": n.active},
        "cluster": q.cluster.name, "device": q.cluster.device.id, "engine": q.engine.name, "layout": shape.dump(),
        "precision": q.weights.name, "kv_precision": q.kv.name, "input_len": q.input_len, "output_len": q.output_len,
        "fits": fits, "memory_gib": _memory(t, served), "kv_bytes_per_token": _kv_bytes(q),
        "state_bytes_per_request": n.state_bytes, "max_concurrency": int(served.most[0]) * _decoders(q),
        "batch": float(served.batch[0]), "prefill_s": float(served.prefill_s[0]), "decode_s": float(served.decode_s[0]),
        "ttft_s": band(float(served.ttft_s[0]), ttft_sigma),
        "tpot_s": band(float(served.tpot_s[0]), tpot_sigma),
        "requests_per_s": band(requests, sigma), "output_tokens_per_s": band(out, sigma),
        "output_tokens_per_s_per_device": out / shape.total, "total_tokens_per_s": total,
        "overloaded": bool(served.overloaded[0]), "time_breakdown": parts,
        "bottleneck": _bottleneck(q, asked, served, parts), "meets_targets": _meets(asked, served),
        "targets": {"ttft_s": _finite(asked.ttft), "tpot_s": _finite(asked.tpot)},
    }  # fmt: skip
    if not fits:
        for key in ("ttft_s", "tpot_s", "requests_per_s", "output_tokens_per_s"):
            keys[key] = dict.fromkeys(("p10", "p50", "p90"))
        keys["output_tokens_per_s_per_device"] = keys["total_tokens_per_s"] = None
    assumed = list(q.assumed)
    if fits:
        keys.update(money(q, keys["requests_per_s"], parts, paid, assumed))
    if q.speculation.tokens and fits:
        keys["speculation"] = _speculation(q, asked, out)
    if explain:
        keys["curve"] = curve(q) if fits else []
        keys["evidence"] = {"nearest": nearest(q, asked, c)}
    keys["server"] = server(q, t)
    keys["assumed"] = assumed
    return keys


def _decoders(q: Question) -> int:
    return q.shape.replicas


def _kv_bytes(q: Question) -> float:
    """Of one more token, within its windows, over all layers."""
    return counts(q.model).kv_elements * q.kv.bits / 8


def _memory(t: Columns, served: Served) -> dict[str, float]:
    """GiB of a device: what the load needs, and what the engine takes for caches."""
    batch = max(float(served.batch[0]), 1.0)
    cache = batch * float(cost.cached_bytes(t, t.input_len + t.output_len / 2)[0])
    parts = {
        "weights": float(t.weights[0]), "kv_cache": cache, "activations": float(t.activations[0]),
        "other": float(t.reserve[0]),
    }  # fmt: skip
    keys = {**parts, "peak": sum(parts.values()), "kv_pool": max(float(cost.pool_bytes(t)[0]), 0.0)}
    return {key: value / GIB for key, value in keys.items()} | {"usable": float(t.capacity[0]) / GIB}


def _parts(t: Columns, c: Constants, served: Served) -> dict[str, float]:
    """Shares of a replica's time."""
    times = Times(t, c)
    decoded = cost.decode_parts(t, c, served.batch, times.context)
    whole = {key: float((value * times.steps)[0]) for key, value in decoded.items()}
    whole["prefill"] = 0.0 if t.prefills[0] else float((served.batch * cost.prefill_s(t, c, served.batch))[0])
    total = sum(whole.values()) or 1.0
    return {key: value / total for key, value in whole.items()}


def _bottleneck(q: Question, asked: Load, served: Served, parts: dict[str, float]) -> str:
    """What limits it, in a line."""
    most, batch = float(served.most[0]), float(served.batch[0])
    if most < 1:
        return "memory: not one sequence of this length fits beside the weights"
    worst = max(parts, key=lambda key: parts[key])
    words = f"{WORDS[worst]}: {100 * parts[worst]:.0f}% of a replica's time"
    if served.overloaded[0]:
        return f"overloaded: requests come faster than they are served, and the queue grows without end; {words}"
    shape = q.shape
    if shape.prefill:
        rate = float(Times(table([q]), constants()).prefilled()[0])
        if float(served.requests_per_s[0]) >= 0.999 * rate:
            return f"replicas that prefill ({shape.prefill}): {rate:.3g} requests/s; {words}"
    full = most * shape.replicas if shape.prefill else batch  # prefill apart: of those inside some are prefilled
    if asked.kind == "closed" and full < asked.number / shape.units < ENDLESS / shape.units:
        t = table([q])
        slots = float(t.slots[0] * max(t.ranks[0], 1))
        why = f"the engine's {counted(round(slots), 'slots')}" if most >= slots else "the KV cache's memory"
        return f"{why}: {counted(round(batch), 'sequences')} a replica at a time, the rest wait; {words}"
    return words


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _meets(asked: Load, served: Served) -> bool | None:
    """Whether the medians keep the targets; None without targets."""
    if not (math.isfinite(asked.tpot) or math.isfinite(asked.ttft)):
        return None
    ok = served.fits[0] and served.tpot_s[0] <= asked.tpot * 1.001 and served.ttft_s[0] <= asked.ttft * 1.001
    return bool(ok and not served.overloaded[0])


def _speculation(q: Question, asked: Load, out: float) -> dict[str, float]:
    """What guessing gains, which may be less than 1."""
    plain = replace(q, speculation=type(q.speculation)())
    t = table([plain])
    served = load.serve(t, constants(), loads([asked], [q.shape]))
    base = float(served.requests_per_s[0]) * q.shape.units * q.output_len
    return {
        "guessed": q.speculation.tokens, "accepted": q.speculation.accepted, "cost": q.speculation.cost,
        "speed_up": out / base,
    }  # fmt: skip


def curve(q: Question) -> list[dict[str, float]]:
    """Latency and throughput by concurrency, up to what fits."""
    t, c = table([q]), constants()
    most = float(Times(t, c).most[0]) * _decoders(q)
    levels = sorted({min(float(level) * q.shape.units, most) for level in CURVE if level <= 2 * most / q.shape.units})
    many = table([q] * len(levels))
    served = load.serve(many, c, loads([Load("closed", level) for level in levels], [q.shape] * len(levels)))
    rates = served.requests_per_s * q.shape.units * q.output_len
    columns = (levels, served.ttft_s, served.tpot_s, rates, rates / q.shape.total)
    names = ("concurrency", "ttft_s", "tpot_s", "output_tokens_per_s", "output_tokens_per_s_per_device")
    return [dict(zip(names, map(float, row), strict=True)) for row in zip(*columns, strict=True) if np.isfinite(row[1])]

"""What serving a model takes, as blocks: how fast, how full, how sure, what limits it, what it costs.

llama-3.1-70b on 2 x h100-sxm, vllm: tp 2
serves    424 tokens/s of output (212 a device); first token after 7.53 s, then one each 47.2 ms
memory    71.9 of 72.0 GiB: fits; 20 sequences at most
limit     the KV cache's memory: 20 sequences a replica run, the rest wait; ...
cost      5.23 USD a million output tokens with their inputs, ...
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from scalewright.report.present.blocks import Bar, Bars, Block, Line, Shown, Table
from scalewright.spec.common.formatting import count, counted, decimal, gib, short_time

PARTS = {
    "weights": "weights",
    "kv_cache": "KV cache",
    "communication": "communication",
    "host": "host",
    "prefill": "prefill",
}
HELD = {"weights": "weights", "kv_cache": "KV cache", "activations": "activations", "other": "other"}


def show_inference(answer: Mapping[str, Any]) -> Shown:
    """The answer of `inference`."""
    head = [_serves(answer), _memory(answer), Line("limit", answer["bottleneck"], "" if answer["fits"] else "bad")]
    if "cost_per_million" in answer:
        head.append(_cost(answer["cost_per_million"]))
    if "energy_kwh_per_million_output" in answer:
        used = (answer[f"{key}_per_million_output"] for key in ("energy_kwh", "co2_kg"))
        kwh, kg = (f"{band['p50']:.3g} {unit} ({band['p10']:.3g} to {band['p90']:.3g})"
                   for band, unit in zip(used, ("kWh", "kg of CO2"), strict=True))  # fmt: skip
        head.append(Line("energy", f"{kwh} and {kg} a million tokens of output"))
    head.append(Line.of_items("assumed", answer["assumed"], "nothing: all of it was given"))
    return Shown(_title(answer), head, list(_blocks(answer)))


def _title(a: Mapping[str, Any]) -> str:
    shape = a["layout"]
    words = [f"tp {shape['tp']}"]
    words += [f"{key} {shape[key]}" for key in ("pp", "ep", "attention_dp", "replicas") if shape[key] > 1]
    if shape["prefill"]:
        words.append(f"prefill apart: {shape['prefill']} of {shape['prefill'] + shape['replicas']} replicas")
    return (
        f"{a['model']['name']} on {shape['devices']:,} x {a['device']}, {a['engine']}, {a['precision']}: "
        + " · ".join(words)
    )


def _serves(a: Mapping[str, Any]) -> Line:
    if not a["fits"]:
        return Line("serves", "nothing: it doesn't fit", "bad")
    out, first, each = a["output_tokens_per_s"], a["ttft_s"], a["tpot_s"]
    words = (
        f"{count(out['p50'])} tokens/s of output ({count(out['p10'])} to {count(out['p90'])}), "
        f"{count(a['output_tokens_per_s_per_device'])} a device; first token after {short_time(first['p50'])}, "
        f"then one each {short_time(each['p50'])}"
    )
    tone: Any = "bad" if a["overloaded"] or a["meets_targets"] is False else ""
    if a["meets_targets"] is not None:
        words += ": within the targets" if a["meets_targets"] else ": beyond the targets"
    return Line("serves", words, tone)


def _memory(a: Mapping[str, Any]) -> Line:
    held = a["memory_gib"]
    words = f"{decimal(held['peak'], 3)} of {gib(held['usable'])} a device"
    if not a["fits"]:
        return Line("memory", f"{words}: doesn't fit", "bad")
    most = counted(1, "sequences") if a["max_concurrency"] == 1 else f"{count(a['max_concurrency'])} sequences"
    per = f"{count(a['kv_bytes_per_token'])}B a token"
    return Line("memory", f"{words}: fits; {most} at most ({per} of cache)", "good")


def _cost(cost: Mapping[str, Any]) -> Line:
    coin = cost["currency"]
    band = cost["output_alone_band"]
    span = f" ({band['p10']:.3g} to {band['p90']:.3g})" if band["p10"] < band["p90"] else ""
    words = f"{cost['output_alone']:.3g}{span} {coin} a million tokens of output with their inputs"
    if cost["input"] is not None:
        words += f"; apart: {cost['input']:.3g} in, {cost['output']:.3g} out"
    return Line("cost", words + f", at {cost['price_per_device_hour']:.2f} {coin} a device and hour")


def _blocks(a: Mapping[str, Any]) -> Iterator[Block]:
    parts = [
        Bar(PARTS[key], share, f"{100 * share:.0f}%", at) for at, (key, share) in enumerate(a["time_breakdown"].items())
    ]
    if a["fits"]:
        yield Bars("Time of a replica", parts)
    held = [
        Bar(name, a["memory_gib"][key], gib(a["memory_gib"][key]), at) for at, (key, name) in enumerate(HELD.items())
    ]
    yield Bars("Memory of a device", held)
    if "search" in a:
        yield _found(a["search"])
    if rows := a.get("curve"):
        cells = [
            (round(r["concurrency"]), short_time(r["ttft_s"]), short_time(r["tpot_s"]), count(r["output_tokens_per_s"]))
            for r in rows
        ]
        yield Table(("in flight", "first token", "each token", "tokens/s"), cells, "Latency and throughput", few=12)
    if played := a.get("rehearsed"):
        names = {"ttft_s": "first token", "tpot_s": "each further one"}
        rows = [(word, *map(short_time, played[key].values())) for key, word in names.items() if key in played]
        title = f"{counted(played['requests'], 'requests')}, played by the server's schedule"
        yield Table(("", *played["ttft_s"]), rows, title)
    if near := a.get("evidence", {}).get("nearest"):
        yield Table(
            ("measured run", "tokens/s", "predicted"),
            [(f"{r['model']} on {r['n_devices']} x {r['device']}, {r['engine']}, {r['precision']} ({r['source']})",
              count(r["measured"]), count(r["predicted"])) for r in near], "The nearest measured runs",
        )  # fmt: skip


def _found(search: Mapping[str, Any]) -> Table:
    rows = []
    for item in search["best"]:
        price, rate = item.get("cost_per_million_output"), count(item["output_tokens_per_s_per_device"])
        first, each = short_time(item["ttft_s"]), short_time(item["tpot_s"])
        dear = "" if price is None else f"{price:.3g}"
        rows.append((_short(item["layout"]), item["layout"]["devices"], rate, first, each, dear))
    heads = ("layout", "devices", "tokens/s a device", "first token", "each token", "USD a million")
    title = f"The cheapest of {search['feasible']} layouts that keep the targets, {search['evaluated']} priced"
    gain = search["prefill_apart_gain"]
    return Table(
        heads, rows, title, "" if gain is None else f"prefill on devices of its own: {100 * gain:+.0f}% a device"
    )


def _short(shape: Mapping[str, int]) -> str:
    words = [
        f"{key} {shape[key]}" for key in ("tp", "pp", "ep", "attention_dp", "replicas") if key == "tp" or shape[key] > 1
    ]
    return ", ".join(words) + (f", {shape['prefill']} prefill" if shape["prefill"] else "")

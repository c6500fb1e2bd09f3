"""Published figures of failures, goodput, energy and prices, beside what this package makes of the same inputs.

    python comparisons/goodput_truth.py PROBLEMS.json [--out DIR]     half a minute; a dated result

PROBLEMS.json is a list of {id, area, question, inputs, answer: {value, unit, tolerance}}; those of area C are taken.
Each is answered by a function of the package, never by the problem's own formula: a rate comes from failures.yaml, a
price from prices.yaml, a goodput from the simulation. What isn't an answer of this package has its reason; a problem
that nobody has looked at yet is counted as unanswered. `bound`: the publication says "more than" or "at most".
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from harness.result import Result, table

from scalewright.goodput.answer import Paid, answer
from scalewright.goodput.setting import Asked, Run, make_setting
from scalewright.goodput.simulate import simulate
from scalewright.plan.reliability import failures, mtbf_s, renewal_goodput, usual
from scalewright.spec.prices import Band, footprint, price_of

HOUR, GIB = 3600.0, 2.0**30
Inputs = Mapping[str, Any]
Answer = Callable[[Inputs], float]
STATE = 12.0  # bytes of a parameter in a checkpoint


def goodput(devices: int, state_bytes: float | None = None, **asked: Any) -> float:
    """The median goodput of a simulated run with these inputs; all others are usual."""
    setting = make_setting(Asked(devices, **asked), Run(state_bytes=state_bytes))
    return float(np.median(simulate(setting).goodput))


def rate_of(words: str) -> float:
    """Stops per device and hour of the row of failures.yaml whose source has these words."""
    rows = failures()["stops_per_device_hour"]
    return next(float(row["value"]) for row in (rows["usual"], *rows["others"]) if words in row["source"])


def cause(name: str) -> float:
    """A cause's share of all stops."""
    causes = failures()["causes"]
    return float(causes[name]["count"] / sum(entry["count"] for entry in causes.values()))


def lost_minutes(devices: int, state_bytes: float, storage: float) -> float:
    """Minutes that a stop takes with all that it costs: the lost share of a simulated run over its stops."""
    setting = make_setting(Asked(devices, storage=storage), Run(state_bytes=state_bytes))
    runs = simulate(setting)
    shares = (1 - runs.goodput) * runs.wall_s / np.maximum(runs.stops, 1)
    return float(np.median(shares)) / 60


def of_restarts(before: float, stall: float, after: float) -> float:
    """Goodput after restarts got shorter; the rate by the goodput before, by the renewal form without saves."""
    between = -stall / np.log(before)
    return renewal_goodput(1.0, 0.0, after, float(between))


def device_hours(devices: int, days: float) -> float:
    """Of a run that nothing stops."""
    asked = Asked(devices, 0.0, 0.0, rate=0.0, interval_s=1e9, days=days)
    return float(answer(asked, Run(), trials=1)["device_hours"]["p50"])


def cost(devices: int, days: float, price: float) -> float:
    """The same in money."""
    asked = Asked(devices, 0.0, 0.0, rate=0.0, interval_s=1e9, days=days)
    paid = Paid(Band(price, price, price), "USD")
    return float(answer(asked, Run(), paid, trials=1)["cost"]["p50"])


def tdp_kg(hours: float, device: str, kg_of_kwh: float) -> float:
    """Tonnes of CO2 of the devices' limit alone, at the publication's own factor."""
    return footprint(hours, device).device_kwh * kg_of_kwh / 1000


ANSWERS: dict[str, Answer] = {
    # rates and counts
    "llama3-mtbf": lambda i: mtbf_s(16384, usual().rate) / HOUR,
    "llama3-nodeday": lambda i: usual().rate * 8 * 24 * 1000,
    "llama3-faulty-gpu": lambda i: cause("GPU"),
    "llama3-hbm": lambda i: usual().rate * cause("HBM"),
    "rsc-mttf-16384": lambda i: mtbf_s(16384, rate_of("RSC-1")) / HOUR,
    "rsc-mttf-131072": lambda i: mtbf_s(131072, rate_of("RSC-1")) / HOUR,
    "opt-restarts": lambda i: 56 * 24 * HOUR / mtbf_s(992, rate_of("OPT-175B")),
    "megascale-restarts": lambda i: 21 * 24 * HOUR / mtbf_s(int(i["gpus"]), usual().rate),  # "several weeks": three
    # saves
    "llama3-ckpt": lambda i: make_setting(Asked(16384, storage=i["bw"]), Run(state_bytes=i["params"] * STATE)).save_s,
    "baidu-ckpt-70B": lambda i: make_setting(Asked(int(i["gpus"])), Run(state_bytes=i["bytes"])).save_s,
    "baidu-ckpt-130B": lambda i: make_setting(Asked(int(i["gpus"])), Run(state_bytes=i["bytes"])).save_s,
    "opt-ckpt": lambda i: 175e9 * STATE,
    "bloom-ckpt": lambda i: i["params"] * STATE / GIB,
    "bloom-ckpt-overhead": lambda i: simulate(
        make_setting(Asked(384, i["save"], 0.0, rate=0.0, interval_s=i["interval"], days=100.0), Run()), 1
    ).lost["save"],
    "bloom-interval": lambda i: make_setting(Asked(384), Run(step_s=i["s"], save_every=i["iters"])).interval_s / HOUR,
    "bytecheckpoint": lambda i: usual().copy_rate / usual().device_rate,
    # goodput
    "llama3-ett": lambda i: goodput(int(i["gpus"]), 405.85e9 * STATE, storage=2e12),
    "llama3-lost-per-stop": lambda i: lost_minutes(16384, 405.85e9 * STATE, 2e12),
    "megascale-catchup": lambda i: (usual().found_s + usual().restart_s) / 60,
    "byterobust": lambda i: goodput(int(i["gpus"]), save_s=0.1, days=90.0),  # a copy in memory every step or so
    "fthsdp": lambda i: of_restarts(i["before"], 60 * i["stall_before_min"], 60 * i["stall_after_min"]),
    "opt-ideal-share": lambda i: goodput(
        992, 175e9 * STATE, rate=90 / (992 * i["calendar"] * 24), restart_s=6 * HOUR, interval_s=HOUR, days=i["ideal"]
    ),
    # energy and CO2
    "bloom-energy": lambda i: footprint(i["gpu_h"], "a100").device_kwh,
    "bloom-co2": lambda i: tdp_kg(1_082_990, "a100", i["g"] / 1000),
    "bloom-co2-pue": lambda i: tdp_kg(1_082_990, "a100", i["g"] * i["pue"] / 1000),
    "llama31-co2-70b": lambda i: tdp_kg(i["gpu_h"], "h100", i["kg_kwh"]),
    "llama31-gpu-energy": lambda i: footprint(i["h"], "h100").device_kwh / 1000,
    **{f"llama2-co2-{size}": lambda i: tdp_kg(i["gpu_h"], "a100", i["kg_kwh"]) for size in ("7b", "13b", "70b")},
    "ix-h100-fixed": lambda i: 8 * 159.0,  # prices.yaml: power.host_w.h100.low
    # hours and money
    "minicpm-hours": lambda i: device_hours(int(i["gpus"]), i["days"]),
    "nanochat-48": lambda i: cost(int(i["gpus"]), i["h"] / 24, i["usd"]),
    "aws-cb-p5": lambda i: price_of("h100", "block", "aws").median,
    "aws-cb-p5e": lambda i: price_of("h200", "block", "aws").median,
    "aws-cb-p4d": lambda i: price_of("a100-sxm-40", "block", "aws").median,
    "aws-cb-trn1": lambda i: price_of("trn1", "block", "aws").median,
    "tpu-v6e-flex": lambda i: price_of("tpu-v6e", "block").median,
    "spheron-b200": lambda i: price_of("b200", cloud="spheron").median,
    "spheron-gb200": lambda i: price_of("gb200", cloud="spheron").median,
    "price-2026-11-aws-p4d": lambda i: price_of("aws-p4d").median,
    "price-2026-11-aws-p4de": lambda i: price_of("aws-p4de").median,
    "price-2026-11-aws-p5": lambda i: price_of("aws-p5").median,
    "price-2026-11-azure-nc80": lambda i: price_of("h100-nvl", cloud="azure").median,
    "price-2026-11-spread": lambda i: price_of("h100", cloud="azure").high / price_of("h100", cloud="runpod").low,
    "price-2026-11-month": lambda i: price_of("aws-p5").median * i["h"],
    "price-2026-11-runpod-h100-secure": lambda i: price_of("h100", cloud="runpod").high,
    "price-2026-11-runpod-a100-community": lambda i: price_of("a100", cloud="runpod").low,
    "price-2026-11-runpod-h100-pcie-secure": lambda i: price_of("h100-pcie", cloud="runpod").high,
    "price-nebius-h100": lambda i: price_of("h100", cloud="nebius").median,
    "price-vast-h100": lambda i: price_of("h100", cloud="vast").median,
    "price-akash-b300": lambda i: price_of("b300", cloud="akash").median,
    "price-akash-b200": lambda i: price_of("b200", cloud="akash").median,
}  # fmt: skip
BOUNDS = {"llama3-lost-per-stop": "at most", "megascale-catchup": "at most", "megascale-restarts": "at least"}
READ_OFF = ("price-", "aws-cb-", "spheron-", "tpu-v6e-", "baidu-", "ix-")  # our data have them from the same pages

REASONS = {
    "rsc-mttf-1024": "7.9 h were measured where the same paper's rate gives 28.8 h: no rate model can have both",
    "opt-manual": "which restarts were by hand isn't modelled",
    "opt-restarts-2weeks": "a count of two bad weeks of the same run",
    "bloom-hang": "one event",
    "bloom-slow-node": "a node that is slow and doesn't fail isn't modelled",
    "bloom-total": "idle nodes and the making of the hardware aren't counted",
    "olmo2-7b-tokens-kwh": "measured energy over tokens: nothing of ours is in it",
    "olmo-total": "needs a project's list of runs",
    "gpt3-energy": "its hours, watts and PUE aren't among the inputs",
    "dsv3-hours": "a sum of printed figures",
    "llama3-8b-cluster": "a division of printed figures",
    "gemini-goodput": "no rate, size or restart is published",
    "fb-mtbf": "recommendation models: no number of devices",
    "h100-node-headroom": "a division of printed figures",
    "ix-pue-hgx": "we take Meta's, Microsoft's and all sites' averages; 1.3 lies in that band",
    "ix-pue-nvl72": "as above; 1.1 lies in that band",
    **dict.fromkeys(("olmo1-co2-t5-11b", "olmo1-co2-llama-7b", "olmo1-co2-bloom"), "a product of printed figures"),
}
MISSES = {
    "opt-restarts": "two hosts a day (our rate) and restarts are two counts of the same run",
    "opt-ckpt": "12 bytes a parameter; theirs kept 9.6",
    "bloom-ckpt": "12 bytes a parameter; Megatron-DeepSpeed writes bf16 weights beside them: 14",
    "opt-ideal-share": "six hours a stop (23 lost days over 90 stops) aren't published; here a restart may be hit, too",
    "bytecheckpoint": "an average of their cases; ours is one copy against one shared storage",
    "baidu-ckpt-70B": "0.20 GB/s a GPU; 0.14 is the median of four systems",
}


def score(problem: Mapping[str, Any]) -> dict[str, Any]:
    """A problem with our answer, its relative error, and whether it is within the problem's tolerance."""
    name, wanted = problem["id"], float(problem["answer"]["value"])
    row = {"id": name, "wanted": wanted, "unit": problem["answer"]["unit"], "tolerance": problem["answer"]["tolerance"]}
    if name not in ANSWERS:
        return row | {"ours": None, "error": None, "within": False, "why": REASONS.get(name, "nobody has looked at it")}
    ours = ANSWERS[name](problem["inputs"])
    error = ours / wanted - 1
    bound = BOUNDS.get(name)
    within = abs(error) <= row["tolerance"] or (bound == "at most" and error < 0) or (bound == "at least" and error > 0)
    why = bound or ("read off the same page" if name.startswith(READ_OFF) else "")
    return row | {"ours": ours, "error": error, "within": within, "why": why if within else MISSES.get(name, "")}


def published() -> list[tuple[str, str, str, float]]:
    """Goodputs that were published: run, what was published, our inputs, ours."""
    llama, ant, hours = 405.85e9 * STATE, rate_of("Ant"), 6 * HOUR
    by_hand = {"rate": 90 / (992 * 56 * 24), "restart_s": hours, "interval_s": HOUR, "days": 33.0}
    hourly = make_setting(Asked(384, 40.0, 0.0, rate=0.0, interval_s=10800.0, days=100.0), Run())
    rsc = {"rate": rate_of("RSC-1"), "save_s": 10.0, "restart_s": 300.0, "interval_s": HOUR}
    before = {"rate": ant, "save_s": 200.0, "restart_s": 600.0}
    return [
        ("Llama 3 405B, 16,384 H100", "> 90%", "2 TB/s of storage; else usual", goodput(16384, llama, storage=2e12)),
        ("MegaScale, 12,288 GPUs", "> 90%", "all usual", goodput(12288)),
        ("ByteRobust, 9,600 GPUs", "97%", "copies in memory, 0.1 s; else usual", goodput(9600, save_s=0.1, days=90.0)),
        ("RSC-1, 2,048 to 4,096 GPUs", "> 90% (recalled)", "3,072 at its rate, hourly saves of 10 s, restarts of 5 min",
         goodput(3072, **rsc)),
        ("FT-HSDP, 98,000 GPUs", "44%, then 80%", "10 min a restart and a rate that gives 44%; then 3 min",
         of_restarts(0.44, 600.0, 180.0)),
        ("DLRover before flash checkpoints", "90%", "1,024 at Ant's rate, saves of 200 s, restarts of 10 min",
         goodput(1024, **before)),
        ("DLRover with them", "95%", "the same, saves of 0.5 s", goodput(1024, **before | {"save_s": 0.5})),
        ("OPT-175B, 992 A100", "59%", "90 stops in 56 days, hourly saves, 6 h of people a stop",
         goodput(992, 175e9 * STATE, **by_hand)),
        ("BLOOM, 384 A100", "0.37% in saves", "40 s every 3 h: share of saves", simulate(hourly, 1).lost["save"]),
    ]  # fmt: skip


def main() -> None:
    """Answers every problem of area C; prints and keeps the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("problems", type=Path, help="a JSON list of problems")
    parser.add_argument("--out", type=Path, default=None, help="a folder for the result")
    chosen = parser.parse_args()
    rows = [score(problem) for problem in json.loads(chosen.problems.read_text()) if problem["area"] == "C"]
    answered = [row for row in rows if row["ours"] is not None]
    within = [row for row in answered if row["within"]]
    own = [row for row in answered if row["why"] != "read off the same page"]
    counts = {
        "problems": len(rows), "answered": len(answered), "within": len(within),
        "own": len(own), "own_within": sum(row["within"] for row in own),
    }  # fmt: skip
    facts = {"command": "python comparisons/goodput_truth.py PROBLEMS.json"}
    title = "Failures, goodput, energy and prices beside published figures"
    result = Result("goodput-truth", title, facts, chosen.out)
    result.put("counts", counts)
    result.put("rows", rows)
    result.say(
        f"{counts['within']} of {counts['problems']} are within their tolerance; {counts['answered']} have an answer "
        f"of this package. Of the {counts['own']} whose page isn't a source of our data, {counts['own_within']}."
    )
    cells = [
        [row["id"], f"{row['wanted']:.4g} {row['unit']}", f"{row['ours']:.4g}", f"{100 * row['error']:+.2f}%",
         f"{100 * row['tolerance']:.2g}%", "yes" if row["within"] else "no", row["why"]]
        for row in answered
    ]  # fmt: skip
    result.say(table(("problem", "published", "ours", "off", "tolerance", "within", "remark"), cells))
    result.say(
        "## Not answered", "", table(("problem", "why"), [[r["id"], r["why"]] for r in rows if r["ours"] is None])
    )
    goodputs = [[run, said, inputs, f"{100 * ours:.3g}%"] for run, said, inputs, ours in published()]
    result.put("published", goodputs)
    result.say("## Published goodputs", "", table(("run", "published", "our inputs", "ours"), goodputs))
    result.close()


if __name__ == "__main__":
    main()

"""Worked problems about serving, with published answers, answered by the functions that `inference` uses.

    problems.json (a list of {id, inputs, answer}) ──> ours beside theirs, and the error of each

    python comparisons/inference_truth.py FILE...                    prints a table
    python comparisons/inference_truth.py FILE... --out result.json  and keeps it

Two sorts: *worked* ones (caches, bounds, capacities: what a book or paper computed; within 2% of its figure, or its own
rounding) and *measured* ones (a published rate, within the tolerance that its problem states). A worked bound is a
roofline at the rates that its problem gives: the formulas of inference/cost.py with nothing lost. Problems that need
something that isn't printed (the acceptance of a draft, the layout of a service) are listed as such.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.inference import cost
from scalewright.inference.ask import Wanted, ask
from scalewright.inference.batch import answers
from scalewright.inference.constants import constants
from scalewright.inference.counts import counts
from scalewright.inference.load import Loads, serve
from scalewright.inference.score import PERFECT
from scalewright.inference.setup import Columns, setup
from scalewright.plan.whole_run import WholeRun
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.model import ModelSpec
from scalewright.spec.presets import load_model_spec

Problem = Mapping[str, Any]
WORKED = 2.0  # percent
IDEAL = {name: (0.0 if value < 0.01 else 1.0) for name, value in constants().items()} | PERFECT


def replica(
    weights: float, kv_per_token: float, chips: float, bandwidth: float, peak: float = 1e30, memory: float = 1e30,
    params: float | None = None,
) -> Columns:  # fmt: skip
    """A replica of so many bytes on chips that split all of it, with ideal rates."""
    question, _ = ask("llama-2-7b", load_cluster("tpu-v5e"), Wanted(1, 1, layout={"tp": 1}))
    bare = {
        "devices": chips, "tp": 1.0, "reductions": 0.0, "block_bytes": weights / chips, "expert_bytes": 0.0,
        "head_bytes": 0.0,
        "block_flops": 2 * (params or weights) / chips, "expert_flops": 0.0, "head_flops": 0.0, "full_decode": 0.0,
        "full_bytes": kv_per_token / chips, "bandwidth": bandwidth, "peak": peak, "half_peak": peak,
        "capacity": memory / chips, "weights": weights / chips, "activations": 0.0, "reserve": 0.0, "slots": 1e9,
    }  # fmt: skip
    return Columns([type(setup(question))(**{**vars(setup(question)), **bare})])


def step(t: Columns, batch: float, context: float) -> float:
    """Seconds of a step."""
    return float(cost.decode_s(t, IDEAL, np.array([float(batch)]), np.array([float(context)]))[0])


def fitting(t: Columns, context: float) -> float:
    """Sequences that fit."""
    return float(cost.most_sequences(t, np.array([float(context)]))[0])


def cache(**keys: Any) -> float:
    """KV elements of one token of a model with these dims."""
    usual = {"vocab_size": 100, "intermediate_size": 100, "hidden_size": 128}
    return counts(ModelSpec.parse({**usual, **keys})).kv_elements


def attention(i: Problem, layers: str = "L", heads: str = "K", dim: str = "H") -> float:
    keys = {"num_hidden_layers": i[layers], "num_key_value_heads": i[heads], "head_dim": i[dim]}
    return cache(num_attention_heads=i[heads], **keys)


def latent(model: str) -> float:
    return 2 * counts(load_model_spec(model)).kv_elements


def table13(i: Problem) -> dict[str, float]:
    """The book's table of LLaMA-2 13B: bytes of a batch, its step, tokens/s."""
    t = replica(i["weights"], i["kv_seq"] / 8192, i["chips"], i["hbm_bw"])
    held = float(cost.cached_bytes(t, np.array([8192.0]))[0]) * i["chips"] * i["batch"]
    seconds = step(t, i["batch"], 8192)
    return {"kv": held, "total": held + i["weights"], "step": seconds, "tput": i["batch"] / seconds}


def slice_of(i: Problem) -> dict[str, float]:
    """What is left of a slice, and the caches that fit."""
    weights = i["params"] * i["bytes_per_param"]
    t = replica(weights, i["kv_per_token"], i["chips"], 1.0, memory=i["hbm"] * i["chips"])
    left = float(cost.pool_bytes(t)[0]) * i["chips"]
    return {"left": left, "caches": fitting(t, i["S"]), "min_chips": weights / i["hbm"]}


def quiz(i: Problem) -> dict[str, float]:
    t = replica(i["params"], i["kv_per_token"], i["chips"], i["hbm_bw"], i["peak"])
    held = float(cost.cached_bytes(t, np.array([float(i["S"])]))[0]) * i["chips"]
    return {"kv_seq": held, "t_4": step(t, i["B1"], i["S"]), "t_256": step(t, i["B2"], i["S"])}


def capacity(i: Problem) -> dict[str, float]:
    t, one = (
        replica(i["params"], kv, 16, 1.0, memory=i["hbm_total"]) for kv in (i["kv_per_token"], i["kv_per_token"] / 8)
    )
    held = float(cost.cached_bytes(t, np.array([float(i["S"])]))[0]) * 16
    return {"kv_seq": held, "batch": fitting(t, i["S"]), "batch_k1": fitting(one, i["S"])}


def full_step(i: Problem) -> dict[str, float]:
    seconds = step(replica(i["hbm"], 0.0, 1, i["hbm_bw"]), 1, 1)
    return {"step": seconds, "decode": i["steps"] * seconds}


def least_chips(i: Problem) -> dict[str, float]:
    chips = next(n for n in range(1, 10_000) if step(replica(i["params"], 0, n, i["hbm_bw"]), 1, 1) <= i["t"])
    return {"chips": chips, "t_256": step(replica(i["params"], 0, i["pod"], i["hbm_bw"]), 1, 1)}


def bound_405b(i: Problem) -> dict[str, float]:
    compute = replica(0.0, 0.0, 1, 1e30, i["peak"], params=i["params"])
    flops = float(compute.block_flops[0])
    return {
        "flops": flops,
        "t_flops": step(compute, 1, 1),
        "t_hbm": step(replica(2 * i["params"], 0, 1, i["hbm_bw"]), 1, 1),
    }


def critical(i: Problem) -> dict[str, float]:
    """Tokens at which products of int8 weights take as long as reading them: experts that are all hit."""
    weights = 1e9
    t = replica(weights, 0, 1, 1.0, i["hw_intensity"], params=weights * i["k"] / i["E"])
    return {"B": next(b for b in range(1, 10**5) if step(t, b, 1) > step(t, 1, 1) * (1 + 1e-9)) - 1}


def bs32(i: Problem) -> dict[str, float]:
    t = replica(i["weights"], i["kv"], 1, 1.0)
    held = float(cost.cached_bytes(t, np.array([float(i["S"])]))[0]) * i["B"]
    chips = next(
        n
        for n in range(1, 99)
        if fitting(replica(i["weights"], i["kv"], n, 1.0, memory=n * i["hbm"] * 1.01), i["S"]) >= i["B"]
    )
    return {"kv": held, "total": held + i["weights"], "chips": chips}


def kipply(i: Problem) -> dict[str, float]:
    t = replica(i["weights"], i["kv"], 4, 1.0, memory=i["total"])
    left = float(cost.pool_bytes(t)[0]) * 4
    return {"left": left, "tokens": fitting(t, 1)}


def queue(i: Problem) -> dict[str, float]:
    """Seconds until the last of the requests is done, at the rate that the server keeps."""
    t = replica(1.0, 0.0, 1, 1.0, params=1e-9)
    t.output_len, t.input_len = np.ones(1), np.zeros(1)
    t.block_bytes = np.array([1 / i["rps"]])
    endless, no = np.array([math.inf]), np.array([False])
    many = Loads(np.array(["closed"]), np.ones(1), np.array([float(i["n"])]), endless, endless, no, no, no)
    return {"value": i["n"] / float(serve(t, IDEAL, many).requests_per_s[0])}


def guesses(i: Problem) -> dict[str, float]:
    """The gain of DeepSeek-V3's one guess, at a batch that its decode nodes have."""
    given = Wanted(1024, 1024, concurrency=256, layout={"tp": 8}, speculate={"tokens": 1, "accept": i["acceptance"]})
    from scalewright.inference.answer import answer

    question, load = ask("deepseek-v3", load_cluster("hgx-h200"), given)
    return {"value": answer(question, load, WholeRun(1.0), explain=False)["speculation"]["speed_up"]}


def total_tokens(i: Problem) -> dict[str, float]:
    """All tokens beside those of output, in the run's lengths."""
    from scalewright.api import inference

    a = inference(
        "deepseek-r1", "hgx-h200", 8192, 1024, concurrency=4, engine="sglang", layout={"tp": 8}, explain=False
    )
    return {"value": a["total_tokens_per_s"] / a["output_tokens_per_s"]["p50"]}


WORKED_OUT: dict[str, Callable[[Problem], dict[str, float]]] = {
    "sb-tpu-q1": lambda i: {"t": step(replica(i["params"] * i["bytes_per_param"], 0, i["chips"], i["hbm_bw"]), 1, 1)},
    "sb-tf-q1-rest": lambda i: {
        "kv_per_token": cache(num_hidden_layers=i["L"], num_attention_heads=32, head_dim=i["D"] // 32),
    },
    "sb-tf-q8": critical, "sb-inf-quiz": quiz,
    "sb-inf-13b-kv": lambda i: {"bytes": attention(i) * i["bytes"] * i["S"]},
    "sb-inf-table-mha-b8": table13, "sb-inf-table-gqa-b1": table13, "sb-inf-table-gqa-b8": table13,
    "sb-inf-table-gqa-b16": table13, "sb-inf-table-gqa-b64": table13, "sb-inf-q2": capacity,
    "sb-inf-layer-365us": lambda i: {"t": step(replica(i["params"] * i["bytes"], 0, i["shards"], i["hbm_bw"]), 1, 1)},
    "sb-ai-bs32": bs32, "sb-ai-min-bf16": slice_of, "sb-ai-min-int8": slice_of, "sb-ai-min-int4": slice_of,
    "sb-ai-full-step": full_step, "own-ai-q1": bound_405b, "own-ai-q3": least_chips,
    "ds-kv-v3": lambda i: {"bytes": latent("deepseek-v3")}, "ds-kv-v2": lambda i: {"bytes": latent("deepseek-v2")},
    "llama3-70b-kv": lambda i: {
        key: 2 * attention(i, "L", "k", "d") * tokens for key, tokens in (("per_token", 1), ("per_seq", i["S"]))
    },
    "kipply-capacity": kipply,
    "kipply-latency": lambda i: {"t": step(replica(i["weights"], 0, i["n"], i["bw"]), 1, 1)},
    "kv-opt13b": lambda i: {
        "value": i["bytes"] * cache(num_hidden_layers=i["layers"], num_attention_heads=40, head_dim=i["hidden"] // 40)
    },
    "kv-hybrid-32k": lambda i: {"value": counts(load_model_spec("qwen3.5-27b")).kv_elements * i["b"]},
    "vllm-10517-bytes": lambda i: {
        "value": counts(load_model_spec("llama-3.1-8b")).kv_elements * i["b"] * i["blocks"] * i["block"]
    },
    "queue-drain": queue, 
    "ix-h200-total-vs-output": total_tokens,
    }  # fmt: skip


def row_of_problem(problem: Problem) -> dict[str, Any] | None:
    """A measured problem as a row of a table of serving runs; None where something isn't printed."""
    name, i = problem["id"], dict(problem["inputs"])
    row: dict[str, Any] = {
        "n_devices": i.get("n_devices"),
        "tp": i.get("tp"),
        "precision": i.get("precision"),
        "notes": "",
        "source": "",
    }
    row |= {
        "input_len": i.get("input_len"),
        "output_len": i.get("output_len"),
        "concurrency_or_batch": i.get("concurrency"),
    }
    row |= {"model": i.get("model"), "device": str(i.get("device") or "").split(" fp")[0]}
    if name.startswith("gptfast-") and "batch" in i:
        row |= {
            "engine": "gpt-fast",
            "device": "A100-80GB SXM (330 W)",
            "input_len": i["prompt"],
            "output_len": 200,
            "concurrency_or_batch": 1,
        }
    elif name.startswith("trt10-") and "load" in i:
        row |= {
            "engine": "TensorRT-LLM",
            "engine_version": "1.0",
            "concurrency_or_batch": "offline",
            "kv_precision": "FP8",
        }
        row["device"] = "H200" if "H200" in name else row["device"]
    elif name.startswith("mlperf51-"):
        version = "TensorRT 10.11" if "mi3" not in name else ""
        row |= {
            "engine": version or "vLLM",
            "engine_version": version,
            "source": "MLPerf",
            "concurrency_or_batch": i["scenario"],
        }
        row |= {
            "model": {"llama3.1-405b": "llama3.1-405b"}.get(i["model"], i["model"]),
            "device": i["device"].rsplit(" ", 1)[0],
        }
        row["precision"] = i["device"].rsplit(" ", 1)[1]
    elif name == "mlperf41-mi300x-off":
        row |= {
            "engine": "vLLM",
            "source": "MLPerf",
            "model": "llama2-70b-99.9",
            "device": "MI300X",
            "n_devices": 8,
            "concurrency_or_batch": "Offline",
        }
    elif name.startswith("llamacpp-"):
        prefill = "prefill" in name
        row |= {
            "engine": "llama.cpp",
            "model": i.get("model", "Llama 3 8B"),
            "input_len": 1024 if prefill else 0,
            "concurrency_or_batch": 1,
        }
        row |= {"output_len": 0 if prefill else 1024, "precision": str(i.get("weights", "F16")).split(" ")[0]}
        device = row["device"]
        row |= {
            "n_devices": 4 if "x4" in device else 1,
            "device": {"RTX 4090": "4090 24GB"}.get(device, device.split(" x4")[0]),
        }
        row["device"] = "M1 Max 32-Core GPU 64GB" if "M3 Max" in device else row["device"]
    elif name.startswith("nim-"):
        row |= {
            "engine": "TensorRT-LLM",
            "model": "llama-3.3-70b",
            "device": "H100",
            "n_devices": 2,
            "precision": "FP8",
            "engine_version": "0.17",
        }
    elif name.startswith("jetstream-"):
        row |= {
            "engine": "jetstream",
            "device": "TPU v5e",
            "tp": 8,
            "input_len": "ShareGPT",
            "output_len": "ShareGPT",
            "concurrency_or_batch": i["batch"],
        }
    elif name.startswith("ix-mi355x"):
        row |= {
            "engine": "SGLang",
            "model": "deepseek-r1",
            "precision": "fp4",
            "device": "mi355x",
            "n_devices": 4,
            "input_len": 922,
            "output_len": 926,
        }
        row |= {"concurrency_or_batch": i["conc"], "each": True}
    elif name == "dstack-h100-405b-b16":
        row |= {
            "engine": "vLLM",
            "model": "llama-3.1-405b",
            "precision": "fp8",
            "device": "H100",
            "n_devices": 8,
            "input_len": 2048,
            "output_len": 2048,
        }
        row |= {"concurrency_or_batch": 16, "notes": "all requests at once", "total": True}
    elif name.startswith("qwq-a100-tp"):
        row |= {
            "engine": "vLLM",
            "model": "qwen2.5-32b",
            "device": "a100-sxm-80",
            "n_devices": i["tp"],
            "input_len": 0.5,
            "output_len": i["out"],
        }
        row |= {"concurrency_or_batch": i["batch"]}
    elif name == "vultr-nano-c512":
        row |= {
            "engine": "vLLM",
            "model": "Nemotron Nano 30B",
            "precision": "FP8",
            "device": "B200 (HGX)",
            "n_devices": 2,
        }
    else:
        return None
    return {key: "" if value is None else value for key, value in row.items()}


def measured(problem: Problem) -> dict[str, float] | None:
    """Our prediction of a measured problem, in its unit."""
    if problem["id"] == "mtp-tps":
        return guesses(problem["inputs"])
    row = row_of_problem(problem)
    if row is None:
        return None
    answer = next(answers([row]))
    if "error" in answer:
        raise SystemExit(f"{problem['id']}: {answer['error']}")
    if "input_tokens_per_s" in answer:
        return {"value": answer["input_tokens_per_s"]["p50"]}
    if row.get("total"):
        return {"value": answer["total_tokens_per_s"]}
    return {"value": answer["output_tokens_per_s"]["p50"] / (answer["layout"]["devices"] if row.get("each") else 1)}


def compare(problem: Problem) -> list[dict[str, Any]]:
    """A line for each figure of a problem."""
    theirs = problem["answer"]
    figures = theirs if isinstance(next(iter(theirs.values())), Mapping) else {"value": theirs}
    lines = []
    known = WORKED_OUT.get(problem["id"])
    ours = known(problem["inputs"]) if known else measured(problem)
    for key, figure in figures.items():
        mine = None if ours is None else ours.get(key)
        within = WORKED if known else 100 * float(figure.get("tolerance") or 0.02)
        if known and problem.get("tolerance_pct", 0) > within:
            within = float(problem["tolerance_pct"])  # the source's own rounding
        within = max(within, 100 * float(figure.get("tolerance") or 0)) if known else within
        off = None if mine is None else 100 * (mine / float(figure["value"]) - 1)
        lines.append(
            {"id": problem["id"], "key": key,
             "sort": "not asked" if mine is None else "worked" if known else "measured",
             "theirs": float(figure["value"]), "ours": mine, "error_pct": off, "within_pct": within,
             "ok": None if off is None else bool(abs(off) <= within)}
        )  # fmt: skip
    return lines


def main() -> None:
    """Prints each figure, and how many are within their tolerance."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    problems = [problem for path in options.files for problem in json.loads(path.read_text(encoding="utf-8"))]
    asked = [p for p in problems if p.get("area") == "B" or p.get("topic") == "inference" or p["id"] in WORKED_OUT]
    lines = [line for problem in asked for line in compare(problem)]
    for line in lines:
        ours = "" if line["ours"] is None else f"{line['ours']:.5g}"
        off = "" if line["error_pct"] is None else f"{line['error_pct']:+.1f}%"
        word = "" if line["ok"] is None else "ok" if line["ok"] else "OFF"
        print(
            f"{line['id']:40s} {line['key']:12s} {line['sort']:9s} {line['theirs']:12.5g} {ours:>12s} {off:>8s} {word}"
        )
    summary = {}
    for sort in ("worked", "measured"):
        mine = [line for line in lines if line["sort"] == sort and line["ok"] is not None]
        off = [abs(line["error_pct"]) for line in mine]
        summary[sort] = {
            "figures": len(mine),
            "within": sum(line["ok"] for line in mine),
            "median_error_pct": float(np.median(off)),
        }
    summary["not_asked"] = sorted({line["id"] for line in lines if line["ours"] is None})
    print(json.dumps(summary, indent=1))
    if options.out:
        entry = {"date": time.strftime("%Y-%m-%d", time.gmtime()), **summary, "figures": lines}
        options.out.write_text(json.dumps(entry, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

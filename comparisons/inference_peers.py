"""Measured serving runs beside what other planners say of the same rows: aiconfigurator, GenZ, llm-analysis.

    python -m venv peers && peers/bin/pip install aiconfigurator genz-llm llm-analysis
    python comparisons/inference_peers.py peers/bin/python --out comparisons/results     minutes of one core

The rows are those of inference_runs.csv that a peer can express: a dense model that it knows by name, one stage, 16 or
8 bits, a GPU that it has data of. A peer is asked for one batch, and doesn't find the one at which a server of its
engine settles: it gets the one that ours predicts for the row's load. Ours is as shipped, fitted on many of these rows;
`left out` is the same with the row's source left out of the fit. A peer runs in an environment of its own (`ask_*`).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
MODELS = {
    "aiconfigurator": {
        "llama-3.1-8b": "meta-llama/Meta-Llama-3.1-8B", "llama-3.1-70b": "meta-llama/Meta-Llama-3.1-70B",
        "llama-3.3-70b": "meta-llama/Meta-Llama-3.1-70B", "llama-3-70b": "meta-llama/Meta-Llama-3.1-70B",
        "llama-3-8b": "meta-llama/Meta-Llama-3.1-8B", "llama-3.1-405b": "meta-llama/Meta-Llama-3.1-405B",
        "qwen3-32b": "Qwen/Qwen3-32B", "qwen3-8b": "Qwen/Qwen3-8B",
    },
    "GenZ": {
        "llama-3-8b": "meta-llama/meta-llama-3.1-8b", "llama-3.1-8b": "meta-llama/meta-llama-3.1-8b",
        "llama-3-70b": "meta-llama/meta-llama-3.1-70b", "llama-3.1-70b": "meta-llama/meta-llama-3.1-70b",
        "llama-2-70b": "llama2_70b", "llama-2-7b": "llama2_7b",
    },
    "llm-analysis": {"llama-2-70b": "upstage_Llama-2-70b-instruct-v2", "llama-2-7b": "NousResearch_Llama-2-7b-hf"},
}  # fmt: skip
DEVICES = {
    "aiconfigurator": {"h100-sxm": "h100_sxm", "h200-sxm": "h200_sxm", "b200-sxm": "b200_sxm",
                       "a100-sxm-80": "a100_sxm", "l40s": "l40s"},
    "GenZ": {"h100-sxm": "H100_GPU", "a100-sxm-80": "A100_80GB_GPU"},
    "llm-analysis": {"h100-sxm": "h100-sxm-80gb", "a100-sxm-80": "a100-sxm-80gb", "a100-sxm-40": "a100-sxm-40gb"},
}  # fmt: skip
ENGINES = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm"}
MOST = 10  # rows of a source that a peer is asked
NOT_COVERED = (
    ("hf-mem", "0.5.6 installs; it reads a model's header from the Hub, so it answers nothing offline, and no times"),
    ("Vidur", "0.0.26 of PyPI installs without profiles of devices and without its command's module"),
    ("calculon", "PyPI has another project of that name"),
    ("llm-viewer", "not on PyPI"),
)


def questions() -> list[Row]:
    """The rows that a peer can be asked, with ours and the same left out."""
    import numpy as np

    from scalewright.inference import load
    from scalewright.inference.constants import constants
    from scalewright.inference.fit import fit
    from scalewright.inference.score import predicted, read_table, runs_of

    runs, c = runs_of(read_table()), constants()
    served = load.serve(runs.columns, c, runs.loads)
    shipped = predicted(runs, c)
    found: list[Row] = []
    for at, asked in enumerate(runs.asked):
        q, shape = asked.question, asked.question.shape
        plain = shape.pp == 1 and not shape.prefill and shape.attention_dp == 1 and q.speculation.tokens == 0
        if not (plain and np.isfinite(runs.measured[at]) and q.weights.name in ("bf16", "fp8") and q.model.moe is None):
            continue
        row = {
            "source": str(runs.rows[at]["source"]), "model": q.model.name, "device": q.cluster.device.id,
            "engine": q.engine.name, "precision": q.weights.name, "kv_precision": q.kv.name, "tp": shape.tp,
            "replicas": shape.replicas,
            "input_len": q.input_len, "output_len": q.output_len, "batch": float(served.batch[at]),
            "measured": float(runs.measured[at]), "ours": float(shipped[at]), "at": at,
        }  # fmt: skip
        for peer in MODELS:
            known = row["model"] in MODELS[peer] and row["device"] in DEVICES[peer]
            if known and (peer != "aiconfigurator" or row["engine"] in ENGINES):
                found.append({"peer": peer, **row})
    found = list(few(found))
    for source in dict.fromkeys(row["source"] for row in found):
        rates = predicted(runs, fit(runs, [source]))
        for row in found:
            if row["source"] == source:
                row["left out"] = float(rates[row["at"]])
    return found


def few(rows: Sequence[Row]) -> Iterator[Row]:
    """Of each source and peer a few rows, spread over it."""
    for peer, source in dict.fromkeys((row["peer"], row["source"]) for row in rows):
        some = [row for row in rows if (row["peer"], row["source"]) == (peer, source)]
        count = min(MOST, len(some))
        yield from (some[at * len(some) // count] for at in range(count))


def ask_aiconfigurator(row: Row) -> float:
    """Output tokens/s of all replicas, by its tables of kernels."""
    estimate = importlib.import_module("aiconfigurator.cli.api").cli_estimate
    eight = {"gemm_quant_mode": "fp8"} if row["precision"] == "fp8" else {}
    eight |= {"kvcache_quant_mode": "fp8"} if row["kv_precision"] == "fp8" else {}
    answer = estimate(
        MODELS["aiconfigurator"][row["model"]], DEVICES["aiconfigurator"][row["device"]],
        backend_name=ENGINES[row["engine"]], isl=max(1, round(row["input_len"])), osl=max(2, round(row["output_len"])),
        batch_size=max(1, round(row["batch"])), tp_size=row["tp"], **eight,
    )  # fmt: skip
    return float(answer.raw["tokens/s"]) * float(row["replicas"])


def ask_llm_analysis(row: Row) -> float:
    """The same by its roofline, whose efficiencies are 1 where nobody gives others."""
    infer = importlib.import_module("llm_analysis.analysis").infer
    answer = infer(
        model_name=MODELS["llm-analysis"][row["model"]], gpu_name=DEVICES["llm-analysis"][row["device"]],
        dtype_name="w8a8e16" if row["precision"] == "fp8" else "w16a16e16", log_level="CRITICAL", tp_size=row["tp"],
        batch_size_per_gpu=max(1, round(row["batch"])), seq_len=max(1, round(row["input_len"])),
        num_tokens_to_generate=max(1, round(row["output_len"])),
    )  # fmt: skip
    return max(1, round(row["batch"])) * row["output_len"] / answer["total_latency"] * float(row["replicas"])


def ask_genz(row: Row) -> float:
    """The same by its operators on a device's data sheet: one prefill of the batch, then its steps."""
    genz = importlib.import_module("GenZ")
    batch, tokens = max(1, round(row["batch"])), max(1, round(row["output_len"]))
    keys = {
        "model": MODELS["GenZ"][row["model"]], "batch_size": batch, "input_tokens": max(1, round(row["input_len"])),
        "system_name": DEVICES["GenZ"][row["device"]], "bits": row["precision"], "tensor_parallel": row["tp"],
    }  # fmt: skip
    first = genz.prefill_moddeling(**keys)["Latency"]
    each = genz.decode_moddeling(**keys, output_tokens=tokens)["Latency"]
    return 1e3 * batch * tokens / float(first + tokens * each) * float(row["replicas"])


ASK: dict[str, Callable[[Row], float]] = {
    "aiconfigurator": ask_aiconfigurator, "GenZ": ask_genz, "llm-analysis": ask_llm_analysis,
}  # fmt: skip


def answer_all() -> None:
    """In the peers' environment: rows from stdin, an answer or why there is none for each to stdout."""
    for line in sys.stdin:
        row = json.loads(line)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                answer: Row = {"theirs": ASK[row["peer"]](row)}
        except Exception as error:  # whatever another project raises is its answer
            answer = {"why": f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"}
        print(json.dumps(answer), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("python", nargs="?", type=Path, help="of the environment that has the peers")
    parser.add_argument("--out", type=Path, default=None, help="a folder for the result")
    parser.add_argument("--answer", action="store_true", help="used inside that environment")
    chosen = parser.parse_args()
    if chosen.answer:
        answer_all()
        return
    if chosen.python is None:
        parser.error("give the Python of an environment with aiconfigurator, genz-llm and llm-analysis")
    asked = questions()
    lines = "".join(json.dumps(row) + "\n" for row in asked)
    command = [str(chosen.python), __file__, "--answer"]
    run = subprocess.run(command, input=lines, stdout=subprocess.PIPE, text=True, check=True)
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    write([{**row, **answer} for row, answer in zip(asked, answers, strict=True)], chosen.out)


def write(rows: list[Row], out: Path | None) -> None:
    """The rows and the medians by peer, as a dated result."""
    from statistics import median

    from harness.result import Result, table

    result = Result("inference-peers", "Serving runs beside other planners", {"command": f"python {sys.argv[0]}"}, out)
    result.put("rows", rows)
    cells = []
    for peer in MODELS:
        mine = [row for row in rows if row["peer"] == peer]
        told = [row for row in mine if "theirs" in row]
        errors = {
            key: [100 * (row[key] / row["measured"] - 1) for row in told] for key in ("theirs", "ours", "left out")
        }
        each = (f"{median(map(abs, some)):.0f}% ({median(some):+.0f}%)" if some else "–" for some in errors.values())
        cells.append((peer, f"{len(told)} of {len(mine)}", *each))
    result.say("Median absolute error of tokens/s, and the bias (median error).", "")
    result.say(table(("peer", "rows answered", "theirs", "ours, shipped", "ours, source left out"), cells))
    heads = ("peer", "source", "row", "measured", "theirs", "ours", "left out")
    body = [
        (row["peer"], row["source"],
         f"{row['model']} {row['precision']}, {row['replicas']} x tp {row['tp']} {row['device']}, {row['engine']}, "
         f"{row['input_len']:.0f}+{row['output_len']:.0f}, batch {row['batch']:.0f}",
         f"{row['measured']:.0f}", f"{row['theirs']:.0f}" if "theirs" in row else row["why"], f"{row['ours']:.0f}",
         f"{row['left out']:.0f}") for row in rows
    ]  # fmt: skip
    result.say("## Rows", "", table(heads, body))
    result.say("## Others", "", table(("peer", "why it isn't asked"), NOT_COVERED))
    result.close()


if __name__ == "__main__":
    main()

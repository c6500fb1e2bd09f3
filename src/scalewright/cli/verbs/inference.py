"""`scalewright inference MODEL --cluster C`: what serving a model takes and gives; `--batch FILE`: a table's rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from scalewright.cli.options import All, Force, Json, Pairs, flag, option, parse_pairs
from scalewright.cli.output import only_answer, print, print_json, working
from scalewright.cli.terminal import show
from scalewright.cli.verbs.predict import (
    Cloud,
    Cluster,
    Commitment,
    Currency,
    Model,
    Price,
    Prices,
    Region,
    check_given,
)
from scalewright.spec.errors import UserError

LAYOUT = ("devices", "tp", "pp", "ep", "replicas", "attention_dp", "prefill")
GUESSES = ("tokens", "accept", "cost")


def inference(
    model: Model = None,
    cluster: Cluster = None,
    input_len: Annotated[float | None, flag("Tokens of a request, on average.")] = None,
    output_len: Annotated[float | None, flag("Tokens of its answer, on average.")] = None,
    concurrency: Annotated[float | None, flag("Requests in flight.")] = None,
    rate: Annotated[float | None, flag("Requests a second, in place of that.")] = None,
    precision: Annotated[str | None, flag("Of weights: bf16, fp8, int8, int4, fp4, mxfp4, q4_k_m, ...")] = None,
    kv_precision: Annotated[str | None, flag("Of the KV cache: bf16, fp8, int8, ...")] = None,
    layout: Annotated[
        str | None, option("KEY=VALUE,...", "tp=8,pp=1,ep=8,replicas=2,attention_dp=8,prefill=1 (replicas apart).")
    ] = None,
    engine: Annotated[str | None, flag("vllm, sglang, tensorrt-llm, scalewright, llama.cpp, jetstream, ...")] = None,
    engine_version: Annotated[str | None, flag("Its release, such as 0.11.")] = None,
    ttft_s: Annotated[float | None, flag("Most seconds to the first token.", "--ttft-s")] = None,
    tpot_s: Annotated[float | None, flag("Most seconds a token after it.", "--tpot-s")] = None,
    prefix_hit: Annotated[float | None, flag("Share of the input that is cached already.")] = None,
    speculate: Annotated[
        str | None, option("KEY=VALUE,...", "Guessed tokens: tokens=3,accept=0.7,cost=0.05 (of a step, each).")
    ] = None,
    max_seqs: Annotated[int | None, flag("Sequences of a step, in place of the engine's habit.")] = None,
    memory_share: Annotated[float | None, flag("Share of the memory that the engine takes.")] = None,
    offline: Annotated[bool, flag("A list of prompts in one process: no server.", "--offline")] = False,
    measured: Annotated[str | None, option("FILE", "What `bench serve` wrote of our own server.", "--measured")] = None,
    price: Price = None,
    currency: Currency = None,
    prices: Prices = None,
    commitment: Commitment = None,
    cloud: Cloud = None,
    region: Region = None,
    search: Annotated[bool, flag("Find the cheapest layout that keeps the targets.", "--search")] = False,
    devices: Annotated[int | None, flag("Devices of the search, at most; default: a node.")] = None,
    out: Annotated[Path | None, option("FILE", "Write its page there: latency against throughput.")] = None,
    batch: Annotated[str | None, option("FILE", "Price a table, CSV or JSON lines; - is stdin.")] = None,
    force: Force = False,
    everything: All = False,
    json: Json = False,
) -> None:
    """Predict memory, latency, throughput and cost of serving a model.

    \b
    scalewright inference llama-3.1-70b --cluster dgx-h100 --input-len 2048 --output-len 256 --concurrency 32
    scalewright inference deepseek-v3 --cluster hgx-h200 --rate 8 --tpot-s 0.05 --search
    scalewright inference llama-3.1-8b --cluster l40s --tpot-s 0.04 --search --out served.html
    scalewright inference --batch runs.csv > predicted.jsonl
    """
    flags = dict(locals())
    if batch is not None:
        _batch(batch, {key: value for key, value in flags.items() if key not in ("batch", "json")})
        return
    how = "write `scalewright inference MODEL --cluster CLUSTER --input-len 1024 --output-len 256`, or --batch FILE"
    _, place = check_given(model, cluster, "scalewright inference", how)
    name = str(model)
    keys = parse_pairs(layout, "--layout", LAYOUT)
    for key, value in keys.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise UserError(f"{key} is {value}", "--layout", f"give a whole number: {key}=2")
    guesses = parse_pairs(speculate, "--speculate", GUESSES)
    for key, value in guesses.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise UserError(f"{key} is {value}", "--speculate", "give a number: tokens=3,accept=0.7")
    from scalewright.api import inference as ask

    if out is not None:
        from scalewright.report.page import check_page

        check_page(out, force)
    with only_answer(json), working("predicting"):
        answer = ask(
            name, place, input_len, output_len, concurrency=concurrency, rate=rate, precision=precision,
            kv_precision=kv_precision, layout=keys, engine=engine, engine_version=engine_version, ttft_s=ttft_s,
            tpot_s=tpot_s, prefix_hit=prefix_hit, speculate=guesses, max_seqs=max_seqs, memory_share=memory_share,
            offline=offline, price=price, currency=currency, prices=prices, commitment=commitment, cloud=cloud,
            region=region, search=search, devices=devices, measured=measured,
        )  # fmt: skip
        if out is not None:
            from scalewright.report.inference import write_served

            write_served(answer, out, force)
    if json:
        print_json(answer)
        return
    from scalewright.report.present import show_answer

    show(show_answer(answer), everything)


def _batch(path: str, rest: Pairs) -> None:
    """Prices a table; nothing else may be given, as its rows contain all of it."""
    from scalewright.cli.batch import run_batch
    from scalewright.inference.batch import answers, columns

    for key, value in rest.items():
        if value not in (None, False):
            name = "MODEL" if key == "model" else "--" + key.replace("_", "-")
            raise UserError(f"{name} and --batch are both given", "--batch", "put it in the table's columns")

    def tell(text: Any) -> None:
        print(text, file=sys.stderr)

    run_batch(path, sys.stdout, tell, answers, columns())

"""How fast the engine serves on this CPU: beside transformers, with a prefix in the cache, and at a rate of requests.

python comparisons/serving_speed.py            30M and 125M parameters, fp32: some fifteen minutes
python comparisons/serving_speed.py --quick    a tiny model, one round, no result file unless --out

streams     tokens/s of 1 and 16 requests at once, of some one after the other, and of transformers' generate (batches
            of 1 and 16); all in turns, ratios within a round
prefix      time to the first token of a prompt whose first 90% the cache has, beside one that is new
load        requests that come at random at a quarter, half and three quarters of the highest rate: time to the first
            token, and of each further one, beside what `inference` predicts from steps that were measured before
            (`bench serve`: requests of other lengths, and none at a rate), with arrivals of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from harness.facts import facts
from harness.result import Result, facts_text, table
from harness.statistics import spread
from served import server as vllm_server
from tokenizers import Tokenizer, models

from scalewright.api import inference
from scalewright.inference.rehearse import WARM, gaps
from scalewright.model.decoder import Decoder
from scalewright.model.init import initialize
from scalewright.serve.engine import Engine, Settings
from scalewright.serve.load import Loaded
from scalewright.serve.measure import measure
from scalewright.serve.request import Request
from scalewright.serve.sampling import Sampling
from scalewright.spec.model import ModelSpec
from scalewright.spec.serving import blocks_for

SHAPES = {
    "tiny": (64, 128, 2, 4, 2, 512),
    "30M": (512, 1408, 8, 8, 4, 8192),
    "125M": (768, 2048, 12, 12, 12, 32000),
}  # hidden, units, layers, heads, KV heads, words
STREAMS = 16
SEED = 77  # of arrivals: not one of those that `inference` plays
HERE = {
    "name": "here", "devices_per_node": 1, "nodes": 1,
    "device": {
        "name": "this CPU", "id": "cpu", "vendor": "Intel", "kind": "cpu", "peaks": {"fp32": 1e11},
        "memory_bytes": 16e9, "memory_bytes_per_s": 1e10, "sources": ["unused: the server is measured"],
    },
}  # fmt: skip


def spec_of(name: str) -> ModelSpec:
    """A Llama of that shape."""
    hidden, units, layers, heads, kv, words = SHAPES[name]
    keys = {"hidden_size": hidden, "intermediate_size": units, "num_hidden_layers": layers, "vocab_size": words}
    keys |= {"num_attention_heads": heads, "num_key_value_heads": kv, "context": 2048}
    return ModelSpec.parse({"name": name, **keys})


def theirs_of(spec: ModelSpec) -> Any:
    """The same shape in transformers; None where it isn't installed."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        return None
    config = LlamaConfig(
        hidden_size=spec.hidden_size, intermediate_size=spec.intermediate_size, num_key_value_heads=spec.kv_heads,
        num_hidden_layers=spec.num_hidden_layers, num_attention_heads=spec.num_attention_heads,
        vocab_size=spec.vocab_size, max_position_embeddings=spec.context,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def prompts_of(spec: ModelSpec, number: int, length: int, seed: int = 0) -> list[list[int]]:
    """Random tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, spec.vocab_size, (number, length), generator=generator).tolist()  # type: ignore[no-any-return]


def engine_of(model: Decoder, length: int, rows: int = STREAMS) -> Engine:
    """An engine with room for that many rows of that length, twice over."""
    blocks = 2 * rows * blocks_for(length)
    return Engine(Loaded(model, None, frozenset()), Settings(kv_blocks=blocks, max_concurrency=rows))


def streams(spec: ModelSpec, model: Decoder, prompt: int, new: int, rounds: int) -> dict[str, Any]:
    """Tokens a second of each way, over the whole of a request, and the ratios."""
    engine, theirs = engine_of(model, prompt + new), theirs_of(spec)

    def ours(number: int, at_once: int, seed: int) -> float:
        prompts = prompts_of(spec, number, prompt, seed)  # new ones each time: no prefix is in the cache
        began = time.perf_counter()
        for start in range(0, number, at_once):
            for ids in prompts[start : start + at_once]:
                engine.add(Request(ids, new, Sampling(0)))
            list(engine.run())
        return number * new / (time.perf_counter() - began)

    def of_them(number: int, seed: int, **keys: Any) -> float:
        ids = torch.tensor(prompts_of(spec, number, prompt, seed))
        began = time.perf_counter()
        with torch.inference_mode():
            theirs.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, do_sample=False,
                pad_token_id=0, **keys,
            )  # fmt: skip
        return number * new / (time.perf_counter() - began)

    ways: dict[str, Callable[[int], float]] = {
        "1 request": lambda seed: ours(1, 1, seed),
        "16 at once": lambda seed: ours(STREAMS, STREAMS, seed),
        "one after the other": lambda seed: ours(STREAMS // 4, 1, seed),
    }
    if theirs is not None:
        ways["transformers, 1"] = lambda seed: of_them(1, seed)
        ways["transformers, batch of 16"] = lambda seed: of_them(STREAMS, seed)
        ways["the same, static cache"] = lambda seed: of_them(STREAMS, seed, cache_implementation="static")
    for way in list(ways.values())[:2]:
        way(1000)  # first times apart
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds):
        for place, name in enumerate(list(ways)[:: 1 if turn % 2 else -1]):
            rates[name].append(ways[name](turn * len(ways) + place))
    engine.close()
    pairs = [("16 at once", "one after the other"), ("1 request", "transformers, 1")]
    pairs.append(("16 at once", "transformers, batch of 16"))
    ratios = {
        f"{a} / {b}": spread([x / y for x, y in zip(rates[a], rates[b], strict=True)]).dump()
        for a, b in pairs
        if b in rates
    }
    return {
        "prompt": prompt,
        "new": new,
        "tokens_per_s": {n: spread(r).dump() for n, r in rates.items()},
        "ratios": ratios,
    }


def prefix(spec: ModelSpec, model: Decoder, length: int, rounds: int) -> dict[str, Any]:
    """Seconds to the first token of a new prompt, and of one whose first 90% are in the cache."""
    engine, seconds = engine_of(model, length + 8, 2), {"new": list[float](), "90% cached": list[float]()}
    for turn in range(rounds + 1):
        base = prompts_of(spec, 1, length, seed=turn)[0]
        known = length * 9 // 10
        for name, ids in (("new", base), ("90% cached", base[:known] + prompts_of(spec, 1, length - known, 99)[0])):
            began = time.perf_counter()
            engine.add(Request(ids, 1, Sampling(0)))
            (update,) = list(engine.run())
            if turn:
                seconds[name].append(time.perf_counter() - began)
            assert bool(update.cached) == (name != "new")
    engine.close()
    ratio = spread([a / b for a, b in zip(seconds["new"], seconds["90% cached"], strict=True)])
    return {"length": length, "seconds": {n: spread(s).dump() for n, s in seconds.items()}, "sooner": ratio.dump()}


def played(spec: ModelSpec, engine: Engine, rate: float, number: int, prompt: int, new: int) -> dict[str, float]:
    """Mean seconds to the first token, and of each further one, of requests that come at random at that rate."""
    arrivals, clock = [0.0, *accumulate(gaps(number - 1, rate, SEED))], time.perf_counter
    ids = prompts_of(spec, number, prompt, seed=int(1e6 * rate))
    came, first, ended = dict[int, float](), dict[int, float](), dict[int, float]()
    began, sent = clock(), 0
    while len(ended) < number:
        while sent < number and clock() - began >= arrivals[sent]:
            came[engine.add(Request(ids[sent], new, Sampling(0)))] = began + arrivals[sent]
            sent += 1
        if engine.idle:
            time.sleep(max(0.0, min(0.01, began + arrivals[sent] - clock())))
            continue
        for update in engine.step():
            first.setdefault(update.number, clock())
            if update.finished:
                ended[update.number] = clock()
    kept = sorted(came)[number // WARM :]
    return {
        "ttft_s": statistics.mean(first[n] - came[n] for n in kept),
        "tpot_s": statistics.mean((ended[n] - first[n]) / (new - 1) for n in kept),
    }


def write_folder(spec: ModelSpec, folder: Path) -> None:
    """A Hugging Face folder of that shape, with random weights and a tokenizer of as many words."""
    words = {f"w{number}": number for number in range(spec.vocab_size)}
    theirs_of(spec).save_pretrained(folder)
    Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    keys = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0"}
    (folder / "tokenizer_config.json").write_text(json.dumps(keys))


@contextlib.contextmanager
def our_server(folder: Path) -> Iterator[str]:
    """`scalewright serve`, until the block ends."""
    command = [sys.executable, "-m", "scalewright", "serve", str(folder), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"] + "/v1"
        finally:
            process.terminate()


def over_http(url: str, model: str, prompts: list[list[int]], new: int) -> float:
    """Tokens a second of completions that are asked for at once."""

    def one(ids: list[int]) -> int:
        body = {"model": model, "prompt": ids, "max_tokens": new, "temperature": 0}
        request = urllib.request.Request(f"{url}/completions", json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=600) as answer:
            return int(json.load(answer)["usage"]["completion_tokens"])

    began = time.perf_counter()
    with ThreadPoolExecutor(len(prompts)) as pool:
        tokens = sum(pool.map(one, prompts))
    return tokens / (time.perf_counter() - began)


def beside_vllm(spec: ModelSpec, vllm: Path, prompt: int, new: int, rounds: int) -> dict[str, Any]:
    """Tokens a second over HTTP, ours and vLLM's CPU build, both up, in turns."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        place = Path(folder) / spec.name
        write_folder(spec, place)
        urls = {"scalewright serve": (stack.enter_context(our_server(place)), spec.name)}
        urls["vLLM"] = stack.enter_context(vllm_server(vllm, place, Path(folder) / "log")), "ours"
        rates: dict[str, list[float]] = {f"{n}, {k}": [] for n in urls for k in (1, STREAMS)}
        for turn in range(rounds + 1):
            for name, (url, model) in list(urls.items())[:: 1 if turn % 2 else -1]:
                for number in (1, STREAMS):
                    ids = prompts_of(spec, number, prompt, seed=1000 * turn + number)
                    rate = over_http(url, model, ids, new)
                    if turn:
                        rates[f"{name}, {number}"].append(rate)
    speeds = {name: spread(of_name).dump() for name, of_name in rates.items()}
    pairs = [(f"scalewright serve, {n}", f"vLLM, {n}") for n in (1, STREAMS)]
    ratios = {f"{a} / {b}": spread([x / y for x, y in zip(rates[a], rates[b], strict=True)]).dump() for a, b in pairs}
    return {"prompt": prompt, "new": new, "tokens_per_s": speeds, "ratios": ratios}


def predicted(spec: ModelSpec, server: dict[str, Any], prompt: int, new: int, **load: float) -> dict[str, Any]:
    """What `inference` says of the measured server."""
    return inference(spec, HERE, prompt, new, measured=server, explain=False, **load)  # type: ignore[arg-type]


def load(spec: ModelSpec, model: Decoder, prompt: int, new: int, number: int, seconds: float) -> dict[str, Any]:
    """Rates against measured and predicted latencies; steps of other requests are measured first, for so long."""
    engine = engine_of(model, prompt + new)
    server = measure(engine, seconds).dump()
    full = predicted(spec, server, prompt, new, concurrency=STREAMS)["requests_per_s"]["p50"]
    rows = []
    for share in (0.25, 0.5, 0.75):
        rehearsed = predicted(spec, server, prompt, new, rate=share * full)["rehearsed"]
        means = {key: rehearsed[key]["mean"] for key in ("ttft_s", "tpot_s")}
        measured = played(spec, engine, share * full, number, prompt, new)
        rows.append({"rate": share * full, "share": share, "measured": measured, "predicted": means})
    engine.close()
    errors = {
        key: statistics.median(abs(row["predicted"][key] / row["measured"][key] - 1) for row in rows)
        for key in ("ttft_s", "tpot_s")
    }
    facts = {"prompt": prompt, "new": new, "requests": number, "highest_rate": full}
    return {**facts, "server": server, "rows": rows, "median_error": errors}


def tell(result: Result, name: str, what: str, part: dict[str, Any]) -> None:
    """A model's part as a table."""
    if what == "prefix":
        middle = {n: f"{1e3 * s['median']:.0f} ms" for n, s in part["seconds"].items()}
        cached = f"with 90% in the cache {middle['90% cached']}: {part['sooner']['median']:.1f} times sooner."
        result.say(f"First token of {part['length']} tokens: {middle['new']}, {cached}")
    elif what == "load":
        kinds = [(kind, key) for key in ("ttft_s", "tpot_s") for kind in ("measured", "predicted")]
        rows = [
            (f"{row['rate']:.2f} ({row['share']:.0%})", *(f"{1e3 * row[kind][key]:.0f}" for kind, key in kinds))
            for row in part["rows"]
        ]
        result.say(table(("requests/s (of the highest)", "TTFT, ms", "predicted", "TPOT, ms", "predicted"), rows))
        error = part["median_error"]
        result.say(f"Median error: TTFT {100 * error['ttft_s']:.0f}%, TPOT {100 * error['tpot_s']:.0f}%.")
    else:
        rates, ratios = part["tokens_per_s"].items(), part["ratios"].items()
        rows = [(n, f"{s['median']:.0f}", f"{s['p20']:.0f} to {s['p80']:.0f}") for n, s in rates]
        result.say(f"## {name}: {part['prompt']} tokens of prompt, {part['new']} new", "",
                   table(("way", "tokens/s", "p20 to p80"), rows))  # fmt: skip
        rows = [(n, f"{s['median']:.2f}", f"{s['p20']:.2f} to {s['p80']:.2f}") for n, s in ratios]
        result.say(table(("ratio", "median", "p20 to p80"), rows))


def main() -> None:
    """Measures every model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny model, one round")
    parser.add_argument("--threads", type=int, help="of every product (default: torch's)")
    parser.add_argument("--models", nargs="+", choices=list(SHAPES), default=["30M", "125M"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--vllm", type=Path, help="the command `vllm` of an environment with its CPU build")
    parser.add_argument("--out", type=Path, help="the result's folder")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    title, names = "Serving on a CPU", ["tiny"] if options.quick else options.models
    result = None
    if options.out or not options.quick:
        result = Result("serving-speed", title, facts(), options.out)
        result.say(facts_text(result.data["facts"]))
    for name in names:
        spec = spec_of(name)
        model = Decoder(spec)
        initialize(model, spec, 0)
        model.eval()
        sizes = [(16, 8)] if options.quick else [(64, 64), (512, 64)]
        rounds = 1 if options.quick else options.rounds
        parts: dict[str, Callable[[], dict[str, Any]]] = {
            f"streams, {prompt}": partial(streams, spec, model, prompt, new, rounds) for prompt, new in sizes
        }
        parts["prefix"] = partial(prefix, spec, model, 200 if options.quick else 1000, rounds)
        parts["load"] = partial(load, spec, model, *((16, 8, 10, 1.0) if options.quick else (128, 64, 30, 15.0)))
        if options.vllm:
            parts["beside vLLM"] = partial(beside_vllm, spec, options.vllm, *sizes[0], rounds)
        found: dict[str, Any] = {}
        for what, measured in parts.items():
            found[what] = measured()
            if result is not None:
                result.put(name, found)
                tell(result, name, what, found[what])
    if result is not None:
        result.close()


if __name__ == "__main__":
    main()

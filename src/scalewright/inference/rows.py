"""Rows of a table of serving runs: each as a question, its load, and what was measured.

    "NVIDIA H100 SXM", "Qwen/Qwen3-14B-FP8", "peak 1000.00"   -->   Question, Load("all", requests 1000)

Columns are those of data/inference_runs.csv. A blank is filled, and `assumed` has it; a row that can't be expressed is
refused with the reason. Rates are of the whole system: a row per device is multiplied.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from scalewright.inference.constants import DATA, Engine, Format, engine_of, fold, format_of
from scalewright.inference.layouts import usual
from scalewright.inference.load import ENDLESS, Load
from scalewright.inference.setup import Question, Shape, Speculation
from scalewright.plan.rows.cells import number, text
from scalewright.plan.rows.row_model import known_name
from scalewright.spec.base import read_yaml
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import ClusterSpec, load_cluster
from scalewright.spec.hardware.devices import find_device
from scalewright.spec.model import ModelSpec
from scalewright.spec.presets import is_preset, load_model_spec

Row = Mapping[str, Any]
MAKERS = re.compile(
    r"^(nvidia|amd|habana|intel\(r\) xeon\(r\)|intel\(r\)|intel|apple|virtualized|instinct|\[maxsun\])[ -]+", re.I
)
FORMATS = re.compile(r"-(fp8|awq|gptq|int8|w8a8|bf16|nvfp4|kv|hf|instruct|2507|it|v0\.1|0528x)$")
TWICE = 1.5  # times the requests in flight: medians and means, starts and ends, differ by less
SEEN = 1 / 3  # of them: of requests that are sent at once half are in flight on average
OFFLINE = ("offline", "static batch", "end-to-end latency")
# The usual gain of guessed tokens, where a row names the method: accepted a step, and the cost of a guess beside a step
GUESSES = {"mtp": (0.85, 0.06), "eagle": (0.55, 0.05), "ngram": (0.25, 0.0), "draft": (0.6, 0.15)}


@dataclass(frozen=True)
class RowOfTable:
    """A row as a question."""

    question: Question
    load: Load
    rate: float | None  # measured tokens/s: of output, or of input where there is no output
    rate_kind: str  # output, input
    offered: bool  # the rate is what was asked for, and measures no server
    ttft_s: float | None
    tpot_s: float | None
    free: int = 0  # devices whose layout the row doesn't state


@lru_cache(maxsize=1)
def names() -> dict[str, dict[str, Any]]:
    """data/names.yaml."""
    table: dict[str, dict[str, Any]] = read_yaml(DATA / "names.yaml")
    return table


def row_of(row: Row) -> RowOfTable:
    """A row's question, load and measured figures; raises UserError."""
    assumed: list[str] = []
    engine = _engine(text(row, "engine"))
    model, sparse = model_named(text(row, "model"))
    cluster = _cluster(text(row, "device"))
    weights, kv = _formats(row, model.name, cluster, assumed)
    work = workload_of(row)
    lengths = [_length(row, key, work, assumed) for key in ("input_len", "output_len")]
    if not lengths[0] + lengths[1]:
        raise UserError("input_len and output_len are blank", "row", "fill one of them")
    load = _load(row, work, lengths)
    chunk = int(load.number) if not lengths[1] and load.number > 1 else None  # the micro-batch is what differs
    slots = (
        int(load.number) if engine.name in ("jetstream", "gpt-fast", "llama.cpp") and load.number < ENDLESS else None
    )
    question = Question(
        model, cluster, engine, weights, kv, Shape(), lengths[0], lengths[1],
        speculation=_speculation(text(row, "notes")), sparse_keys=sparse, older=engine.older(_version(row)),
        offline=_offline(row), slots=slots, chunk=chunk,
    )  # fmt: skip
    question, free = _shaped(row, question)
    scale = question.shape.devices * question.shape.replicas if text(row, "per_device") == "1" else 1
    measured, kind = _rate(row, lengths[1])
    measured = None if measured is None else measured * scale
    first, each = (v / 1000 if (v := number(row, key)) else None for key in ("ttft_ms_p50", "tpot_ms_p50"))
    served = scale * (number(row, "requests_per_s") or 0) or (measured or 0) / max(lengths[1], 1)
    inside = _inside(served, lengths[1], first, each, load)
    if "TPOT UNUSABLE" in text(row, "notes") or inside > TWICE:
        each = None
    if inside < SEEN:
        first = each = None
    return RowOfTable(
        replace(question, assumed=tuple(assumed)), load, measured, kind,
        load.kind == "rate" and load.number < ENDLESS, first, each, free,
    )  # fmt: skip


def _inside(rate: float, output_len: float, first: float | None, each: float | None, asked: Load) -> float:
    """Requests in flight by a row's own latencies, as a share of those that were sent; 1 where that isn't known.

    Little's law: C = requests/s x (TTFT + output x TPOT). In some tables TPOT is the whole time over all tokens, so
    that waiting counts twice; in others latencies are of a client that got its tokens late, in heaps.
    """
    if not (rate and first and each) or asked.kind != "closed" or asked.number >= ENDLESS:
        return 1.0
    return rate * (first + output_len * each) / asked.number


def _engine(name: str) -> Engine:
    first = re.split(r"[ ]", name.strip())[0] if name else ""
    return engine_of(first, strict=False)


def _offline(row: Row) -> bool:
    """Whether prompts were a list in one process: MLPerf, engines' own benchmarks, a batch without a server."""
    words = " ".join(text(row, key).lower() for key in ("concurrency_or_batch", "notes"))
    benchmark = engine_of(text(row, "engine"), strict=False).name in ("llama.cpp", "gpt-fast", "jetstream")
    return benchmark or text(row, "source").startswith("MLPerf") or any(w in words for w in OFFLINE)


def _version(row: Row) -> str:
    """The engine's release; of TensorRT's own numbers TensorRT-LLM's: 10.2 came with 0.11, 10.8 with 0.17."""
    release = text(row, "engine_version")
    if found := re.match(r"TensorRT (\d+)\.(\d+)", release):
        return "0.11" if (int(found[1]), int(found[2])) < (10, 8) else "0.17"
    return re.sub(r"^[a-zA-Z ]+", "", release)


@lru_cache(maxsize=512)
def model_named(name: str) -> tuple[ModelSpec, int]:
    """The model of a published name, and the keys that its indexer chooses (0: all). Raises UserError."""
    if name.endswith((".json", ".yaml")) or is_preset(name):
        return load_model_spec(name), 0
    plain = known_name(name.rpartition("/")[2] if not name.startswith("DeepSeek-V3/") else "deepseek-v3")
    plain = re.sub(r"^meta-", "", plain)
    plain = re.sub(r"^(llama)(\d)", r"\1-\2", plain)
    for _ in range(6):
        if (entry := names()["models"].get(plain)) is not None:
            spec = load_model_spec(entry["like"])
            return spec.replace(**entry.get("keys", {})), int(entry.get("sparse_keys", 0))
        if is_preset(plain):
            return load_model_spec(plain), 0
        shorter = FORMATS.sub("", re.sub(r"-99(\.9)?$", "", plain))
        if shorter == plain:
            break
        plain = shorter
    return load_model_spec(plain), 0


@lru_cache(maxsize=256)
def _cluster(name: str) -> ClusterSpec:
    """The usual system of a device by a table's name; raises UserError."""
    plain = name.replace("‑", "-").split(",")[0].split("(x")[0].strip()
    for _ in range(3):
        plain = MAKERS.sub("", plain)
    key = re.sub(r"-(gpu|cpu)$", "", fold(plain)) if "core" not in plain else fold(plain)
    known = names()["devices"].get(key) or names()["devices"].get(fold(plain))
    if isinstance(known, dict):
        return load_cluster({"device": known, "devices_per_node": 8})
    for guess in (known, key, re.sub(r"-\d+gb$", "", key), key.replace("-sxm", ""), re.sub(r"-sxm.*$", "", key)):
        if guess and find_device(guess):
            return load_cluster(guess)
    return load_cluster(key)


def _formats(row: Row, known: str, cluster: ClusterSpec, assumed: list[str]) -> tuple[Format, Format]:
    """The formats of weights and KV cache; a blank is the published one, and in MLPerf the narrowest of the device."""
    cell = re.split(r"[ (/]", text(row, "precision").strip().lower())[0].replace("awq", "int4")
    if "weight" in text(row, "precision").lower() and cell == "int8":
        cell = "int8-weights"
    if not cell:
        mlperf = text(row, "source").startswith("MLPerf")
        peaks = cluster.device.peaks
        cell = (
            ("fp4" if peaks.fp4 else "fp8" if peaks.fp8 else "bf16") if mlperf else names()["native"].get(known, "bf16")
        )
        assumed.append(f"precision {cell}")
    kv = re.split(r"[ (]", text(row, "kv_precision").strip().lower())[0]
    narrow = cell in ("fp8", "fp4") and text(row, "source").startswith("MLPerf")
    if not kv:
        kv = "fp8" if narrow else "bf16"
        assumed.append(f"kv_precision {kv}")
    return format_of(cell, "row"), format_of({"int8": "int8"}.get(kv, kv), "row")


def workload_of(row: Row) -> Mapping[str, Any]:
    """Usual lengths and limits of the data that a row names (data/names.yaml); empty where it names none."""
    shared = "sharegpt" if "sharegpt" in text(row, "input_len").lower() else ""
    name = text(row, "model") if text(row, "source").startswith("MLPerf") else shared
    work: Mapping[str, Any] = names()["workloads"].get(name, {})
    return work


def _length(row: Row, key: str, work: Mapping[str, Any], assumed: list[str]) -> float:
    try:
        cell = number(row, key)
    except UserError:
        cell = None
    if cell is not None:
        return cell
    usual_length = work.get(key.removesuffix("_len"))
    if usual_length is None:
        return 0.0
    assumed.append(f"{key} {usual_length} (of that workload)")
    return float(usual_length)


def _load(row: Row, work: Mapping[str, Any], lengths: list[float]) -> Load:
    """What was sent, by the source's own words; mean lengths that are no whole numbers are of texts that differ."""
    varied = bool(work) or not _round(lengths[1])
    return replace(_sent(row, work), varied=varied, waves=True)


def _round(length: float) -> bool:
    """Whether a mean is of equal lengths: a whole number, or a multiple of 128 but for a few early stops."""
    return length == round(length) or abs(length / 128 - round(length / 128)) * 128 < 0.15


def _sent(row: Row, work: Mapping[str, Any]) -> Load:
    cell, notes = text(row, "concurrency_or_batch").lower(), text(row, "notes").lower()
    in_all = re.search(r"(\d+) (?:requests|prompts)", f"{notes} {cell} {text(row, 'input_len').lower()}")
    requests = float(in_all[1]) if in_all else 0.0
    if cell in ("server", "interactive"):
        limits = work.get(cell, {"tpot": 0.2, "ttft": 2.0})
        return Load("target", ENDLESS, 0.0, limits["tpot"], limits["ttft"], tails=True)
    if rate := re.search(r"qps ([^ ,;]+)", cell):
        return Load("rate", _above_0(rate[1], cell), requests)
    if cell.startswith("offline") or cell == "saturated" or "production" in cell:
        return Load("closed", ENDLESS, requests)
    if cell.startswith("peak") or not cell:
        return Load("closed", requests or 1000.0, requests or 1000.0)
    level = _above_0(cell, cell)
    if "all requests at once" in notes:
        elapsed = re.search(r"elapsed ([\d.]+) s", notes)  # with two replicas the level is that of each
        sent = round((number(row, "requests_per_s") or 0) * float(elapsed[1])) if elapsed else level
        return Load("closed", sent, sent)
    if "all sent at once unless" in notes:
        if level >= requests:
            return Load("closed", requests, requests)
        if level not in (4, 512):  # a peak that was seen, not a limit that was set: requests came at a rate
            return Load("rate", _offered(number(row, "requests_per_s") or 1.0), requests)
        return Load("closed", level, requests)
    return Load("closed", level)


def _above_0(number: str, cell: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1e9:
        how = "give requests in flight, such as 32, or requests a second: qps 4"
        raise UserError(f"concurrency_or_batch is '{cell}'", "row", how)
    return value


def _offered(rate: float) -> float:
    """The power of two that a rate fell a little short of."""
    offered = 1.0
    while offered < rate * 0.999:
        offered *= 2
    return offered


def _speculation(notes: str) -> Speculation:
    low = notes.lower()
    if "specul" not in low:
        return Speculation()
    method = next((name for name in GUESSES if name in low), "draft")
    each, cost = GUESSES[method]
    guessed = re.search(r"num_speculative_tokens\"?[:=] ?(\d+)|num-draft-tokens[= ](\d+)|num-steps[= ](\d+)", low)
    k = int(next(g for g in guessed.groups() if g)) if guessed else (1 if method == "mtp" else 3)
    return Speculation(k, accepted_tokens(each, k), cost)


def accepted_tokens(each: float, guessed: int) -> float:
    """Guesses that are accepted on average, when each is with probability `each`: p (1 - p^K) / (1 - p)."""
    return float(guessed) if each >= 1 else each * (1 - each**guessed) / (1 - each)


def settle(asked: Sequence[RowOfTable]) -> list[RowOfTable]:
    """The rows, each with a layout: where it isn't stated, the fastest that fits."""
    keys = [repr((row.question, row.load, row.free)) if row.free else "" for row in asked]
    firsts = {key: row for key, row in zip(keys, asked, strict=True) if key}
    shapes = dict(zip(firsts, usual([(row.question, row.free, row.load) for row in firsts.values()]), strict=True))
    settled = []
    for key, row in zip(keys, asked, strict=True):
        if key:
            shape = shapes[key]
            words = f"layout tp {shape.tp}, pp {shape.pp}, replicas {shape.replicas} (the fastest that fits)"
            question = replace(row.question, shape=shape, assumed=(*row.question.assumed, words))
            row = replace(row, question=question)
        settled.append(row)
    return settled


def _shaped(row: Row, q: Question) -> tuple[Question, int]:
    """The question with the row's layout, or the devices for which it states none."""
    notes = text(row, "notes")
    devices = number(row, "n_devices")
    tp, pp = number(row, "tp"), number(row, "pp")
    if devices is None:
        if tp is None:
            raise UserError("n_devices is blank", "row", "fill it: the rate is of so many devices")
        devices = tp * (pp or 1)
    ranks = 1
    if (dp := re.search(r"dp=(\d+)", notes)) and "enable-dp-attention" in notes:
        ranks = int(dp[1])
    if "decode role" in notes or "DECODE node" in notes:
        raise UserError("the rate is of nodes that only decode", "row", "give the whole system's")
    if apart := re.search(r"disaggregated (\d+)P(\d+)D", notes):
        prefill, decode = int(apart[1]), int(apart[2])
        each = int(tp or devices / (prefill + decode))
        return replace(q, shape=Shape(each, 1, 1, decode, 1, prefill)), 0
    if q.engine.splits == "layers":
        return replace(q, shape=Shape(1, int(devices))), 0
    if tp is None and devices > 1 and pp in (None, 1):
        return replace(q, shape=Shape(1, 1, 1, int(devices))), int(devices)
    tp, pp = tp or 1, pp or 1
    if "-pp 2" in notes:
        pp = 2
    replicas = max(1, round(devices / (tp * pp)))
    ranks = ranks if tp % ranks == 0 else 1
    ep = int(tp) if text(row, "ep") == "y" else 1
    return replace(q, shape=Shape(int(tp), int(pp), ep, replicas, ranks)), 0


def _rate(row: Row, output_len: float) -> tuple[float | None, str]:
    """The measured rate of the system, or of a device, and of which tokens."""
    total, out, each = (number(row, key) for key in ("total_tokens_per_s", "output_tokens_per_s", "requests_per_s"))
    if not output_len:
        return total, "input"
    if out is not None:
        return out, "output"
    if total is not None:
        lengths = (number(row, "input_len") or 0) + output_len
        return total * output_len / lengths, "output"
    return (None if each is None else each * output_len), "output"

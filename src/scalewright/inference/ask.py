"""Names and flags to a question: what isn't given is filled in, and said.

precision     as the weights are published (gpt-oss: mxfp4, DeepSeek-V3: fp8), else 16 bits
layout        the fewest devices of a node in which the weights and the sequences asked for fit, by tensor parallelism
load          one request at a time; --concurrency or --rate for more
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scalewright.inference import cost
from scalewright.inference.constants import engine_names, engine_of, format_of
from scalewright.inference.layouts import even_stages
from scalewright.inference.load import ENDLESS, Load
from scalewright.inference.rows import accepted_tokens, model_named, names
from scalewright.inference.setup import Question, Shape, Speculation, table
from scalewright.spec.base import read_yaml
from scalewright.spec.common.formatting import counted
from scalewright.spec.errors import UserError, unknown
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.model import ModelSpec
from scalewright.spec.presets import load_model_spec
from scalewright.spec.run import load_run

SIZES = tuple(Shape.__dataclass_fields__)
MOST_TOKENS, MOST_DEVICES = 1e8, 10**6


@dataclass(frozen=True)
class Wanted:
    """What a user gives, besides model and cluster; None for what isn't given."""

    input_len: float | None = None
    output_len: float | None = None
    concurrency: float | None = None
    rate: float | None = None
    precision: str | None = None
    kv_precision: str | None = None
    layout: Mapping[str, Any] | None = None
    engine: str | None = None
    engine_version: str | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    prefix_hit: float | None = None
    speculate: Mapping[str, Any] | None = None
    max_seqs: int | None = None
    memory_share: float | None = None
    offline: bool = False


def ask(
    model: str | Mapping[str, Any] | ModelSpec, cluster: ClusterSpec, given: Wanted, searched: bool = False
) -> tuple[Question, Load]:
    """The question and the load; raises UserError for what can't be. `searched`: the layout is still to be found."""
    if searched and given.layout:
        raise UserError("layout and search are both given", "--layout", "keep one of them")
    spec, sparse = _model(model)
    assumed: list[str] = []
    lengths = _lengths(given, assumed)
    engine = engine_of(given.engine or "vllm")
    if given.engine is None:
        assumed.append("engine vllm")
    precision = given.precision or names()["native"].get(spec.name, "bf16")
    kv = given.kv_precision or "bf16"
    assumed += [
        f"{key} {value}"
        for key, value in (("precision", precision), ("kv_precision", kv))
        if getattr(given, key) is None
    ]
    q = Question(
        spec, cluster, engine, format_of(precision), format_of(kv, "--kv-precision"), Shape(), *lengths,
        older=engine.older(given.engine_version or ""), offline=given.offline,
        prefix_hit=_share(given.prefix_hit, "--prefix-hit", 0.0), speculation=_speculation(given.speculate, assumed),
        sparse_keys=sparse, slots=_whole(given.max_seqs, "--max-seqs"),
        memory=_positive_share(given.memory_share, "--memory-share"),
    )  # fmt: skip
    assumed += check_formats(q)
    asked = _load(given, lengths, assumed, searched)
    if sum(lengths) > spec.context:
        assumed.insert(0, f"requests of {sum(lengths):,.0f} tokens, more than the model's context of {spec.context:,}")
    if sparse:
        assumed.append(f"attention to {sparse} keys that an indexer chooses; the indexer itself isn't counted")
    if searched:
        return replace(q, assumed=tuple(assumed)), asked
    q = replace(q, shape=_shape(q, given.layout or {}, asked, assumed))
    cluster.check_devices(q.shape.total)
    return replace(q, assumed=tuple(assumed)), asked


def _model(model: str | Mapping[str, Any] | ModelSpec) -> tuple[ModelSpec, int]:
    """The model of a name in the tables, or of a run (file or folder), and the keys that its indexer chooses."""
    if not isinstance(model, str):
        return load_model_spec(model), 0
    run_file = Path(model) / "run.yaml" if Path(model).is_dir() else Path(model)
    if run_file.suffix == ".yaml" and run_file.is_file() and "model" in (read_yaml(run_file) or {}):
        made = load_run(run_file).model
        if not isinstance(made, ModelSpec):
            raise UserError("a module of one's own has no counts for serving", model, "give a preset, or a config.json")
        return made, 0
    try:
        return load_model_spec(model), 0
    except UserError as error:
        try:
            return model_named(model)
        except UserError:
            raise error from None


def _lengths(given: Wanted, assumed: list[str]) -> tuple[float, float]:
    lengths = []
    for key, usual in (("input_len", 1024.0), ("output_len", 256.0)):
        value = getattr(given, key)
        if value is None:
            assumed.append(f"{key} {usual:g}")
            value = usual
        if not math.isfinite(value) or not 0 <= value <= MOST_TOKENS:
            flag = "--" + key.replace("_", "-")
            raise UserError(f"{key} is {value:g}", flag, "give tokens, 0 to 100000000: means, not limits")
        lengths.append(float(value))
    if not sum(lengths):
        raise UserError("input_len and output_len are both 0", "--input-len", "give a request some tokens")
    if not lengths[1]:
        raise UserError("output_len is 0", "--output-len", "give 1 for prefill alone: its time is prefill_s")
    return lengths[0], lengths[1]


def _positive(value: float | None, flag: str, example: str) -> float | None:
    if value is not None and not (math.isfinite(value) and 0 < value <= 1e9):
        raise UserError(
            f"{flag.lstrip('-').replace('-', '_')} is {value:g}", flag, f"give a number above 0, such as {example}"
        )
    return value


def _whole(value: float | None, flag: str) -> int | None:
    if value is not None and (value != int(value) or value < 1):
        raise UserError(f"{flag.lstrip('-').replace('-', '_')} is {value:g}", flag, "give a whole number above 0")
    return None if value is None else int(value)


def _share(value: float | None, flag: str, usual: float) -> float:
    value = usual if value is None else value
    if not 0 <= value <= 1:
        raise UserError(f"{flag.lstrip('-').replace('-', '_')} is {value:g}", flag, "give a share, 0 to 1, such as 0.5")
    return value


def _positive_share(value: float | None, flag: str) -> float | None:
    return None if value is None else _share(_positive(value, flag, "0.9"), flag, 0.9)


def _load(given: Wanted, lengths: tuple[float, float], assumed: list[str], searched: bool) -> Load:
    """The load: a rate, a concurrency, or what the targets allow."""
    number = _positive(given.concurrency, "--concurrency", "32")
    rate = _positive(given.rate, "--rate", "4")
    ttft = _positive(given.ttft_s, "--ttft-s", "0.5")
    tpot = _positive(given.tpot_s, "--tpot-s", "0.05")
    if number is not None and rate is not None:
        raise UserError("concurrency and rate are both given", "--rate", "keep one: the other follows from it")
    if rate is not None:
        return Load("rate", rate, ttft=ttft or math.inf, tpot=tpot or math.inf)
    if number is not None:
        return Load("closed", number, ttft=ttft or math.inf, tpot=tpot or math.inf)
    if ttft is not None or tpot is not None:
        return Load("target", ENDLESS, ttft=ttft or math.inf, tpot=tpot or math.inf)
    if searched:
        return Load("closed", ENDLESS)
    assumed.append("concurrency 1")
    return Load("closed", 1.0)


def _speculation(keys: Mapping[str, Any] | None, assumed: list[str]) -> Speculation:
    """`tokens=3,accept=0.7,cost=0.05`: guesses a step, the chance of each, the cost of one beside a step."""
    if not keys:
        return Speculation()
    known = ("tokens", "accept", "cost")
    for key in keys:
        if key not in known:
            raise unknown("key", key, known, "--speculate")
    tokens = _whole(float(keys.get("tokens", 3)), "--speculate") or 1
    accept, price = float(keys.get("accept", 0.7)), float(keys.get("cost", 0.05))
    if not 0 <= accept <= 1 or not 0 <= price <= 10:
        raise UserError(
            f"accept is {accept:g}, cost {price:g}", "--speculate", "give accept=0.7 (a share), cost=0.05 (of a step)"
        )
    assumed += [
        f"{key} {value:g} of a guess" for key, value in (("accept", accept), ("cost", price)) if key not in keys
    ]
    return Speculation(tokens, accepted_tokens(accept, tokens), price)


def _shape(q: Question, keys: Mapping[str, Any], asked: Load, assumed: list[str]) -> Shape:
    """The layout as stated, or the fewest devices in which the model and its sequences fit."""
    allowed = (*SIZES, "devices")
    for key in keys:
        if key not in allowed:
            raise unknown("key", key, allowed, "--layout")
    sizes = {key: _whole(float(value), f"--layout {key}") for key, value in keys.items() if key != "prefill" or value}
    devices = sizes.pop("devices", None)
    if devices and devices > MOST_DEVICES:
        raise UserError(f"devices is {devices}", "--layout", "give at most 1000000")
    shape = Shape(**sizes)  # type: ignore[arg-type]
    if "tp" not in sizes and "pp" not in sizes:
        shape = _smallest(replace(q, shape=shape), asked)
        assumed.append(f"layout tp {shape.tp}, pp {shape.pp} (the least that fits)")
    if devices and "replicas" not in sizes:
        shape = replace(shape, replicas=max(1, devices // shape.devices - shape.prefill))
    if devices and shape.total != devices:
        how = f"a replica takes tp x pp = {shape.devices}: use devices {shape.total}, or other sizes"
        raise UserError(f"devices {devices} is not {shape.total}, that of the layout", "--layout", how)
    check_layout(q, shape)
    return shape


def check_formats(q: Question) -> list[str]:
    """What is unusual about these weights there; raises UserError for an engine or weights that there aren't."""
    engine, device, weights = q.engine, q.cluster.device, q.weights
    maker = "cpu" if device.kind in ("cpu", "mps") else device.vendor.lower()
    if engine.runs_on and maker and maker not in engine.runs_on.split():
        able = [name for name in engine_names() if maker in engine_of(name).runs_on.split()]
        how = f"use {' or '.join(able)}" if able else "use another device"
        raise UserError(f"{engine.name} doesn't run on {device.id}", "--engine", how)
    if weights.covers == "experts" and q.model.moe is None:
        how = "use fp4, whose weights are all of the layers'"
        raise UserError(f"{weights.name} has experts alone, and {q.model.name} has none", "--precision", how)
    if engine.reads and weights.name not in f"{engine.reads} {engine.tries}".split():
        how = f"use one of {', '.join(engine.reads.split())}"
        raise UserError(f"{engine.name} has no weights in {weights.name}", "--precision", how)
    notes = []
    if weights.name in engine.tries.split():
        notes.append(f"{weights.name} in {engine.name}, which calls it experimental: it may be far slower")
    if weights.compute != "half" and device.peak(weights.compute) is None:
        notes.append(f"{weights.name} weights unpacked to 16 bits: {device.id} has no {weights.compute} units")
    return notes


def check_layout(q: Question, shape: Shape) -> None:
    """Raises UserError for a layout that engines refuse."""
    heads = q.model.num_attention_heads
    if heads % (shape.tp // math.gcd(shape.tp, shape.attention_dp)) or (shape.tp > heads):
        best = max(n for n in range(1, min(shape.tp, heads) + 1) if heads % n == 0)
        raise UserError(f"tp {shape.tp} doesn't divide {heads} attention heads", "--layout", f"use tp={best}")
    if shape.pp > q.model.num_hidden_layers:
        raise UserError(
            f"pp {shape.pp} is more than {counted(q.model.num_hidden_layers, 'layers')}", "--layout", "use fewer stages"
        )
    if shape.ep > 1 and q.model.moe is None:
        raise UserError(f"ep {shape.ep}, but {q.model.name} has no experts", "--layout", "leave ep out")
    for key in ("ep", "attention_dp"):
        if shape.tp % (size := getattr(shape, key)):
            what = f"{key} {size} doesn't divide tp {shape.tp}, which here counts all ranks of a stage, {key}'s too"
            raise UserError(what, "--layout", f"use {key}=1 or {key}={shape.tp}, or tp={size * shape.tp}")


def _smallest(q: Question, asked: Load) -> Shape:
    """The fewest devices of a node (beyond it: stages) whose memory holds the weights and the sequences."""
    heads, per_node = q.model.num_attention_heads, q.cluster.devices_per_node
    layers = q.engine.splits == "layers"
    sizes = [n for n in (1, 2, 4, 8, 16, 32, 64) if n <= per_node and heads % n == 0] or [1]
    ladder = [replace(q.shape, tp=1, pp=n) if layers else replace(q.shape, tp=n, pp=1) for n in sizes]
    whole = even_stages(q.model.num_hidden_layers)
    stages = sorted({*whole, *(n for n in (2, 4, 8, 16) if n <= q.model.num_hidden_layers)})
    if layers:
        ladder += [replace(q.shape, tp=1, pp=n) for n in stages if n > sizes[-1]]
    else:
        ladder += [replace(q.shape, tp=sizes[-1], pp=n) for n in stages if n > 1]
    ladder = [shape for shape in ladder if shape.pp <= q.model.num_hidden_layers]
    t = table([replace(q, shape=shape) for shape in ladder])
    wanted = 1.0 if asked.kind != "closed" else min(asked.number, 16)
    enough = cost.most_sequences(t, t.input_len + t.output_len) >= min(wanted, t.slots[0])
    some = cost.most_sequences(t, t.input_len + t.output_len) >= 1
    for good in (enough, some):
        if good.any():
            return ladder[int(good.argmax())]
    return ladder[-1]

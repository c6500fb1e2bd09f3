"""One replica of a model on its devices as plain numbers: what a rank reads, multiplies, sends and holds.

    Question (names resolved) --setup--> Setup, a row of numbers --table--> Columns, which cost.py prices

Per rank, with tp ranks in p stages, of which `ranks` attend to sequences of their own (attention data parallel):

    attention weights   / (tp / ranks) / p          MLPs and experts   / tp / p (experts by tp or ep: the same bytes)
    KV heads            / min(tp / ranks, heads)    beyond that number ranks hold copies; a latent is held by all
    all-reduces         2 a layer, of hidden x 2 bytes a token
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np

from scalewright.inference.constants import Constants, Engine, Format
from scalewright.inference.counts import counts
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.hardware.topology import Level
from scalewright.spec.model import ModelSpec

FAMILIES = ("ampere", "hopper", "blackwell", "ada", "amd", "tpu")
LIKE = {"blackwell-ultra": "blackwell", "rubin": "blackwell", "volta": "ampere", "turing": "ampere"}
FAST = ("nvlink", "xgmi", "ici", "neuronlink")
HALF = 2.0  # bytes of an activation


@dataclass(frozen=True)
class Shape:
    """How one replica is split, and how many there are."""

    tp: int = 1
    pp: int = 1
    ep: int = 1  # tp ranks that share out whole experts; bytes and FLOPs are as with tp, so only launch lines differ
    replicas: int = 1
    attention_dp: int = 1  # groups of tp ranks that attend to sequences of their own
    prefill: int = 0  # replicas that only prefill, beside `replicas` that then only decode; 0: all do both

    @property
    def devices(self) -> int:
        """Of one replica."""
        return self.tp * self.pp

    @property
    def total(self) -> int:
        """All devices."""
        return self.devices * (self.replicas + self.prefill)

    @property
    def units(self) -> int:
        """Parts that serve by themselves: replicas, or all together where prefill is apart."""
        return 1 if self.prefill else self.replicas

    def dump(self) -> dict[str, int]:
        """The keys of `layout`."""
        return {"devices": self.total, **{key: int(value) for key, value in vars(self).items()}}


@dataclass(frozen=True)
class Speculation:
    """Guessed tokens that one pass checks (Leviathan et al. 2023, §3)."""

    tokens: int = 0  # guessed at a time: K
    accepted: float = 0.0  # of them, on average
    cost: float = 0.0  # of guessing one, beside a step of the model


@dataclass(frozen=True)
class Question:
    """What is asked, with every name resolved."""

    model: ModelSpec
    cluster: ClusterSpec
    engine: Engine
    weights: Format
    kv: Format
    shape: Shape
    input_len: float
    output_len: float
    older: bool = False  # a release before the engine's `modern`
    offline: bool = False  # a list of prompts in one process, no requests over HTTP
    prefix_hit: float = 0.0  # share of the input that is cached already
    speculation: Speculation = Speculation()
    sparse_keys: int = 0  # keys that a query attends to at most, where an indexer chooses them (DeepSeek-V3.2)
    slots: int | None = None
    memory: float | None = None
    chunk: int | None = None
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setup:
    """The numbers of one replica, per rank."""

    devices: float
    prefills: float  # replicas of this unit that only prefill, and those that decode
    decodes: float
    stages: float
    parts: float  # mixers and MLPs of a stage
    tp: float
    ranks: float
    block_bytes: float  # of the layers' weights, less routed experts
    expert_bytes: float
    hit: float  # the share of experts that one token uses
    block_flops: float  # of one token
    expert_flops: float
    expert_width: float  # hidden units of an expert on one rank
    head_bytes: float
    head_flops: float
    full_bytes: float  # KV of one token and sequence, layers without a window
    window_bytes: float
    window: float
    sparse: float
    state_bytes: float
    full_decode: float  # FLOPs of one query with one key
    window_decode: float
    full_prefill: float
    window_prefill: float
    token_bytes: float  # that a rank's all-reduce takes for one token
    reductions: float
    link: float
    hops: float  # latencies that a message between stages takes
    peak: float
    half_peak: float
    bandwidth: float
    input_len: float
    output_len: float
    prefix_hit: float
    guessed: float
    accepted: float
    guess_cost: float
    slots: float
    chunk: float
    capacity: float  # bytes that the engine takes
    weights: float  # bytes held
    activations: float
    reserve: float
    names: dict[str, str] = field(default_factory=dict)


class Columns:
    """Setups as arrays, one element each; `of(c, part)` are their constants."""

    def __init__(self, setups: Sequence[Setup]) -> None:
        self.setups = list(setups)
        for key in (f.name for f in fields(Setup) if f.name != "names"):
            setattr(self, key, np.array([getattr(s, key) for s in setups], dtype=float))

    def __len__(self) -> int:
        return len(self.setups)

    def __getattr__(self, name: str) -> np.ndarray:  # for type checkers: set in __init__
        raise AttributeError(name)

    @cached_property
    def _index(self) -> dict[str, tuple[list[str], np.ndarray]]:
        parts: dict[str, tuple[list[str], np.ndarray]] = {}
        for part in self.setups[0].names:
            names, index = np.unique([s.names[part] for s in self.setups], return_inverse=True)
            parts[part] = list(names), index
        return parts

    def take(self, rows: np.ndarray) -> Columns:
        """The columns of these rows."""
        return Columns([self.setups[row] for row in rows])

    def of(self, c: Constants, part: str) -> np.ndarray:
        """The constant of each setup for this part."""
        names, index = self._index[part]
        values: np.ndarray = np.array([c[name] for name in names])
        return np.asarray(values[index])


def setup(q: Question) -> Setup:
    """The numbers of a question's replica."""
    return Setup(
        names=_names(q), **{**_weights(q), **_attention(q), **_links(q), **_rates(q), **_request(q), **_room(q)}
    )


def _weights(q: Question) -> dict[str, float]:
    """Bytes and FLOPs of one rank's part of the matrices."""
    n, shape = counts(q.model), q.shape
    tp, pp = shape.tp, shape.pp
    heads_split = tp / shape.attention_dp
    attention = n.attention / heads_split + n.attention_whole
    ends = _bytes(q.weights, "all")
    block = (_bytes(q.weights, "linears") * (attention + n.mlp / tp) + HALF * n.rest) / pp
    expert = _bytes(q.weights, "experts") * n.experts / tp / pp
    head = ends * n.head / tp / pp  # one of the stages has it: an average over them
    lookup = 0.0 if n.tied else ends * n.embedding / tp / pp
    wide = q.model.moe.moe_intermediate_size if q.model.moe else 1
    return {
        "block_bytes": block, "expert_bytes": expert, "head_bytes": head, "weights": block + expert + head + lookup,
        "block_flops": 2 * (n.attention + n.attention_whole * heads_split + n.mlp) / tp / pp,
        "expert_flops": 2 * n.experts * n.top_k / n.num_experts / tp / pp, "head_flops": 2 * n.head / tp / pp,
        "hit": n.top_k / n.num_experts, "expert_width": wide / (tp / shape.ep), "parts": n.parts / pp,
    }  # fmt: skip


def _attention(q: Question) -> dict[str, float]:
    """Bytes of one rank's part of a sequence's caches, and FLOPs of a query with a key."""
    n, shape = counts(q.model), q.shape
    copies = 1.0 if n.latent else min(shape.tp / shape.attention_dp, float(n.kv_heads))
    share, ranks = q.kv.bits / 8 / (copies * shape.attention_dp) / shape.pp, shape.tp * shape.pp
    return {
        "full_bytes": share * n.full.elements, "window_bytes": share * n.windowed.elements, "window": n.window or 1,
        "sparse": q.sparse_keys or np.inf, "state_bytes": n.state_bytes / ranks,
        "full_decode": n.full.decode_flops / ranks, "window_decode": n.windowed.decode_flops / ranks,
        "full_prefill": n.full.prefill_flops / ranks, "window_prefill": n.windowed.prefill_flops / ranks,
    }  # fmt: skip


def _links(q: Question) -> dict[str, float]:
    """What ranks send each other for a token, and over what."""
    n, shape = counts(q.model), q.shape
    stages = _level(q.cluster, shape.tp * shape.pp)
    return {
        "token_bytes": HALF * n.hidden, "reductions": n.parts / shape.pp if shape.tp > 1 else 0,
        "link": _level(q.cluster, shape.tp).bytes_per_s, "hops": (shape.pp - 1) * stages.latency_s,
    }  # fmt: skip


def _rates(q: Question) -> dict[str, float]:
    """The device's published rates for these weights."""
    device = q.cluster.device
    peak, _ = q.weights.rate(device)
    half_peak = device.peak(device.half) or device.peak("fp32") or peak
    if q.engine.accumulates == "half" and device.kind == "gpu" and not device.peer_to_peer:
        peak, half_peak = 2 * peak, 2 * half_peak  # GeForce halves the rate of sums in 32 bits
    return {"peak": peak, "half_peak": half_peak, "bandwidth": _bandwidth(q.cluster)}


def _request(q: Question) -> dict[str, float]:
    """The lengths, the guesses, and the parts of the layout that aren't a rank's."""
    shape, guess = q.shape, q.speculation
    return {
        "input_len": q.input_len, "output_len": q.output_len, "prefix_hit": q.prefix_hit, "guessed": guess.tokens,
        "accepted": guess.accepted, "guess_cost": guess.cost, "devices": shape.devices, "prefills": shape.prefill,
        "decodes": shape.replicas if shape.prefill else 1, "stages": shape.pp, "tp": shape.tp,
        "ranks": shape.attention_dp,
    }  # fmt: skip


def _room(q: Question) -> dict[str, float]:
    """Memory beside weights and caches, and the engine's limits."""
    n, device, tp = counts(q.model), q.cluster.device, q.shape.tp
    slots, chunk = q.engine.on(device)
    slots, chunk = q.slots or slots, q.chunk or chunk
    widest = max(n.hidden, q.model.intermediate_size / tp)
    logits = slots * n.head / n.hidden / tp * 4
    return {
        "slots": slots, "chunk": chunk, "capacity": device.capacity_bytes * (q.memory or q.engine.memory),
        "activations": chunk * HALF * (4 * n.hidden + 2 * widest) + logits, "reserve": q.engine.reserve_gib * 2**30,
    }  # fmt: skip


def _names(q: Question) -> dict[str, str]:
    """The constant of each part that differs from setup to setup."""
    family, engine, link = _family(q.cluster), q.engine.name, _link(_level(q.cluster, q.shape.tp))
    return {
        "memory": f"memory.{family}", "compute": f"compute.{family}", "format": q.weights.rate(q.cluster.device)[1],
        "read": q.weights.read, "host": f"host.{engine}", "kept": f"kept.{engine}", "sequence": f"sequence.{engine}",
        "hidden": "hidden.never" if q.older or not q.engine.modern else "hidden.modern",
        "reduce": f"reduce.{link}", "joined": f"joined.{link}",
        "release": "release.older" if q.older else "release.modern",
        "door": "door.offline" if q.offline else "door.http",
        "front": "first.offline" if q.offline else "first.apart" if q.shape.prefill else "first.http",
        "products": "products.llama.cpp" if q.engine.splits == "layers" else "products.served",
    }  # fmt: skip


def _bytes(form: Format, part: str) -> float:
    """Bytes of one weight of this part: experts, linears (which hold experts), or all."""
    covered = {"experts": ("experts", "linears", "all"), "linears": ("linears", "all"), "all": ("all",)}[part]
    return form.bits / 8 if form.covers in covered else HALF


def _level(cluster: ClusterSpec, devices: int) -> Level:
    """The innermost level that joins so many devices."""
    levels = cluster.effective_levels()
    return next((level for level in levels if level.size is None or level.size >= devices), levels[-1])


def _link(level: Level) -> str:
    if level.name == "fabric":
        return "network"
    return "fast" if level.kind in FAST else "host"


def _family(cluster: ClusterSpec) -> str:
    name = cluster.device.resolved_family.name
    name = LIKE.get(name, name)
    return name if name in FAMILIES else "other"


def _bandwidth(cluster: ClusterSpec) -> float:
    """Bytes/s of a device's memory, as published or as measured."""
    inner = cluster.effective_levels()[0]
    return inner.bytes_per_s if inner.name == "device" else cluster.device.memory_bytes_per_s


def table(questions: Sequence[Question]) -> Columns:
    """The columns of these questions."""
    return Columns([setup(q) for q in questions])

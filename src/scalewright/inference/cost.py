"""Seconds of prefill and of a decode step, by a roofline, for a table of replicas.

    matrices   max( FLOPs / (peak x share),  bytes / (bandwidth x share) )      bytes of experts: those that are hit
    experts    1 - (1 - k / E)^T  of them are read by T tokens that choose k of E each; tokens of the same texts choose
               alike, so that T of them count as T^alike
    attention  max( KV bytes / (bandwidth x share),  FLOPs / (peak x share) )   decode reads what prefill has written
    between    all-reduces: latency + 2 (n - 1) / n x bytes / link
    host       a constant of the engine a step, one a sequence, one a layer; current engines prepare a step while the
               device works at the one before, which hides a share of the smaller of the two

With p stages a batch goes through as p parts: a token takes p stages' time, of a p-th of the batch.
Sources: the scaling book (jax-ml/scaling-book, inference); Pope et al. 2022 (arXiv 2211.05102).
"""

from __future__ import annotations

import numpy as np

from scalewright.inference.constants import Constants
from scalewright.inference.setup import Columns

Array = np.ndarray


def matrices(t: Columns, c: Constants, tokens: Array) -> Array:
    """Seconds of a stage's matrices over so many tokens."""
    flops = t.peak * t.of(c, "compute") * t.of(c, "format") * t.of(c, "products")
    rate = t.bandwidth * t.of(c, "memory") * t.of(c, "read")
    dense = np.maximum(t.block_flops * tokens / flops, t.block_bytes / rate)
    hit = 1 - (1 - t.hit) ** tokens ** c["experts.alike"]
    routed = np.maximum(
        t.expert_flops
        * tokens
        / (flops * c["experts.compute"] * t.expert_width / (t.expert_width + c["experts.width"])),
        t.expert_bytes * hit / (rate * c["experts.memory"]),
    )
    return np.asarray(dense + routed)


def head(t: Columns, c: Constants, tokens: Array) -> Array:
    """Seconds of the vocabulary's logits for so many tokens."""
    flops = t.half_peak * t.of(c, "compute")
    return np.asarray(np.maximum(t.head_flops * tokens / flops, t.head_bytes / (t.bandwidth * t.of(c, "memory"))))


def reductions(t: Columns, c: Constants, tokens: Array) -> Array:
    """Seconds of a stage's all-reduces over so many tokens."""
    share = 2 * (t.tp - 1) / t.tp
    rate = t.link * t.of(c, "joined")
    return np.asarray(t.reductions * (t.of(c, "reduce") + share * tokens * t.token_bytes / rate))


def cached_bytes(t: Columns, context: Array) -> Array:
    """Bytes of one sequence's cache on a rank."""
    return np.asarray(t.full_bytes * context + t.window_bytes * np.minimum(context, t.window) + t.state_bytes)


def decode_parts(t: Columns, c: Constants, batch: Array, context: Array) -> dict[str, Array]:
    """Seconds by part of a step that gives each of `batch` sequences of this length a token (or checks guesses)."""
    part = np.maximum(batch / t.stages, 1.0)
    checked = 1 + t.guessed
    tokens = part * checked
    seen, near = np.minimum(context, t.sparse), np.minimum(context, t.window)
    read = t.full_bytes * seen + t.window_bytes * near + 2 * t.state_bytes
    flops = (t.full_decode * seen + t.window_decode * near) * checked
    memory = t.bandwidth * t.of(c, "memory") * c["attention.memory"]
    attention = part * np.maximum(read / memory, flops / (t.half_peak * c["attention.compute"]))
    guessing = 1 + t.guessed * t.guess_cost
    device = {
        "weights": t.stages * (matrices(t, c, tokens) + head(t, c, tokens)),
        "kv_cache": t.stages * attention,
        "communication": t.stages * reductions(t, c, tokens) + t.hops,
    }
    host = t.of(c, "host") + batch * t.of(c, "sequence")
    hidden = t.of(c, "hidden") * np.minimum(host, sum(device.values()))
    device["host"] = t.stages * t.parts * c["part.launch"] + host - hidden
    return {name: seconds * guessing for name, seconds in device.items()}


def decode_s(t: Columns, c: Constants, batch: Array, context: Array) -> Array:
    """Seconds of a step of this batch."""
    return np.asarray(sum(decode_parts(t, c, batch, context).values()))


def tokens_per_step(t: Columns) -> Array:
    """Tokens that a sequence gains in a step."""
    return np.asarray(1 + t.accepted)


def prefill_s(t: Columns, c: Constants, batch: Array, apart: bool = False) -> Array:
    """Seconds that one prompt adds, of `batch` that are filled one after the other; `apart`: until its first token."""
    new = np.maximum(t.input_len * (1 - t.prefix_hit), np.minimum(t.input_len, 1))  # the last token is never cached
    old = t.input_len - new
    pairs = (
        _pairs(t.input_len, t.sparse) - _pairs(old, t.sparse),
        _pairs(t.input_len, t.window) - _pairs(old, t.window),
    )
    attention = t.full_prefill * pairs[0] + t.window_prefill * pairs[1]
    attention = attention / (t.half_peak * c["attention.compute"])
    pass_tokens = np.maximum(np.minimum(t.chunk, new if apart else new * np.maximum(batch, 1)), 1e-9)
    passes = new / pass_tokens
    stage = passes * (matrices(t, c, pass_tokens) + reductions(t, c, pass_tokens)) + attention
    stage += np.where(new > 0, head(t, c, np.ones(len(t))), 0) * np.minimum(passes, 1)
    stage += np.ceil(passes) * t.parts * c["part.launch"] if apart else passes * t.parts * c["part.launch"]
    parts = np.maximum(np.ceil(passes), 1.0) if apart else np.maximum(np.ceil(passes), batch)
    spread = (parts + t.stages - 1) / parts  # a pipeline that fills with the prompt's chunks, or with other prompts
    steps = 1.0 if apart else 0.5 + 0.5 / np.maximum(batch, 1)  # among others half of a pass is a step that they need
    return np.asarray(stage * spread + (t.hops if apart else 0) + passes * t.of(c, "host") * steps)


def _pairs(length: Array, most: Array) -> Array:
    """Causal pairs of query and key, each query with at most so many keys."""
    near = np.minimum(length, most)
    return np.where(np.isinf(most), length**2 / 2, near**2 / 2 + near * (length - near))


def pool_bytes(t: Columns) -> Array:
    """Bytes that are left for caches on a rank."""
    return np.asarray(t.capacity - t.weights - t.activations - t.reserve)


def most_sequences(t: Columns, context: Array) -> Array:
    """Sequences of this length whose caches fit a replica; at most the engine's slots."""
    # a rank's part of a sequence's cache already is a share of it where ranks attend to their own sequences
    fit = np.floor(np.maximum(pool_bytes(t), 0.0) / np.maximum(cached_bytes(t, context), 1.0))
    return np.asarray(np.minimum(fit, t.slots * np.maximum(t.ranks, 1)))

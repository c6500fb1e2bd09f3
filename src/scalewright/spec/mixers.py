"""Operators of token mixers other than attention: Mamba-2 and Gated DeltaNet.

    Mamba-2     z, x, B, C, dt = projections;  x, B, C = conv;  y = scan;  o(norm(y * silu(z)))
    DeltaNet    q, k, v, z, b, a = projections;  q, k, v = conv;  y = scan;  o(norm(y) * silu(z))

Both scans go through the sequence in chunks of Q tokens: inside a chunk they are matrix products, between
chunks a state of [N, P] (keys by values) per head is passed on. Tensor parallelism cuts heads.

    R rows  H heads  P channels of a head  N state  G groups  Q tokens of a chunk  K, V key, value dim
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from scalewright.spec.model import DeltaNet, Mamba, ModelSpec
from scalewright.spec.primitives import Operator, Sizes, ceil_div, matmul, norm, weights_of

FP32 = 4.0
STATE_PASSES = 4  # a chunk's state is written, summed up (read, written), and read: one kernel each


def mamba_operators(m: ModelSpec, mamba: Mamba, s: Sizes, fqn: str, layer: int) -> Iterator[Operator]:
    """A Mamba-2 mixer (Dao & Gu 2024 §7.1)."""
    d, heads, groups = m.hidden_size, ceil_div(mamba.num_heads, s.tp), ceil_div(mamba.groups, s.tp)
    inner, shared = heads * mamba.head_dim, groups * mamba.state_size
    for name, size in (("z", inner), ("x", inner), ("b", shared), ("c", shared), ("dt", heads)):
        yield matmul(m, s, f"{fqn}.{name}", layer, s.rows, size, d, keeps_out=True)
    yield _conv(m, s, fqn, layer, inner + 2 * shared, ("conv_x", "conv_b", "conv_c"))
    flops, moved = _mamba_scan(mamba, s, heads, groups)
    out = float(s.rows * inner * s.width)
    yield _scan(m, s, fqn, layer, flops, float(s.rows * (inner + 2 * shared + heads) * s.width), moved, out, out)
    yield _gated_norm(m, s, fqn, layer, inner)
    yield matmul(m, s, f"{fqn}.o", layer, s.rows, d, inner)


def deltanet_operators(m: ModelSpec, net: DeltaNet, s: Sizes, fqn: str, layer: int) -> Iterator[Operator]:
    """A Gated DeltaNet mixer (Yang et al. 2025 §3), with several value heads a key head as in Qwen3-Next."""
    d = m.hidden_size
    key_heads, heads = ceil_div(net.num_key_heads, s.tp), ceil_div(net.num_value_heads, s.tp)
    keys, values = key_heads * net.key_head_dim, heads * net.value_head_dim
    for name, size in (("q", keys), ("k", keys), ("v", values), ("z", values), ("b", heads), ("a", heads)):
        yield matmul(m, s, f"{fqn}.{name}", layer, s.rows, size, d, keeps_out=True)
    yield _conv(m, s, fqn, layer, 2 * keys + values, ("conv_q", "conv_k", "conv_v"))
    flops, moved = _delta_scan(net, s, heads)
    read = float(s.rows * (2 * keys + values + 2 * heads) * s.width)
    out = float(s.rows * values * s.width)
    inverse = float(s.rows * heads * net.chunk_size * s.width)  # (I + tril(b K K^T))^-1 of every chunk
    # the scan keeps its inputs, the output of the convolution, for its backward
    yield _scan(m, s, fqn, layer, flops, read, moved, out, read + out + inverse)
    yield _gated_norm(m, s, fqn, layer, values)
    yield matmul(m, s, f"{fqn}.o", layer, s.rows, d, values)


def _conv(m: ModelSpec, s: Sizes, fqn: str, layer: int, channels: int, names: Sequence[str]) -> Operator:
    """A depthwise convolution over tokens, and SiLU: an activation, bound by memory.

    It keeps nothing: the projections keep its input; its output is recomputed (mamba_ssm) or the scan's.
    """
    moved = float(s.rows * channels * s.width)
    weights = tuple(w for name in names for w in weights_of(m, f"{fqn}.{name}"))
    return Operator(f"{fqn}.conv", "activation", layer, weights, read=moved, written=moved)


def _gated_norm(m: ModelSpec, s: Sizes, fqn: str, layer: int, channels: int) -> Operator:
    """A norm of the gated output of the scan; output and gate are kept already."""
    plain = norm(m, s, f"{fqn}.norm", layer, s.rows, channels, keeps_in=False)
    return replace(plain, read=2 * plain.read)


def _scan(
    m: ModelSpec, s: Sizes, fqn: str, layer: int, flops: float, read: float, moved: float, out: float, saved: float
) -> Operator:
    """A scan in chunks; its backward has two products for each of the forward's. `moved`: bytes of states."""
    return Operator(
        f"{fqn}.scan", "scan", layer, weights_of(m, fqn),
        flops=flops, flops_causal=flops, flops_input=2 * flops,
        read=read + moved / 2, written=out + moved / 2, saved=saved,
    )  # fmt: skip


def _mamba_scan(mamba: Mamba, s: Sizes, heads: int, groups: int) -> tuple[float, float]:
    """FLOPs and bytes of states of Dao & Gu 2024 §6.2: four products of every chunk.

    C B^T (a group): 2 Q N   its product with x: 2 Q P   states B^T x: 2 N P   C times the states: 2 N P
    a token, each for every head; the masked half of a chunk is computed too.
    """
    q, n, p = mamba.chunk_size, mamba.state_size, mamba.head_dim
    flops = s.rows * (groups * 2.0 * q * n + heads * (2.0 * q * p + 4.0 * n * p))
    scores = groups * q * 2 * FP32  # C B^T is written, and read for all heads of its group
    return flops, s.rows * (STATE_PASSES * heads * n * p * FP32 / q + scores)


def _delta_scan(net: DeltaNet, s: Sizes, heads: int) -> tuple[float, float]:
    """FLOPs and bytes of states of Yang et al. 2024 §3.2 (the chunks' UT transform), a token and head.

    K K^T, W = T K, Q K^T: 2 C K each   T by substitution: C² / 3   U = T V, scores times values: 2 C V each
    W S, Q S, K^T of the corrected values: 2 K V each
    """
    c, k, v = net.chunk_size, net.key_head_dim, net.value_head_dim
    flops = s.rows * heads * (6.0 * c * k + 4.0 * c * v + 6.0 * k * v + c * c / 3.0)
    rewritten = 2 * (k + v) * s.width  # W and U, written and read
    return flops, s.rows * heads * (2 * k * v * s.width / c + rewritten)

"""Attention by hand: what its cache holds, what it moves, and where a token stands.

    KV cache of a token    2 L kv_heads head_dim        numbers; MLA: L (latent + rope) (DeepSeek-V2 2024 §2.1)
    scores                 a s²                         numbers of a layer, where they are stored
    materialised           4 s d + 4 s²                 numbers that a head moves: q k v o, scores twice, shares twice
    tiled                  2 s d + 3 s d ceil(4 s d / M)    k v once, q and o for each tile; M numbers on the chip
                                                        Dao et al. 2022, algorithms 0 and 1
    RoPE                   2 pi theta^(2 i / d)         tokens of a turn of pair i              Su et al. 2021 §3.2.2
    NTK-aware theta        theta f^(d / (d - 2))        the longest wavelength f times as long, the shortest the same
    ALiBi                  2^(-8 (h + 1) / a)           slope of head h of a, a power of two    Press et al. 2022 §3

s tokens, d numbers of a head, a heads, L layers.
"""

from __future__ import annotations

from math import ceil, log, pi

from scalewright.spec.model import ModelSpec


def kv_bytes(model: ModelSpec, tokens: float = 1.0, element: float = 2.0) -> float:
    """Bytes of the KV cache of so many tokens, windows and states left out."""
    from scalewright.inference.counts import counts

    return counts(model).kv_elements * tokens * element


def kv_bytes_of_heads(layers: int, kv_heads: int, head_dim: int, tokens: float = 1.0, element: float = 2.0) -> float:
    """The same by hand: keys and values of `kv_heads` heads in every layer."""
    return 2.0 * layers * kv_heads * head_dim * tokens * element


def score_bytes(heads: int, seq_len: int, sequences: int = 1, element: float = 2.0) -> float:
    """Bytes of one layer's scores where they reach memory: a s² for each sequence."""
    return heads * float(seq_len) ** 2 * sequences * element


def materialised_bytes(seq_len: int, head_dim: int, heads: int = 1, element: float = 2.0) -> float:
    """Bytes that attention moves when scores and their softmax go through memory (Dao et al. 2022, algorithm 0)."""
    return heads * element * (4.0 * seq_len * head_dim + 4.0 * seq_len**2)


def tiled_bytes(seq_len: int, head_dim: int, chip_bytes: float, heads: int = 1, element: float = 2.0) -> float:
    """Bytes that FlashAttention moves with `chip_bytes` for a tile (Dao et al. 2022, algorithm 1)."""
    whole = float(seq_len) * head_dim
    return heads * element * (2 * whole + 3 * whole * ceil(4 * whole * element / chip_bytes))


def io_saving(seq_len: int, head_dim: int, chip_bytes: float) -> float:
    """How many times fewer bytes a tiled attention moves than a materialised one."""
    return materialised_bytes(seq_len, head_dim) / tiled_bytes(seq_len, head_dim, chip_bytes)


def rope_wavelength(pair: int, head_dim: int, theta: float = 10_000.0) -> float:
    """Tokens after which pair `pair` of a head, from 0 on, has turned once."""
    return float(2 * pi * theta ** (2 * pair / head_dim))


def rope_pairs_within(context: int, head_dim: int, theta: float = 10_000.0) -> int:
    """Pairs that turn at least once in `context` tokens: the others never saw all their angles in training."""
    turning = head_dim / 2 * log(context / (2 * pi)) / log(theta)
    return max(0, min(head_dim // 2, int(turning) + 1))


def ntk_theta(theta: float, factor: float, head_dim: int) -> float:
    """The theta at which the slowest pair turns `factor` times more slowly, and the fastest as before (NTK-aware)."""
    return float(theta * factor ** (head_dim / (head_dim - 2)))


def alibi_slope(head: int, heads: int) -> float:
    """What head `head`, from 0 on, subtracts from a score for each token of distance; `heads` a power of two."""
    return float(2.0 ** (-8 * (head + 1) / heads))

"""What a rank's blocks send over `cp`, as transfers (volumes.py).

    kind         forward, and what runs again      backward
    ring         c-1 messages of keys and values   c-1 of them, c-1 of gradients    Liu et al. 2023 §3
    allgather    a gather of all ranks'            a gather, a reduce-scatter       Dubey et al. 2024 §3.3.2
    ulysses      two all-to-alls of heads          two all-to-alls                  Jacobs et al. 2023 §3
                 (in latent attention three: values by themselves)

A message to the next rank is an all-to-all in which each rank sends to one. Papers count a ring's traffic in
keys and values alone, whatever the query heads are; Ulysses moves q, k, v and the output, 4 / c of a rank's
tokens where there are as many key-value heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from scalewright.spec.volumes import During, Number, Transfer


@dataclass(frozen=True)
class ContextRank:
    """One rank's numbers; scalars or columns. Bytes are of a micro-batch and a block."""

    cp: Number
    ring: Number  # which kind it is: 1 or 0
    allgather: Number
    ulysses: Number
    blocks: Number
    rerun: Number  # blocks whose forward runs again
    accumulation: Number
    key_value: Number  # keys and values of this rank's tokens
    apart: Number  # of these, values of another width than keys: Ulysses sends them by themselves
    query: Number  # its queries
    output: Number  # what it attended to
    repeats: Number  # of key-value heads, before Ulysses cuts them: `repeats`


def repeats(query_heads: Number, key_value_heads: Number, cp: Number) -> Number:
    """How often Ulysses repeats a rank's key-value heads, so that cp divides them: to cp, or to all."""
    fewer = np.where(np.mod(cp, key_value_heads) == 0, cp, query_heads) / key_value_heads
    return np.where(np.mod(key_value_heads, cp) == 0, 1, fewer)


def context_parallel(rank: ContextRank) -> Iterator[Transfer]:
    """Keys and values, or heads, of all micro-batches."""
    m, n, on = rank.accumulation, rank.blocks, rank.cp > 1
    forwards: tuple[tuple[During, Number], ...] = (("forward", n), ("recompute", rank.rerun), ("backward", n))
    for during, times in forwards:
        calls = times * m * on
        ring = calls * (rank.cp - 1) * rank.ring
        both = 2 if during == "backward" else 1
        yield Transfer("cp", "all_to_all", rank.key_value, ring * both, during, m)
        whole = rank.key_value * rank.cp
        yield Transfer("cp", "all_gather", whole, calls * rank.allgather, during, m)
        if during == "backward":
            yield Transfer("cp", "reduce_scatter", whole, calls * rank.allgather, during, m)
        heads = rank.query + rank.repeats * (rank.key_value - rank.apart)
        yield Transfer("cp", "all_to_all", heads, calls * rank.ulysses, during, m)
        values = rank.repeats * rank.apart
        yield Transfer("cp", "all_to_all", values, calls * rank.ulysses * (rank.apart > 0), during, m)
        yield Transfer("cp", "all_to_all", rank.output, calls * rank.ulysses, during, m)

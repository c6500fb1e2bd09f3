"""What a rank's layers of experts send over `ep` and `etp`, and for their balance, as transfers (volumes.py).

    axis   kind         bytes of a call                              forward, and again    backward
    ep     all_to_all   E counts: how many rows each expert gets     1                     -
           all_to_all   its rows, there and back                     2                     2
    etp    all_gather   etp E counts                                 1                     -
           all_to_all   etp times its rows, there and their sums     2                     2
    cp,    all_reduce   E counts a sequence: a balancing loss        1                     -
    tp     all_gather   the choices of whole sequences: a capacity   1                     -

(Lepikhin et al. 2020, arXiv 2006.16668 §3.2; with an expert's width cut, Singh et al. 2023, 2303.06318 §4.) A rank's
rows are its tokens, each top_k times: of ranks that share a row's tokens (tp, cp) each routes its part. An all-to-all
counts what is sent, the part for the rank itself too: exact for a rank's own tokens, whatever the routers choose, and
the mean over the ranks for those that come to it; exact, too, where tokens are spread evenly, as in a dry run.

With a capacity (GShard, Lepikhin et al. 2020 §3; Switch, Fedus et al. 2021, 2101.03961 eq. 3) an expert takes at most
C = ceil(factor k T / E) tokens of each sequence of T. Even loads lose nothing from a factor of 1 on; below that a rank
sends E C / (k T) of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from scalewright.spec.layout import Layout, RecomputeBudget
from scalewright.spec.model import ModelSpec, MoE
from scalewright.spec.volumes import COUNT, Number, Phases, Transfer


@dataclass(frozen=True)
class ExpertRank:
    """One rank's numbers; scalars or columns."""

    ep: Number
    etp: Number
    experts: Number  # of the model
    blocks: Number  # of the rank, with experts
    rerun: Number  # of these, whose forward runs again
    accumulation: Number
    rows: Number  # bytes of a micro-batch's rows in one block: hidden size, top_k times for each token
    tp: Number = 1
    cp: Number = 1
    balanced: Number = 0  # bytes of the tokens of each expert and sequence, which a balancing loss sums
    chosen: Number = 0  # bytes of the choices of whole sequences, which a capacity is counted by


def expert_parallel(rank: ExpertRank) -> Iterator[Transfer]:
    """Tokens to their experts and back, in all micro-batches."""
    m = rank.accumulation
    phases: Phases = (("forward", rank.blocks), ("recompute", rank.rerun))
    ep, etp = rank.ep > 1, rank.etp > 1
    for during, times in phases:
        calls = times * m
        yield Transfer("ep", "all_to_all", COUNT * rank.experts, calls * ep, during, m)
        yield Transfer("ep", "all_to_all", rank.rows, 2 * calls * ep, during, m)
        yield Transfer("etp", "all_gather", COUNT * rank.experts * rank.etp, calls * etp, during, m)
        yield Transfer("etp", "all_to_all", rank.rows * rank.etp, 2 * calls * etp, during, m)
    calls = 2 * rank.blocks * m
    yield Transfer("ep", "all_to_all", rank.rows, calls * ep, "backward", m)
    yield Transfer("etp", "all_to_all", rank.rows * rank.etp, calls * etp, "backward", m)
    yield from _sequences(rank)


def _sequences(rank: ExpertRank) -> Iterator[Transfer]:
    """What is counted by whole sequences, over the ranks that share them (train/balance.py, capacity.py)."""
    m, tp, cp = rank.accumulation, rank.tp > 1, rank.cp > 1
    phases: Phases = (("forward", rank.blocks), ("recompute", rank.rerun))
    for during, blocks in phases:
        summed, calls = blocks * m * (rank.balanced > 0), blocks * m * (rank.chosen > 0)
        yield Transfer("cp", "all_reduce", rank.balanced, summed * cp, during, m)
        yield Transfer("tp", "all_reduce", rank.balanced, summed * tp, during, m)
        yield Transfer("tp", "all_gather", rank.chosen / rank.cp, calls * tp, during, m)
        yield Transfer("cp", "all_gather", rank.chosen, calls * cp, during, m)


def overlaps_shared(model: ModelSpec, layout: Layout) -> bool:
    """Whether shared experts compute while rows travel (parallel/expert.py)."""
    shared = model.moe is not None and model.moe.shared_size > 0
    # a recomputation budget finds a block's products by their order
    return shared and layout.ep * layout.etp > 1 and not isinstance(layout.recompute, RecomputeBudget)


def capacity(factor: float, moe: MoE, tokens: int) -> int:
    """C: how many of a sequence's tokens an expert takes at most."""
    return ceil(factor * moe.top_k * tokens / moe.num_experts - 1e-9)


def kept_share(factor: float | None, moe: MoE | None, tokens: int) -> float:
    """The share of a rank's rows that experts take, where the loads are even; null: no capacity."""
    if factor is None or moe is None:
        return 1.0
    return min(1.0, capacity(factor, moe, tokens) * moe.num_experts / (moe.top_k * tokens))

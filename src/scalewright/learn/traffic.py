"""Numbers that a step sends by the papers, in closed form; `spec/volumes.py` counts them.

    data parallel     2 Psi, ZeRO-1 and 2: 2 Psi, ZeRO-3: 3 Psi            Rajbhandari et al. 2020 §7
    HSDP              Psi / n between the replicas of n shards             Zhao et al. 2023 §3.2.2
    tensor parallel   8 b s h (t - 1) / t a layer                          Narayanan et al. 2021 §3.2
    with sequence p.  the same: an all-reduce is a reduce-scatter          Korthikanti et al. 2022 §4.2.2
                      and an all-gather; 2 more gathers to keep less
    pipeline          b s h for each boundary, way and micro-batch         Narayanan et al. 2021 §3.2

Psi: parameters; b: sequences of a micro-batch, s: their tokens, h: hidden size, t: tensor-parallel ranks. All
are numbers, not bytes, that one rank sends. They count what passes on the wire: an all-reduce twice (it is a
reduce-scatter and an all-gather), and where a paper gives it, the share (n - 1) / n that isn't a rank's own.
"""

from __future__ import annotations

# How often a collective's tensor passes a rank, in the papers' ring algorithms, times (n - 1) / n.
PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1, "send": 1}


def ring_volume(kind: str, size: float, ranks: int) -> float:
    """The part that a ring's rank sends of a tensor of `size` (bytes or numbers), its own share left out.

    (n - 1) / n of it for each pass, two passes for an all-reduce; a broadcast or a message passes whole
    (Thakur et al. 2005; nccl-tests divides by the same to get its bus bandwidth).
    """
    if kind in ("broadcast", "send"):
        return size
    return PASSES[kind] * size * (ranks - 1) / ranks


def zero_volume(psi: float, stage: int, micro_batches: int = 1) -> float:
    """Numbers that data parallelism sends in a step, by ZeRO stage.

    Rajbhandari et al. 2020 §7.1-7.2 for one micro-batch: a reduce-scatter of gradients and an all-gather of
    parameters; stage 3 gathers for forward and backward. With more, stages 2 and 3 reduce after each, and
    stage 3 gathers for each.
    """
    return psi * {0: 2, 1: 2, 2: 1 + micro_batches, 3: 3 * micro_batches}[stage]


def replica_volume(psi: float, shards: int) -> float:
    """Numbers that HSDP all-reduces between replicas: a rank's own part (Zhao et al. 2023 §3.2.2)."""
    return 2 * psi / shards


def tensor_volume(b: int, s: int, h: int, tp: int, layers: int, gathered_again: bool = False) -> float:
    """Numbers that tensor parallelism sends for one micro-batch in `layers` blocks, with or without SP.

    Narayanan et al. 2021 §3.2: 4 all-reduces of b s h a layer. `gathered_again`: with the two all-gathers of
    the backward that let each rank keep its own part of the layer's inputs (Korthikanti et al. 2022 §4.2.2).
    """
    return layers * (8 + 2 * gathered_again) * b * s * h * (tp - 1) / tp


def pipeline_volume(b: int, s: int, h: int, micro_batches: int, boundaries: int = 1) -> int:
    """Numbers that a rank sends in a step over its stages' boundaries (Narayanan et al. 2021 §3.2).

    A rank in the middle of 1F1B has two: activations go down, gradients up. Each chunk of an interleaved
    schedule adds its own.
    """
    return boundaries * micro_batches * b * s * h

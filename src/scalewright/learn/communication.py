"""Numbers that a step sends by the papers, and seconds of collectives by alpha and beta.

    data parallel     2 Psi, ZeRO-1 and 2: 2 Psi, ZeRO-3: 3 Psi            Rajbhandari et al. 2020 §7
    HSDP              Psi / n between the replicas of n shards             Zhao et al. 2023 §3.2.2
    tensor parallel   8 b s h (t - 1) / t a layer                          Narayanan et al. 2021 §3.2
    with sequence p.  the same: an all-reduce is a reduce-scatter          Korthikanti et al. 2022 §4.2.2
                      and an all-gather; 2 more gathers to keep less
    pipeline          b s h for each boundary, way and micro-batch         Narayanan et al. 2021 §3.2
    context parallel  ring: 3 times the other ranks' keys and values       Liu et al. 2023 §3
                      Ulysses: 8 b s h / c in all-to-alls                  Jacobs et al. 2023 §3.2
                      gather: the ring's, in a gather, one more, a scatter Dubey et al. 2024 §3.3.2
    expert parallel   4 k b s h a layer: dispatch, combine, gradients      Lepikhin et al. 2020 §3.2

    ring              (n-1) alpha + (n-1)/n · B / rate       gather, scatter; an all-reduce is both
    tree              2 log2 n (alpha + B / rate)            reduce and broadcast, not pipelined
    doubling          log2 n alpha + ...                     recursive doubling
    torus axis        B / two-way rate                       closed: both directions, (n-1)/n left out

Psi: parameters; b: sequences of a micro-batch, s: their tokens, h: hidden size, t: tensor-parallel ranks; B: the whole
tensor in bytes; rates are bytes/s one way unless said, delays seconds (Thakur et al. 2005; Rabenseifner 2004; scaling
book, part 3). What passes on the wire counts, an all-reduce twice, without the share (n - 1) / n that is a rank's own
where a paper leaves it out. Plans are priced by `spec/volumes.py` and `plan/cost/links.py`. Compute binds while

    alpha = peak / link rate             FLOPs per byte of the links, `roofline.ridge_point`
    data parallel, FSDP                  tokens a device      > alpha / axes
    tensor parallel                      ways                 < F · axes / alpha
    both                                 tokens a device      > alpha² / (Mx My F), X = sqrt(B N Mx / (F My))

F: width of the MLP, B: tokens of the batch, N: devices, X: FSDP ways; Mx, My: torus axes that each has.
(Austin et al., How To Scale Your Model, part 5, 16 bits, overlap as good as it gets; Hugging Face's playbook, appendix
A3.) On a torus the book's rates are an axis's both ways together, on GPUs one way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, log2, prod, sqrt

import numpy as np

from scalewright.learn.roofline import compute_seconds, matmul_flops, ridge_point, tensor_bytes

# How often a collective's tensor passes a rank, in the papers' ring algorithms, times (n - 1) / n.
PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1, "send": 1}


def ring_volume(kind: str, size: float, ranks: int) -> float:
    """The part that a ring's rank sends of a tensor of `size` (bytes or numbers), its own share left out.

    (n - 1) / n of it for each pass, two passes for an all-reduce; a broadcast or a message passes whole
    (Thakur et al. 2005; nccl-tests divides by the same to get its bus bandwidth).
    """
    return size if kind in ("broadcast", "send") else PASSES[kind] * size * (ranks - 1) / ranks


def zero_volume(psi: float, stage: int, micro_batches: int = 1) -> float:
    """Numbers that data parallelism sends in a step, by ZeRO stage.

    Rajbhandari et al. 2020 §7.1-7.2 for one micro-batch: a reduce-scatter of gradients and an all-gather of parameters;
    stage 3 gathers for forward and backward. With more, stages 2 and 3 reduce after each, and stage 3 gathers for each.
    """
    return psi * {0: 2, 1: 2, 2: 1 + micro_batches, 3: 3 * micro_batches}[stage]


def replica_volume(psi: float, shards: int) -> float:
    """Numbers that HSDP all-reduces between replicas: a rank's own part (Zhao et al. 2023 §3.2.2)."""
    return 2 * psi / shards


def outer_volume(psi: float, islands: int, inner_steps: int) -> float:
    """Numbers a step that islands send each other, all parameters every `inner_steps` (Douillard et al. 2023)."""
    return ring_volume("all_reduce", psi, islands) / inner_steps


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


def context_volume(b: int, s: int, h: int, cp: int, kind: str, kv_width: int | None = None) -> float:
    """Numbers that a rank sends over `cp` for one micro-batch in a block, forward and backward, less its own.

    `kv_width`: numbers of a token's keys (and of its values), null for as many as h. A ring sends them cp - 1
    times forward, again backward, and their gradients (Liu et al. 2023, arXiv 2310.01889 §3); gathered they
    are as many (Dubey et al. 2024, 2407.21783 §3.3.2). Ulysses exchanges q, k, v and the output, there and
    back: 4 b s h / cp each way where kv_width is h (Jacobs et al. 2023, 2309.14509 §3.2).
    """
    width, tokens = kv_width or h, b * s / cp
    if kind == "ulysses":
        return 2 * tokens * (2 * h + 2 * width) * (cp - 1) / cp
    return 3 * (cp - 1) * tokens * 2 * width


def expert_volume(b: int, s: int, h: int, top_k: int, copies: int = 1) -> int:
    """Numbers that a rank sends for its tokens in a layer of experts, forward and backward, its own part too.

    Dispatch and combine: each token to top_k experts and back, and so its gradient (Lepikhin et al. 2020,
    arXiv 2006.16668 §3.2). `copies`: ranks that share an expert by its width, each of which gets every row,
    and sends back its part of the sum (Singh et al. 2023, 2303.06318 §4).
    """
    return 4 * copies * top_k * b * s * h


def ring_seconds(kind: str, size: float, ranks: int, bytes_per_s: float = inf, hop_seconds: float = 0.0) -> float:
    """Seconds of a ring's all_gather, reduce_scatter or all_reduce of a tensor of `size` bytes.

    With an endless rate it is the delays alone, n - 1 hops each way.
    """
    from scalewright.plan.cost.links import Wires, all_reduce, gather

    unit = np.ones(1)
    rate, delay = bytes_per_s * unit, hop_seconds * unit
    links = Wires(ranks * unit, fast=rate, fast_delay=delay, slow=rate, slow_delay=delay, start=0.0, hop=hop_seconds)
    price = all_reduce if kind == "all_reduce" else gather
    return float(price(size * unit, ranks * unit, unit, links)[0])


def bus_bandwidth(kind: str, algorithm_bandwidth: float, ranks: int) -> float:
    """The rate at which links were used, from tensor bytes / seconds (nccl-tests, PERFORMANCE.md)."""
    return ring_volume(kind, algorithm_bandwidth, ranks)


def torus_gather_seconds(size: float, ways: int, bytes_per_s: float, wraps: bool = True) -> float:
    """Seconds of an all-gather to `size` bytes over one axis of a torus; `bytes_per_s` of one link, one way.

    Closed, pieces go both ways round, and the book leaves out (n-1)/n. Open, the end's piece has all n - 1
    hops before it, one way.
    """
    return size / (2 * bytes_per_s) if wraps else ring_seconds("all_gather", size, ways, bytes_per_s)


def torus_delay_seconds(ways: int, hop_seconds: float, wraps: bool = True) -> float:
    """The delay of a gather of next to nothing: hops to the farthest rank of the axis."""
    return ways / 2 * hop_seconds if wraps else ring_delay_seconds(ways, hop_seconds)


def torus_all_to_all_seconds(size: float, axes: Sequence[int], two_way_bytes_per_s: float) -> float:
    """Seconds of an all-to-all of `size` bytes in all on a closed torus: B longest / (4 N · two-way rate)."""
    return size * max(axes) / (4 * prod(axes) * two_way_bytes_per_s)


def latency_bound_bytes(bytes_per_s: float, hop_seconds: float, ways: int = 1) -> float:
    """Bytes under which a ring of `ways` waits more for delays than for links (scaling book, parts 3, 7)."""
    return bytes_per_s * hop_seconds * ways


@dataclass(frozen=True)
class TwoLevels:
    """Bytes of the whole tensor per second in each phase of a gather in two levels."""

    inside: float
    across: float

    @property
    def inside_binds(self) -> bool:
        """Whether the phase inside the nodes is the slower one."""
        return self.inside < self.across


def two_level_gather(
    devices_per_node: int, device_bytes_per_s: float, nodes: int, node_bytes_per_s: float
) -> TwoLevels:
    """An all-gather inside nodes and across: each level has n / (n-1) of its rate (scaling book, part 12).

    `device_bytes_per_s`: one device's rate inside its node; `node_bytes_per_s`: a whole node's to the others.
    """
    inside = 1 / ring_seconds("all_gather", 1.0, devices_per_node, device_bytes_per_s)
    return TwoLevels(inside, 1 / ring_seconds("all_gather", 1.0, nodes, node_bytes_per_s))


def tree_all_reduce_seconds(size: float, ranks: int, hop_seconds: float, bytes_per_s: float) -> float:
    """Seconds of a binomial tree's reduce and broadcast: 2 log2 n (alpha + B / rate), nothing pipelined."""
    return 2 * log2(ranks) * (hop_seconds + size / bytes_per_s)


def ring_delay_seconds(ranks: int, hop_seconds: float) -> float:
    """The delays of a ring's gather: n - 1 hops."""
    return ring_seconds("all_gather", 1.0, ranks, hop_seconds=hop_seconds)


def doubling_delay_seconds(ranks: int, hop_seconds: float) -> float:
    """The delays of recursive doubling: log2 n exchanges."""
    return log2(ranks) * hop_seconds


def zero3_extra_gathers(layers: int) -> int:
    """All-gathers of a step that ZeRO-3 adds to ZeRO-2's one: 2 L - 1, forward and backward of each layer.

    The last layer's is still there when its backward begins (Hugging Face's playbook).
    """
    return 2 * layers - 1


def data_parallel_batch(alpha: float, devices: int = 1, axes: int = 1) -> float:
    """Tokens of a batch below which data parallelism or FSDP waits for links; for one device, its floor."""
    return alpha / axes * devices


def data_parallel_devices(tokens: float, alpha: float, axes: int = 1) -> float:
    """Devices to which a batch can be spread before the links bind."""
    return tokens / data_parallel_batch(alpha, axes=axes)


def tensor_parallel_limit(width: float, alpha: float, axes: int = 1) -> float:
    """Ways of tensor parallelism beyond which an MLP of that width waits for its links."""
    return width * axes / alpha


def tensor_parallel_limit_across(width: float, alpha_across: float, devices_per_node: int) -> float:
    """The same over exactly two nodes: F > alpha (Y - devices of a node) (scaling book, part 12)."""
    return width / alpha_across + devices_per_node


def tensor_parallel_width(ways: float, alpha: float, axes: int = 1) -> float:
    """The MLP's width from which so many ways are still bound by compute."""
    return ways * alpha / axes


def mixed_batch(width: float, alpha: float, devices: int = 1, axes: int = 2) -> float:
    """Tokens of a batch below which FSDP and tensor parallelism together wait for links, at the best split.

    `axes`: Mx · My, 2 for a torus with three axes.
    """
    return devices * alpha**2 / (axes * width)


def mixed_is_compute_bound(tokens: float, width: float, alpha: float, devices: int, axes: int = 2) -> bool:
    """Whether a batch is above `mixed_batch`."""
    return tokens > mixed_batch(width, alpha, devices, axes)


def best_fsdp_ways(tokens: float, devices: int, width: float, fsdp_axes: int = 2, tensor_axes: int = 1) -> float:
    """FSDP ways X at which both kinds of traffic take equally long: sqrt(B N Mx / (F My))."""
    return sqrt(tokens * devices / width * fsdp_axes / tensor_axes)


@dataclass(frozen=True)
class Contraction:
    """x [B, D] times Y [D over X, F]: gather Y and multiply, or multiply parts and all-reduce the result."""

    batch_to_gather: float  # tokens above which gathering first is bound by compute
    contraction_to_reduce: float  # D above which, at a large batch, reducing is faster than gathering
    ways_to_reduce: float  # X below which reducing is bound by compute


def contraction(alpha: float, size: float) -> Contraction:
    """When to gather and when to reduce; `size` is the contracted D (scaling book, part 3, question 4).

    Gathering moves 2 D F bytes beside 2 B D F FLOPs, reducing 4 B F bytes beside 2 B D F / X FLOPs.
    """
    return Contraction(alpha, 2 * alpha, size / (2 * alpha))


def gather_over_scatter(rows: float, contracted: float, out: float) -> float:
    """Bytes of gathering A [rows, contracted] first, over those of scattering the sum [rows, out] after."""
    return tensor_bytes((rows, contracted), 2) / tensor_bytes((rows, out), 2)


@dataclass(frozen=True)
class LayerTimes:
    """Seconds of one MLP's forward, and of gathering its weights meanwhile."""

    compute: float
    gather: float


def fsdp_layer_times(
    tokens: float, hidden: int, width: int, devices: int, peak: float, bytes_per_s: float, axes: int = 1
) -> LayerTimes:
    """An MLP of two matrices under FSDP: 4 B D F / (X C) of math beside gathers of 4 D F / (W axes).

    Weights in 16 bits; `bytes_per_s` of one axis of the torus, both ways (scaling book, part 5).
    """
    flops, gathered = 2 * matmul_flops(tokens, hidden, width) / devices, 2 * tensor_bytes((hidden, width), 2)
    return LayerTimes(compute_seconds(flops, peak), gathered / (bytes_per_s * axes))


def zero3_gather_over_compute(
    seq_len: int, micro_batch: int, ranks: int, peak: float, bytes_per_s: float, element: float = 2.0
) -> float:
    """ZeRO-3: time to gather a block's weights over the time of its forward: alpha (n-1)/n · bytes / (2 b s).

    The playbook prints it without the bytes of an element, as if rates were of numbers: `element=1`.
    """
    tokens = seq_len * micro_batch
    return element * ridge_point(peak, bytes_per_s) * (ranks - 1) / ranks / (2 * tokens)


def pipeline_send_over_compute(
    hidden: int, layers: int, peak: float, bytes_per_s: float, element: float = 2.0
) -> float:
    """Time to send a token's activations over the next stage's forward: alpha · bytes / (32 h layers).

    A layer has 16 h² parameters here (an MLP of three matrices of 4 h), as the playbook counts; it prints
    the ratio without the bytes of an element: `element=1`.
    """
    return element * hidden * ridge_point(peak, bytes_per_s) / (2 * 16 * hidden**2 * layers)


def world_size(ways: Mapping[str, int]) -> int:
    """Devices of a mesh: the product of its axes' sizes."""
    return prod(ways.values())

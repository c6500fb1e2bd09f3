"""When communication binds: the batch, width and ways at which a sharding stops being bound by compute.

    alpha = peak / link rate             FLOPs per byte of the links, `roofline.ridge_point`
    data parallel, FSDP                  tokens a device      > alpha / axes
    tensor parallel                      ways                 < F · axes / alpha
    both                                 tokens a device      > alpha² / (Mx My F), X = sqrt(B N Mx / (F My))

F: width of the MLP, B: tokens of the batch, N: devices, X: FSDP ways; Mx, My: torus axes that each has.
Austin et al., How To Scale Your Model, part 5 (16 bits; overlap as good as it gets); Hugging Face's
playbook, appendix A3. On a torus the book's rates are an axis's both ways together, on GPUs one way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod, sqrt

from scalewright.learn.roofline import compute_seconds, matmul_flops, ridge_point, tensor_bytes


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
    flops = 2 * matmul_flops(tokens, hidden, width) / devices
    gathered = 2 * tensor_bytes((hidden, width), 2)
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

"""A mixture of experts in place of an MLP: a router sends every token to top_k of E small MLPs.

    x [B,T,D] -> rows [N,D] --router--> experts [N,k], weights [N,k]
                  |  sorted by expert                                    token 0 -> 2, 0     rows  0 1 | 1 | 0
                  v                                                      token 1 -> 0, 1     expert  0 | 1 | 2
              rows [Nk,D] --experts--> [Nk,D] --back in order, weighted, summed over k--> [N,D]  (+ shared(x))

(Shazeer et al. 2017, arXiv 1701.06538 §2; Fedus et al. 2021, 2101.03961 §2; DeepSeek-AI 2024, 2412.19437 §2.1.2.) An
expert takes as many tokens as are sent to it, unless training limits them (train/capacity.py). With `weigh_input`
(Llama 4) it gives f(w x) in place of w f(x). Devices, ranks and groups appear nowhere: expert parallelism wraps the
forward of `experts`, and of the whole where some are shared, tensor parallelism `routed` and `shared`.

    B batch  T tokens  N = B T  D hidden  E experts  k experts of a token  F hidden units of an expert
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scalewright.model.attend import costs_by_shape, even_rows
from scalewright.model.mlp import MLP, hidden_units
from scalewright.model.router import Choice, Kept, Router, tally
from scalewright.model.torch_private import grouped_mm
from scalewright.spec.model import ModelSpec

VECTORS = 32  # numbers: two of the widest vectors


class MoE(nn.Module):
    """x [B, T, D] -> [B, T, D]."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        moe = spec.moe
        assert moe is not None, "a layer of a dense model"
        self.router, self.weigh_input = Router(spec, moe), moe.weigh_input
        self.experts = Experts(spec, moe.num_experts, moe.moe_intermediate_size)
        self.shared = MLP(spec, moe.shared_size) if moe.shared_size else None
        self.shared_gate = nn.Linear(spec.hidden_size, 1, bias=False) if moe.shared_gate else None
        # What training sets; both are given each choice, and its rows B.
        self.watch: Callable[[Choice, int], None] | None = None  # balancing
        self.limit: Callable[[Choice, int], Kept | None] | None = None  # capacity

    def forward(self, x: Tensor) -> Tensor:
        out = self.routed(x)
        return out if self.shared is None else out + self.shared_output(x)

    def shared_output(self, x: Tensor) -> Tensor:
        """x [B, T, D] -> what the shared experts make of it, which takes every token."""
        assert self.shared is not None
        shared: Tensor = self.shared(x)
        return shared if self.shared_gate is None else torch.sigmoid(self.shared_gate(x)) * shared

    def routed(self, x: Tensor) -> Tensor:
        """x [B, T, D] -> the weighted sum of its tokens' experts [B, T, D]."""
        rows = x.flatten(0, -2)
        choice: Choice = self.router(rows)
        if self.watch is not None:
            self.watch(choice, len(x))
        kept = None if self.limit is None else self.limit(choice, len(x))
        experts, counts = choice.experts, choice.counts
        if kept is not None:
            experts = experts.masked_fill(~kept.slots, len(counts))  # behind all others
            counts = tally(experts, len(counts) + 1)[:-1]
        order = experts.flatten().argsort(stable=True)  # of (token, slot) pairs, by expert
        number = len(order) if kept is None else on_host([counts.sum()[None]], [kept.most])[0][0]
        first, weights = order[:number], choice.weights.to(x.dtype)
        by_expert = rows[first // experts.shape[1]]
        if self.weigh_input:
            by_expert = by_expert * weights.flatten()[first][:, None]
        done: Tensor = self.experts(by_expert, counts)
        if number < len(order):
            done = F.pad(done, (0, 0, 0, len(order) - number))  # what no expert takes gives nothing
        slots = torch.unflatten(done[inverse(order)], 0, experts.shape)  # [N, k, D]
        if not self.weigh_input:
            slots = slots * weights[..., None]
        return slots.sum(dim=1).view_as(x)


class Experts(nn.Module):
    """E MLPs as stacked matrices; those of expert e work on the e-th part of the rows."""

    def __init__(self, spec: ModelSpec, number: int, size: int) -> None:
        super().__init__()
        d, bias = spec.hidden_size, spec.mlp_bias
        self.gate = Stack(number, size, d, bias) if spec.gated else None
        self.up = Stack(number, size, d, bias)
        self.down = Stack(number, d, size, bias)
        self.kind = spec.mlp_type
        self.least_rows = 0  # that an expert with any takes: serving sets it, where a product of 1 row has other bits

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """rows [R, D], sorted by expert; counts int64 [E], which add up to R -> [R, D]."""
        aligned = all(size % 8 == 0 for size in self.up.weight.shape[1:])
        grouped = rows.is_cuda and rows.dtype == torch.bfloat16 and aligned  # what torch's grouped product takes
        sizes = None if grouped else on_host([counts], [len(rows)])[0]  # on a GPU, too: a copy that is waited for
        if sizes is None or not (costs_by_shape(rows) or self.least_rows):
            return self._apply_to(rows, counts, sizes)
        even = [even_rows(n) if costs_by_shape(rows) else max(n, self.least_rows) if n else 0 for n in sizes]
        if self.least_rows and self.up.weight.shape[1] % VECTORS:
            even[-1] += VECTORS  # where the end of a loop over all units lies, which other instructions compute
        zeros = rows.new_zeros(max(more - size for more, size in zip(even, sizes, strict=True)), rows.shape[1])
        parts = zip(torch.split(rows, sizes), even, strict=True)
        filled = torch.cat([x for part, size in parts for x in (part, zeros[: size - len(part)])])
        done = torch.split(self._apply_to(filled, counts, even), even)
        return torch.cat([part[:size] for part, size in zip(done, sizes, strict=True)])

    def _apply_to(self, rows: Tensor, counts: Tensor, sizes: list[int] | None) -> Tensor:
        """As `forward`; `sizes`: the rows of each expert on the host, null for the grouped kernel."""
        gate = None if self.gate is None else self.gate(rows, counts, sizes)
        hidden = hidden_units(self.kind, gate, self.up(rows, counts, sizes))
        return self.down(hidden, counts, sizes)  # type: ignore[no-any-return]


class Stack(nn.Module):
    """One matrix [out, in] for each expert: weight [E, out, in], bias [E, out]."""

    def __init__(self, number: int, out: int, in_: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(number, out, in_))
        self.bias = nn.Parameter(torch.zeros(number, out)) if bias else None
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, rows: Tensor, counts: Tensor, sizes: list[int] | None) -> Tensor:
        """rows [R, in] -> [R, out]; `sizes`: the counts on the host, null for the grouped kernel."""
        return self.apply_to(rows, counts, sizes, self.bias)

    def apply_to(self, rows: Tensor, counts: Tensor, sizes: list[int] | None, bias: Tensor | None) -> Tensor:
        """As `forward`, with another bias, or none."""
        if sizes is None:
            out: Tensor = grouped_mm(rows, self.weight.transpose(-2, -1), offs=counts.cumsum(0).to(torch.int32))
            return out if bias is None else out + bias.repeat_interleave(counts, dim=0, output_size=len(rows))
        biases = [None] * len(sizes) if bias is None else bias.unbind()
        parts = zip(torch.split(rows, sizes), self.weight.unbind(), biases, strict=True)
        return torch.cat([F.linear(part, weight, bias) for part, weight, bias in parts])


def on_host(counts: Sequence[Tensor], totals: Sequence[int]) -> list[list[int]]:
    """Counts [n] as numbers, in one copy that the host waits for.

    `totals`: what they add up to, which is all that a dry run has of them (dry_run/no_numbers.py).
    """
    numbers: list[int] = torch.cat(list(counts)).tolist()
    return [numbers[start:end] for start, end in pairwise([0, *accumulate(len(count) for count in counts)])]


def inverse(order: Tensor) -> Tensor:
    """Where each place of a permutation [n] comes from: x[order][inverse(order)] is x."""
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=order.device)
    return back

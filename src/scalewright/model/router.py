"""The router of a mixture of experts: which experts a token goes to, and with which weights.

    softmax    s = softmax(x W^T + b)     choose the k largest s        w = s
    sigmoid    s = sigmoid(x W^T)         choose the k largest s + b    w = s      (DeepSeek-V3 eq. 12-16)

    groups     experts are chosen among those of the best groups alone: a group counts as its largest s
               (softmax: DeepSeek-V2 §2.1.2), or as its two largest s + b (sigmoid: DeepSeek-V3 §2.1.2)
    normalized w / sum of w, over the k chosen, then times `routed_scale`; after a softmax that is the softmax
               of the k chosen logits (gpt-oss)

All in fp32, whatever the network computes in: a rounded score sends a token elsewhere. The sigmoid's b has no
gradient; it is moved by the load of the experts (train/balance.py).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scalewright.spec.model import ModelSpec, MoE


class Choice(NamedTuple):
    """What a router has decided for N tokens."""

    experts: Tensor  # int64 [N, k]
    weights: Tensor  # fp32 [N, k]
    logits: Tensor  # fp32 [N, E]
    scores: Tensor  # fp32 [N, E], before a bias
    counts: Tensor  # int64 [E]: tokens of each expert


class Kept(NamedTuple):
    """The part of a choice that experts of a limited capacity take."""

    slots: Tensor  # bool [N, k]
    most: int  # of the N k slots: as many as may be kept, for a dry run, which has no numbers


class Router(nn.Module):
    """rows [N, D] -> Choice."""

    def __init__(self, spec: ModelSpec, moe: MoE) -> None:
        super().__init__()
        self.moe = moe
        self.weight = nn.Parameter(torch.empty(moe.num_experts, spec.hidden_size))
        nn.init.normal_(self.weight, std=0.02)
        bias = nn.Parameter(torch.zeros(moe.num_experts), requires_grad=moe.score == "softmax")
        self.bias = bias if moe.router_bias else None

    def forward(self, rows: Tensor) -> Choice:
        softmax = self.moe.score == "softmax"
        bias = self.bias.float() if softmax and self.bias is not None else None
        logits = F.linear(rows.float(), self.weight.float(), bias)
        scores = logits.softmax(dim=-1) if softmax else logits.sigmoid()
        return self.choice(self.pick(scores), logits, scores)

    def pick(self, scores: Tensor) -> Tensor:
        """The experts [N, k] that scores [N, E] choose."""
        corrects = self.moe.score == "sigmoid"
        ranked = scores + self.bias.float() if corrects and self.bias is not None else scores
        ranked = _within_groups(ranked, self.moe) if self.moe.groups > 1 else ranked
        return ranked.topk(self.moe.top_k, dim=-1).indices

    def choice(self, experts: Tensor, logits: Tensor, scores: Tensor) -> Choice:
        """The choice of these experts [N, k], with their weights by the scores [N, E]."""
        moe = self.moe
        weights = scores.gather(-1, experts)
        if moe.normalize_top_k:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
        return Choice(experts, weights * moe.routed_scale, logits, scores, tally(experts, moe.num_experts))


def tally(experts: Tensor, number: int) -> Tensor:
    """How often each of so many experts is chosen: int64 [...] -> int64 [number]."""
    chosen = experts.flatten()
    counts = torch.zeros(number, dtype=torch.int64, device=chosen.device)
    return counts.scatter_add_(0, chosen, torch.ones_like(chosen))


def _within_groups(ranked: Tensor, moe: MoE) -> Tensor:
    """Scores [N, E] in which experts outside of a token's best groups come last."""
    groups = torch.unflatten(ranked, -1, (moe.groups, -1))
    if moe.score == "softmax":
        value = groups.amax(dim=-1)
    else:
        value = groups.topk(min(2, groups.shape[-1]), dim=-1).values.sum(dim=-1)
    best = value.topk(moe.top_groups, dim=-1).indices
    inside = torch.zeros_like(value, dtype=torch.bool).scatter_(-1, best, True)
    chosen: Tensor = groups.masked_fill(~inside[..., None], float("-inf"))
    return chosen.flatten(-2)

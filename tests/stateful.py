"""Models and optimizers of a user's own that keep state of every kind, for the tests of saves and resumes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Head(nn.Module):
    """One head of a block: a list of these lies in each block."""

    def __init__(self, dim: int, size: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(dim, size), nn.Linear(size, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))


class Block(nn.Module):
    """Heads side by side, a mean over what it has seen, and a count of its calls."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(dim)
        self.heads = nn.ModuleList(Head(dim, dim // heads) for _ in range(heads))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        normed = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return x + sum(head(normed) for head in self.heads)


class Stateful(nn.Module):
    """Buffers of many dtypes that change what is computed, a tied head, and (`scalar`) a 0-dim parameter."""

    def __init__(self, vocab: int = 67, dim: int = 24, layers: int = 3, scalar: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(Block(dim, 4) for _ in range(layers))
        self.head = nn.Linear(dim, vocab, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.ones(() if scalar else (1,)))
        self.register_buffer("level", torch.ones((), dtype=torch.float64))  # 0-dim, and not fp32
        self.register_buffer("mask", torch.ones(dim, dtype=torch.bool))
        self.register_buffer("turn", torch.ones(3, dtype=torch.complex128))
        self.register_buffer("history", None)  # made in the first forward

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) * self.mask.clone()  # it changes before the backward
        if self.training:
            self.level = self.level * 0.9 + float(tokens.float().mean()) / 670
            self.turn *= torch.polar(torch.ones((), dtype=torch.float64), self.level)
            self.mask[int(self.blocks[0].calls) % len(self.mask)] ^= True
            seen = tokens.new_full((1,), int(tokens.sum()) % 97)
            self.history = seen if self.history is None else torch.cat([self.history, seen])[-4:]
        for block in self.blocks:
            x = block(x)
        factor = self.scale * float(self.level) * (1 + 0.1 * float(self.turn.real.mean()))
        return self.head(x) * factor * (1 + 0.001 * float(self.history.float().mean()))


def build(**arguments: Any) -> nn.Module:
    """A model whose every buffer matters."""
    return Stateful(**arguments)


class Adaptive(torch.optim.Optimizer):
    """State of every kind: tensors of two dtypes, Python and tensor numbers, groups' values, entries.

    As schedule-free and Prodigy do, it keeps its counts (k, weight_sum) and its own factor (d) in the groups.
    """

    elementwise = True

    def __init__(self, params: Any, lr: float = 0.1, d0: float = 0.5, decay: float = 0.0) -> None:
        groups = {"lr": lr, "d0": d0, "d": d0, "k": 0, "weight_sum": 0.0, "betas": (0.9, 0.99), "decay": decay}
        super().__init__(params, groups)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """An update that depends on all that is kept."""
        entries: dict[Any, Any] = self.state
        entries["calls"] = entries.get("calls", 0) + 1
        for number, group in enumerate(self.param_groups):
            group["k"] += 1
            group["weight_sum"] += group["lr"] ** 2
            group["d"] = group["d"] * (1.01 + 0.01 * number)
            group["train_mode"] = group["k"] % 2 == 0
            group["recent"] = (group["k"], float(group["k"]) / 3)
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["average"] = torch.zeros_like(p)
                    state["signs"] = torch.zeros_like(p, dtype=torch.int8)
                    state["updates"] = 0
                    state["rate"] = torch.tensor([1.0], dtype=torch.float64)
                    state["first"] = int(p.dim())  # another number for each tensor
                state["updates"] += 1
                state["rate"] *= 0.99 + 0.001 * state["first"]
                state["average"].lerp_(p.grad, 1 - group["betas"][0])
                state["signs"].copy_((state["signs"].float() + p.grad.sign()).clamp(-3, 3))
                update = state["average"] + 1e-3 * state["signs"].float() + group["decay"] * p
                factor = group["lr"] * group["d"] * float(state["rate"]) / state["updates"] ** 0.5
                if group["train_mode"]:
                    factor *= 1.1
                p.add_(update, alpha=-factor * (1 + 0.01 * entries["calls"]))


class Local(Adaptive):
    """With a number that each rank works out from what it holds."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """An update by a factor of this rank's own."""
        super().step(closure)
        held = sum(p.numel() for group in self.param_groups for p in group["params"])
        for group in self.param_groups:
            group["held"] = held + group["k"]

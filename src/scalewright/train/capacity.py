"""Expert capacity: how many of a sequence's tokens an expert takes in training; the others go past it.

    C = ceil(factor k T / E)     (GShard, Lepikhin et al. 2020, arXiv 2006.16668 §3;
                                 Switch, Fedus et al. 2021, 2101.03961 eq. 3)

    token      0  1  2  3  4  5     of a sequence of T, C 2
    expert     a  b  a  a  b  a
    before     0  0  1  2  1  3     tokens before it that chose the same expert
    taken      x  x  x  .  x  .

As in both papers the first tokens are taken, and a slot beyond the capacity gives nothing: the token has its other
experts, whose weights stay what they are, or its residual stream alone. No token is dropped for a later one's sake,
which would show a causal model the future: not for a better score (Riquelme et al. 2021), nor for a first choice before
a second (GShard), so that all slots of a token are alike. What is counted is a whole sequence, as for the balancing
loss, and not a batch: no layout changes what is dropped. Where its tokens lie on several ranks of tp and cp, they
exchange their choices, 4 bytes each. Only training drops: evaluation and generation take every token.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from scalewright.model.router import Choice, Kept
from scalewright.parallel.functions import AxisGroup, axis_group, gathered
from scalewright.parallel.mesh import Mesh
from scalewright.spec.expert_volumes import capacity
from scalewright.spec.model import MoE
from scalewright.spec.zigzag import SequenceCut


@dataclass(frozen=True)
class Capacity:
    """Decides which slots experts take; `cut`: this rank's tokens of each row, null for all."""

    factor: float
    moe: MoE
    tp: AxisGroup | None = None
    cp: AxisGroup | None = None
    cut: SequenceCut | None = None
    _indices: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, factor: float, moe: MoE, mesh: Mesh, cut: SequenceCut | None) -> Capacity:
        """For a rank of a mesh."""
        tp, cp = (axis_group(mesh, axis) if mesh.size(axis) > 1 else None for axis in ("tp", "cp"))
        return cls(factor, moe, tp, cp, cut)

    def kept(self, choice: Choice, rows: int) -> Kept:
        """Of a choice for this rank's tokens of `rows` sequences. A collective over tp and cp."""
        experts = choice.experts.view(rows, -1, self.moe.top_k).to(torch.int32)
        parts = 1
        for group in (self.tp, self.cp):
            if group is not None:
                experts, parts = gathered(experts, 1, group), parts * group.size
        length = experts.shape[1]
        most = capacity(self.factor, self.moe, length)
        if self.cut is None:
            taken = within_capacity(experts, most)
        else:
            natural, mine = self._index(self.cut, length, experts.device)
            taken = within_capacity(experts[:, natural], most)[:, mine]  # the tokens of this rank of cp
        if self.tp is not None:
            count = taken.shape[1] // self.tp.size
            taken = taken.narrow(1, self.tp.index * count, count)
        slots = taken.reshape(choice.experts.shape)
        return Kept(slots, min(slots.numel(), rows * self.moe.num_experts * most // parts))

    def _index(self, cut: SequenceCut, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Where each token of a row lies among those gathered over cp; and which of a row's this rank has."""
        if length not in self._indices:
            came = np.concatenate([cut.tokens(length, rank) for rank in range(cut.ranks)])
            both = torch.from_numpy(np.argsort(came)), torch.from_numpy(cut.tokens(length))
            self._indices[length] = both[0].to(device), both[1].to(device)
        return self._indices[length]


def within_capacity(experts: Tensor, most: int) -> Tensor:
    """experts [B, T, k], of each token different ones -> bool [B, T, k]: the first `most` to choose it."""
    chosen = experts.flatten(1)  # by position
    by_expert, order = chosen.sort(dim=1, stable=True)
    before = torch.arange(chosen.shape[1], device=chosen.device) - torch.searchsorted(by_expert, by_expert)
    taken = torch.empty_like(chosen, dtype=torch.bool).scatter_(1, order, before < most)
    return taken.view_as(experts)

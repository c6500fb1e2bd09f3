"""What keeps experts busy alike: a loss, a bias, and counts that both are made from; what a capacity drops.

    loss     alpha sum over sequences of  T sum_i f_i P_i           f_i = E / (k T) tokens of expert i
                                                                    P_i = 1 / T sum of its scores
    z-loss   beta sum over tokens of logsumexp(logits)^2            of the router's logits
    bias     after each step   b_i += gamma sign(mean of loads - load_i)

(Fedus et al. 2021, arXiv 2101.03961 eq. 4, of each sequence as in DeepSeek-AI 2024, 2412.19437 eq. 17-20; Zoph et al.
2022, 2202.08906 eq. 5; Wang et al. 2024, 2408.15664.) A step divides the losses by its counted tokens, as it does the
main one. f counts a whole sequence's tokens, which may lie on several ranks of cp and tp: counts are summed over them;
P needn't be, since the loss is linear in it: each rank's part of P gives its part of the loss. So no layout changes it.
Loads are those of the global batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from scalewright.model.moe import MoE
from scalewright.model.router import Choice, Kept
from scalewright.model.torch_private import in_backward, not_compiled
from scalewright.parallel.collectives import all_sum, gather_json
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.stages import add_auxiliary, stages_of
from scalewright.parallel.weights import Weights
from scalewright.spec.model import ModelSpec
from scalewright.spec.run import BalanceSpec
from scalewright.train.capacity import Capacity


@dataclass
class Balance:
    """Follows every router of this rank's stages."""

    spec: BalanceSpec
    mesh: Mesh
    layers: int = 0  # of all stages
    loads: dict[int, Tensor] = field(default_factory=dict)  # int64 [E] of a layer, of this rank, in this step
    summed: dict[int, Tensor] = field(default_factory=dict)  # the same of the global batch (an island's)
    drops: dict[int, Tensor] = field(default_factory=dict)  # choices of this rank beyond a capacity

    @classmethod
    def of(cls, spec: BalanceSpec, mesh: Mesh, model: nn.Module) -> Balance:
        """Looks at every choice of the model's routers from now on, and limits it by the capacity."""
        balance = cls(spec, mesh)
        model_spec = getattr(next(iter(stages_of(model).values())), "spec", None)
        model_spec = model_spec if isinstance(model_spec, ModelSpec) else None
        moe = model_spec.moe if model_spec is not None else None
        if model_spec is not None:
            balance.layers = sum(map(model_spec.is_moe, range(model_spec.num_hidden_layers)))
            balance.layers += model_spec.mtp_layers if moe else 0
        for stage in stages_of(model).values():
            capacity = None
            if spec.capacity_factor is not None and moe:
                capacity = Capacity.of(spec.capacity_factor, moe, mesh, getattr(stage, "sequence_cut", None))
            for name, module in stage.named_modules():
                if isinstance(module, MoE):
                    owner, number, *_ = name.split(".")  # prediction modules go on from the last (spec/tensors.py)
                    layer = int(number) + (model_spec.num_hidden_layers if owner == "mtp" and model_spec else 0)
                    module.watch = _Watch(balance, stage, layer)
                    module.limit = None if capacity is None else _Limit(balance, capacity, layer)
        return balance

    def take(self, stage: nn.Module, layer: int, choice: Choice, rows: int, again: bool) -> None:
        """A choice of tokens of `rows` sequences, in training. `again`: where a backward runs the forward a second
        time. The losses' graph is made again, for the tensors that it keeps, and nothing is counted twice."""
        chosen = choice.experts.view(rows, -1)
        counts = torch.zeros(rows, choice.scores.shape[1], dtype=torch.int64, device=chosen.device)  # [B, E]
        counts.scatter_add_(1, chosen, torch.ones_like(chosen))
        if not again:
            load = counts.sum(dim=0)
            self.loads[layer] = self.loads[layer] + load if layer in self.loads else load
        if self.spec.loss:
            all_sum(all_sum(counts, self.mesh, "cp"), self.mesh, "tp")
        if self.spec.loss or self.spec.z_loss:
            part = self.loss(choice, counts)
            # each rank of tp has a part, where the step takes them for copies of one loss (train/step.py)
            more = self.mesh.size("tp") - 1
            part = part + more * part.detach() if more else part
            if not again:
                add_auxiliary(stage, part)

    def loss(self, choice: Choice, counts: Tensor) -> Tensor:
        """This rank's part of the losses; counts [B, E] of whole sequences."""
        scores = choice.scores
        if self.spec.loss:
            scores = scores / scores.sum(dim=-1, keepdim=True)  # sigmoids don't add up to 1
        experts, chosen = scores.shape[1], choice.experts.shape[1]
        tokens = counts.sum(dim=1, keepdim=True) / chosen
        often = experts / (chosen * tokens) * counts  # f [B, E]
        total = self.spec.loss * (often * torch.unflatten(scores, 0, (len(counts), -1)).sum(dim=1)).sum()
        return total + self.spec.z_loss * choice.logits.logsumexp(dim=-1).square().sum()

    @torch.no_grad()
    def count(self) -> Tensor:
        """After a step's backwards: sums the loads of all ranks; this rank's part of three columns. BUSIEST: tokens of
        a layer's busiest expert over the mean; ENTROPY: of the loads, over that of even ones; DROPPED: the share of the
        choices that are beyond a capacity. Means over layers."""
        layers = sorted(self.loads)
        if not layers:
            return torch.zeros(3, device=self.mesh.device)
        loads = torch.stack([self.loads[layer] for layer in layers])
        all_sum(all_sum(loads, self.mesh, "loss"), self.mesh, "tp")
        self.summed, self.loads = dict(zip(layers, loads, strict=True)), {}
        shares, experts = loads / loads.sum(dim=1, keepdim=True), loads.shape[1]
        busiest = shares.amax(dim=1) * experts
        entropy = torch.special.entr(shares).sum(dim=1) / math.log(max(experts, 2))
        copies = self.mesh.size(self.mesh.together) // self.mesh.size("pp")  # ranks that give the same
        none = torch.zeros((), dtype=torch.int64, device=loads.device)
        drops = torch.stack([self.drops.get(layer, none) for layer in layers])
        self.drops = {}
        dropped = (drops / loads.sum(dim=1)).sum() * copies  # each rank has its own
        return torch.stack([busiest.sum(), entropy.sum(), dropped]) / (self.layers * copies)

    def gathered(self) -> dict[int, list[int]]:
        """The last step's loads of all stages' layers, on every rank. A collective; the host waits for it."""
        coords = self.mesh.coords
        first = all(coords[axis] == 0 for axis in ("dp_replicate", "fsdp", "tp"))  # of those that are alike
        by_layer = {str(layer): loads.tolist() for layer, loads in self.summed.items()} if first else {}
        return {int(layer): loads for part in gather_json(by_layer, self.mesh) for layer, loads in part.items()}

    @torch.no_grad()
    def update(self, weights: Weights, keep: Tensor) -> None:
        """Moves the biases' masters by the global batch's loads; `keep`: whether the update is (bool)."""
        biases = {w.placement.tensor.layer: w for w in weights if w.name.endswith(".router.bias") and not w.trained}
        if not biases or not self.spec.bias_rate:
            return
        layers = sorted(biases)
        wide = torch.stack([self.summed[layer] for layer in layers]).float()
        moves = self.spec.bias_rate * keep * (wide.mean(dim=1, keepdim=True) - wide).sign()  # [layers, E]
        for layer, move in zip(layers, moves, strict=True):
            bias = biases[layer]
            (first,), (size,) = bias.box
            bias.true(bias.master).add_(move[first : first + size].to(bias.master.device))


@dataclass(frozen=True)
class _Watch:
    """What a router's layer calls with each choice."""

    balance: Balance
    stage: nn.Module
    layer: int

    @not_compiled()  # it keeps counts, and sums them over ranks
    def __call__(self, choice: Choice, rows: int) -> None:
        if torch.is_grad_enabled():
            self.balance.take(self.stage, self.layer, choice, rows, in_backward())


@dataclass(frozen=True)
class _Limit:
    """What a layer calls for the slots that its experts take; outside of training they take all."""

    balance: Balance
    capacity: Capacity
    layer: int

    @not_compiled()  # ranks exchange their choices
    def __call__(self, choice: Choice, rows: int) -> Kept | None:
        if not torch.is_grad_enabled():
            return None
        kept = self.capacity.kept(choice, rows)
        if not in_backward():
            drops, dropped = self.balance.drops, (~kept.slots).sum()
            drops[self.layer] = drops[self.layer] + dropped if self.layer in drops else dropped
        return kept

"""The optimizers, over this rank's local fp32 weights: plain tensors, whatever the layout.

    adamw   w -= lr * (m / (sqrt(v) + eps) + decay w)                Loshchilov & Hutter 2019, algorithm 2
    lion    w -= lr * (sign(b1 m + (1 - b1) g) + decay w)            Chen et al. 2023, algorithm 2
    sgd     w -= lr * (momentum of g + decay w)                      as torch.optim.SGD: an L2 penalty
    muon    w -= lr * (the momentum, made orthogonal + decay w)      muon.py: matrices; AdamW for the rest

adamw_bf16, adamw_8bit: AdamW with smaller states (packed_adamw.py). Tensors of one dimension (norms, biases)
are not decayed. `optimizer_state.py` has what a checkpoint takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from scalewright.model.torch_private import without_compiler, without_graph_breaks
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.offload_states import keep_states_on_host
from scalewright.parallel.weights import Weight, Weights
from scalewright.spec.errors import UserError
from scalewright.spec.optimizers import is_matrix
from scalewright.spec.run import OptimizerSpec, PythonRef
from scalewright.train.elementwise import check_made
from scalewright.train.muon import Muon, state_of
from scalewright.train.packed_adamw import PackedAdamW

Groups = list[dict[str, object]]
Load = Callable[[PythonRef], Callable[..., Any]]  # a user's function, its arguments bound (train/network.py)


class Lion(torch.optim.Optimizer):
    """EvoLved Sign Momentum (Chen et al. 2023, algorithm 2), for all tensors at once. Obeys `found_inf`, a scalar on
    the device: 1 leaves everything as it is, as torch's fused optimizers do."""

    elementwise = True
    _step_supports_amp_scaling = True
    found_inf: Tensor | None = None

    def __init__(self, params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            if not (params := [p for p in group["params"] if p.grad is not None]):
                continue
            grads = [p.grad for p in params]
            momenta = [state_of(self, p, "exp_avg") for p in params]
            first, second = group["betas"]
            decay = 1 - group["lr"] * group["weight_decay"]
            if self.found_inf is not None:
                skip = self.found_inf.to(torch.bool)
                decay = torch.where(skip, 1.0, decay)
                for grad, momentum in zip(grads, momenta, strict=True):  # lerp(m, m) is m, to the bit
                    torch.where(skip, momentum, grad, out=grad)
            torch._foreach_mul_(params, decay)
            update = torch._foreach_lerp(momenta, grads, 1 - first)
            torch._foreach_sign_(update)
            if self.found_inf is not None:
                torch._foreach_mul_(update, 1 - self.found_inf)
            torch._foreach_add_(params, update, alpha=-group["lr"])
            torch._foreach_lerp_(momenta, grads, 1 - second)


def build_optimizer(
    spec: OptimizerSpec | PythonRef, weights: Weights, load: Load, mesh: Mesh, half: bool = False, seed: int = 0
) -> torch.optim.Optimizer:
    """The run's optimizer over the local weights, wherever they lie. `half`: products of an update may be of bf16.
    `seed`: of stochastic rounding. A user's own is called with (groups, **arguments). It gets parts of tensors only if
    it is declared elementwise (`train/elementwise.py`); raises UserError."""
    with without_compiler():
        if isinstance(spec, OptimizerSpec) and spec.name == "muon":
            return _muon(spec, weights, mesh, half)
        optimizer = _build(spec, weights, load, seed)
    keep_states_on_host(optimizer)
    return optimizer


def _build(spec: OptimizerSpec | PythonRef, weights: Weights, load: Load, seed: int) -> torch.optim.Optimizer:
    trained = weights.trained()
    if isinstance(spec, PythonRef):
        try:
            made = load(spec)(_groups(trained))
        except (TypeError, ValueError) as error:
            how = "it gets the parameter groups, and the keys beside `python` by name"
            raise UserError(f"{spec.python} can't be called so: {error}", "optimizer", how) from error
        if not isinstance(made, torch.optim.Optimizer):
            how = "return a torch.optim.Optimizer"
            raise UserError(f"{spec.python} gave a {type(made).__name__}", "optimizer", how)
        if any(weight.box[1] != tuple(weight.placement.tensor.shape) for weight in trained):
            check_made(spec, made)
        return made
    groups = [group for group in _groups(trained, weight_decay=spec.weight_decay) if group["params"]]
    if spec.record.packed:
        return PackedAdamW(groups, trained, spec, seed)
    return BUILDERS[spec.record.name](groups, spec, _can_fuse(weights))


def _groups(weights: list[Weight], **decay: float) -> Groups:
    """The weights that are decayed, as stated or by the optimizer's default, and those that are not."""
    decayed = [weight.master for weight in weights if is_decayed(weight)]
    plain = [weight.master for weight in weights if not is_decayed(weight)]
    return [{"params": decayed, **decay}, {"params": plain, "weight_decay": 0.0}]


def is_decayed(weight: Weight) -> bool:
    """Vectors are not, nor are the biases of experts, which lie stacked in a matrix."""
    return len(weight.placement.tensor.shape) > 1 and not weight.name.endswith(".bias")


def _muon(spec: OptimizerSpec, weights: Weights, mesh: Mesh, half: bool) -> torch.optim.Optimizer:
    matrices = [w for w in weights.trained() if is_matrix(w.placement.tensor)]
    others = [w for w in weights.trained() if not is_matrix(w.placement.tensor)]
    adamw = _adamw(_groups(others, weight_decay=spec.weight_decay), spec, _can_fuse(weights))
    return Muon(matrices, mesh, adamw, spec, torch.bfloat16 if half else torch.float32)


def _adamw(groups: Groups, spec: OptimizerSpec, fused: bool) -> torch.optim.Optimizer:
    return without_graph_breaks(torch.optim.AdamW(groups, lr=spec.lr, betas=spec.betas, eps=spec.eps, fused=fused))


def _lion(groups: Groups, spec: OptimizerSpec, fused: bool) -> torch.optim.Optimizer:
    return Lion(groups, lr=spec.lr, betas=spec.betas)


def _sgd(groups: Groups, spec: OptimizerSpec, fused: bool) -> torch.optim.Optimizer:
    return without_graph_breaks(torch.optim.SGD(groups, lr=spec.lr, momentum=spec.kept_momentum, fused=fused))


# One for every other record of spec/optimizers.py: its states (fp32) and its update are these classes'.
BUILDERS = {"adamw": _adamw, "lion": _lion, "momentum": _sgd, "sgd": _sgd}


def _can_fuse(weights: Weights) -> bool:
    """Whether torch has its one-kernel update here: all weights on a CPU, a GPU or MPS."""
    return all(w.master.device.type in ("cpu", "cuda", "mps") for w in weights)


def set_rate(optimizer: torch.optim.Optimizer, base: float, rate: float) -> None:
    """Sets this step's learning rate, keeping the ratio of any group that has a rate of its own."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.setdefault("initial_lr", group["lr"]) / base


def base_rate(spec: OptimizerSpec | PythonRef, optimizer: torch.optim.Optimizer) -> float:
    """The highest learning rate: the spec's, or that of the user's first group."""
    return spec.lr if isinstance(spec, OptimizerSpec) else float(optimizer.param_groups[0]["lr"])

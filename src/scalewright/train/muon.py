"""Muon: the momentum of every matrix is made orthogonal before it is added (Jordan et al. 2024).

    m = momentum m + (1 - momentum) g          u = g + momentum (m - g): Nesterov
    o = an orthogonal matrix near u            w -= lr (0.2 sqrt(max(rows, columns)) o + decay w)
    o: u over its norm, then five times x = a x + b (x x^T) x + c (x x^T)^2 x

(Newton-Schulz; https://kellerjordan.github.io/posts/muon), which moves singular values to near 1. It needs the whole
matrix: parallel/owners.py. Experts of a stack are a matrix each; so is each of q, k and v. 0.2 sqrt(max) gives a
matrix's update the root mean square of AdamW's, so that both take one learning rate (Liu et al. 2025, arXiv 2502.16982,
eq. 4; `torch.optim.Muon(adjust_lr_fn="match_rms_adamw")`). AdamW updates the rest: embedding, head, norms, biases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from scalewright.parallel.mesh import Mesh
from scalewright.parallel.owners import Owners
from scalewright.parallel.weights import Weight
from scalewright.spec.optimizers import NEWTON_SCHULZ
from scalewright.spec.run import OptimizerSpec

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
LEAST_NORM = 1e-7
LIKE_ADAMW = 0.2  # the usual root mean square of AdamW's update, over its learning rate


class Muon(torch.optim.Optimizer):
    """Muon for matrices, over this rank's parts of them, and AdamW for the other groups. `dtype`: of the products and
    of what travels. Obeys `found_inf` where AdamW's kernel does: fused."""

    found_inf: Tensor | None = None

    def __init__(
        self,
        matrices: Sequence[Weight],
        mesh: Mesh,
        adamw: torch.optim.Optimizer,
        spec: OptimizerSpec,
        dtype: torch.dtype,
    ) -> None:
        group = {"params": [weight.master for weight in matrices], "weight_decay": spec.weight_decay, "lr": spec.lr}
        super().__init__([group, *adamw.param_groups], {"momentum": spec.kept_momentum})
        self.matrices, self.dtype, self.momentum = list(matrices), dtype, spec.kept_momentum
        self.owners = Owners([weight.placement for weight in matrices], mesh)
        shapes = (weight.placement.tensor.shape for weight in matrices)
        self.scales = [LIKE_ADAMW * math.sqrt(max(shape[-2:])) for shape in shapes]
        self.adamw = adamw
        adamw.state = self.state  # one place for all states
        self._step_supports_amp_scaling = all(group["fused"] for group in adamw.param_groups)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update of every weight. A collective of all ranks that share a matrix."""
        self._matrices(self.param_groups[0])
        if self.found_inf is not None:
            self.adamw.found_inf = self.found_inf  # type: ignore[attr-defined]
        self.adamw.step()

    def _matrices(self, group: Mapping[str, Any]) -> None:
        grads: list[Tensor] = [weight.master.grad for weight in self.matrices]  # type: ignore[misc]
        if not grads:
            return
        momenta = [state_of(self, weight.master, "momentum_buffer") for weight in self.matrices]
        rate, decay = -group["lr"], 1 - group["lr"] * group["weight_decay"]
        if self.found_inf is not None:
            skip = self.found_inf.to(torch.bool)
            rate, decay = torch.where(skip, 0.0, rate), torch.where(skip, 1.0, decay)
            for grad, momentum in zip(grads, momenta, strict=True):  # lerp(m, m) is m, to the bit
                torch.where(skip, momentum, grad, out=grad)
        torch._foreach_lerp_(momenta, grads, 1 - self.momentum)
        ahead = torch._foreach_lerp(grads, momenta, self.momentum)
        parts = [weight.true(u).to(self.dtype) for weight, u in zip(self.matrices, ahead, strict=True)]
        del ahead
        updates = self.owners.apply(parts, orthogonal)
        masters = [weight.true(weight.master) for weight in self.matrices]
        torch._foreach_mul_(masters, decay)
        for master, update, scale in zip(masters, updates, self.scales, strict=True):
            master.add_(update * (rate * scale))


def state_of(optimizer: torch.optim.Optimizer, parameter: Tensor, kind: str) -> Tensor:
    """A state of the parameter's shape; zeros before the first update."""
    state: dict[str, Tensor] = optimizer.state[parameter]
    if kind not in state:
        state[kind] = torch.zeros_like(parameter)
    return state[kind]


def orthogonal(matrix: Tensor) -> Tensor:
    """A matrix [..., rows, columns] with the same singular vectors and singular values of 0.7 to 1.2."""
    if not matrix.numel():
        return matrix
    a, b, c = COEFFICIENTS
    tall = matrix.shape[-2] > matrix.shape[-1]
    wide = matrix.mT if tall else matrix
    x = wide.reshape(-1, *wide.shape[-2:])
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=LEAST_NORM)
    for _ in range(NEWTON_SCHULZ):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    made: Tensor = x.view(wide.shape)
    return made.mT.contiguous() if tall else made

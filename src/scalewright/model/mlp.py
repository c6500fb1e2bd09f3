"""The feed-forward half of a block: D -> F -> D, gated or not.

    plain   down(act(up(x)))          gated   down(act(gate(x)) * up(x))     (Shazeer 2020, arXiv 2002.05202)

gate and up stay two matrices: a layout may then cut each by rows and a checkpoint name each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from scalewright.spec.model import MlpType, ModelSpec

_GELU_TANH = partial(F.gelu, approximate="tanh")

ACTIVATIONS: dict[MlpType, Callable[[Tensor], Tensor]] = {
    "swiglu": F.silu,
    "geglu": F.gelu,
    "geglu_tanh": _GELU_TANH,
    "gelu": F.gelu,
    "gelu_tanh": _GELU_TANH,
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}


class MLP(nn.Module):
    """x [..., D] -> [..., D] through F hidden units; `size`: F, null for the model's."""

    def __init__(self, spec: ModelSpec, size: int | None = None) -> None:
        super().__init__()
        d, f, bias = spec.hidden_size, size or spec.intermediate_size, spec.mlp_bias
        self.gate = nn.Linear(d, f, bias=bias) if spec.gated else None
        self.up = nn.Linear(d, f, bias=bias)
        self.down = nn.Linear(f, d, bias=bias)
        self.act = ACTIVATIONS[spec.mlp_type]

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            return self.down(self.act(self.up(x)))  # type: ignore[no-any-return]
        return self.down(self.act(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]

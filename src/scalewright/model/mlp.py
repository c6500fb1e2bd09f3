"""The feed-forward half of a block: D -> F -> D, gated or not.

    plain   down(act(up(x)))          gated   down(act(gate(x)) * up(x))     (Shazeer 2020, arXiv 2002.05202)

    swiglu_clamped    g = min(gate(x), 7), u = clip(up(x), -7, 7)            gpt-oss (openai/gpt-oss, gpt_oss/
                      down((u + 1) * g * sigmoid(1.702 g))                   torch/model.py: swiglu)

gate and up stay two matrices: a layout may then cut each by rows and a checkpoint name each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from scalewright.spec.model import MlpType, ModelSpec

_GELU_TANH = partial(F.gelu, approximate="tanh")
CLAMP, SLOPE = 7.0, 1.702  # of swiglu_clamped

# What a gate passes through, or the up projection of an MLP without one.
ACTIVATIONS: dict[MlpType, Callable[[Tensor], Tensor]] = {
    "swiglu": F.silu,
    "geglu": F.gelu,
    "geglu_tanh": _GELU_TANH,
    "gelu": F.gelu,
    "gelu_tanh": _GELU_TANH,
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}


def hidden_units(kind: MlpType, gate: Tensor | None, up: Tensor) -> Tensor:
    """The hidden units [..., F] from projections of that shape; `gate` is None in an MLP without one."""
    if kind == "swiglu_clamped":
        assert gate is not None
        gate, up = gate.clamp(max=CLAMP), up.clamp(-CLAMP, CLAMP)
        return (F.silu(gate * SLOPE) / SLOPE) * (up + 1.0)  # silu keeps one tensor for the backward, not two
    act = ACTIVATIONS[kind]
    return act(up) if gate is None else act(gate) * up


class MLP(nn.Module):
    """x [..., D] -> [..., D] through F hidden units; `size`: F, null for the model's."""

    def __init__(self, spec: ModelSpec, size: int | None = None) -> None:
        super().__init__()
        d, f, bias = spec.hidden_size, size or spec.intermediate_size, spec.mlp_bias
        self.gate = nn.Linear(d, f, bias=bias) if spec.gated else None
        self.up = nn.Linear(d, f, bias=bias)
        self.down = nn.Linear(f, d, bias=bias)
        self.kind, self.units = spec.mlp_type, f
        self.joined: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None  # both by one product: serving sets it

    def forward(self, x: Tensor) -> Tensor:
        if self.joined is not None:
            hidden = hidden_units(self.kind, *self.joined(x))
        else:
            hidden = hidden_units(self.kind, None if self.gate is None else self.gate(x), self.up(x))
        return self.down(hidden)  # type: ignore[no-any-return]

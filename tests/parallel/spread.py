"""Weights for tests of layouts, spread so wide that a part left out shows, and the model that has them."""

from __future__ import annotations

import torch
from torch import Tensor

from scalewright.model.decoder import Decoder
from scalewright.model.init import init_tensor, named_tensors
from scalewright.spec.model import ModelSpec
from scalewright.spec.tensors import TensorSpec


def values(t: TensorSpec, spec: ModelSpec) -> Tensor:
    """A whole tensor: larger than at a run's start, and norms and biases vary, too."""
    first = init_tensor(t, spec, 0)
    if first.dim() > 1:
        return first * 6.0
    noise = torch.Generator().manual_seed(len(t.name) * 1000 + max(0, t.layer))
    return first + 0.2 * torch.randn(t.shape, generator=noise)


def whole(spec: ModelSpec) -> Decoder:
    """The control: everything on one rank."""
    decoder = Decoder(spec)
    specs = named_tensors(spec)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            parameter.copy_(values(specs[name], spec))
    return decoder

"""First values of the weights: a pure function of (seed, canonical name), one whole tensor at a time.

    seed, "layers.3.mlp.up.weight" --blake2b--> 64-bit seed --CPU generator--> values, fp32

So the weights are equal on every layout: a rank makes one tensor whole, keeps its box and drops the rest.

    normal     N(0, 0.02)                  GPT-1 (Radford et al. 2018 §4.1), GPT-2, Megatron-LM
    residual   N(0, 0.02 / sqrt(2 L))      outputs into the residual stream, 2 L of them (GPT-2 §2.3)
    ones, zeros                            norms and biases

The draw is fp32 on the CPU whatever the model's dtype and device; only the copy into place converts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from scalewright.spec.errors import RunError
from scalewright.spec.model import ModelSpec
from scalewright.spec.tensors import TensorSpec, tensors

STANDARD_DEVIATION = 0.02


def tensor_seed(seed: int, name: str) -> int:
    """The 64-bit seed of one tensor."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def init_tensor(t: TensorSpec, model: ModelSpec, seed: int) -> Tensor:
    """The first values of one tensor, whole: fp32 on the CPU, of shape `t.shape`."""
    if t.init == "zeros":
        return torch.zeros(t.shape, device="cpu")
    if t.init == "ones":
        return torch.ones(t.shape, device="cpu")
    deviation = STANDARD_DEVIATION
    if t.init == "residual":
        deviation /= (2 * model.num_hidden_layers) ** 0.5
    generator = torch.Generator(device="cpu").manual_seed(tensor_seed(seed, t.name))
    return torch.empty(t.shape, device="cpu").normal_(0.0, deviation, generator=generator)


def init_box(
    t: TensorSpec, model: ModelSpec, seed: int, offsets: Sequence[int], sizes: Sequence[int]
) -> Tensor:
    """One box of the same values, as a tensor of its own (the whole is dropped)."""
    whole = init_tensor(t, model, seed)
    return whole[tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))].clone()


def named_tensors(model: ModelSpec) -> dict[str, TensorSpec]:
    """The tensor that each parameter name stands for; a tied head's name stands for the embedding."""
    specs = tensors(model, mtp=True)
    return {t.name: t for t in specs} | {t.tied_to: t for t in specs if t.tied_to is not None}


@torch.no_grad()
def initialize(module: nn.Module, model: ModelSpec, seed: int) -> None:
    """Fills a decoder (or a cut of one) in place, tensor by tensor; parameters are whole, plain tensors.

    On the meta device, call `module.to_empty(device=...)` first. Raises RunError for a parameter that the
    spec lacks.
    """
    by_name = named_tensors(model)
    for name, parameter in module.named_parameters():
        if name not in by_name:
            raise RunError(f"parameter '{name}' is not a tensor of model '{model.name}'")
        t = by_name[name]
        if parameter.shape != t.shape:
            raise RunError(f"parameter '{name}' is {tuple(parameter.shape)} here, and {t.shape} in the model")
        parameter.copy_(init_tensor(t, model, seed))

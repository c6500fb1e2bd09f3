"""First values of the weights: each a pure function of (seed, canonical name, the element's index).

    seed, "layers.3.mlp.up.weight" --blake2b--> key of 64 bits --normals.py--> number i of its stream, fp32

So the weights are equal on every layout, and a rank makes its own box alone, where the weight lies.

    normal     N(0, 0.02)                  GPT-1 (Radford et al. 2018 §4.1), GPT-2, Megatron-LM
    residual   N(0, 0.02 / sqrt(2 L))      outputs into the residual stream, 2 L of them (GPT-2 §2.3)
    ones, zeros                            norms and biases

The values are fp32 whatever the model's dtype; only the copy into place converts. A stack of experts
[E, ., .] is one tensor: an element's index is that of the whole stack.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from scalewright.model.normals import fill_normal
from scalewright.spec.errors import RunError
from scalewright.spec.model import ModelSpec
from scalewright.spec.tensors import TensorSpec, tensors

STANDARD_DEVIATION = 0.02
DRAWN_ON = ("cpu", "cuda")  # kinds of devices with integers of 64 bits; the others' numbers come from the CPU


def tensor_seed(seed: int, name: str) -> int:
    """The 64-bit key of one tensor's stream."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def init_tensor(t: TensorSpec, model: ModelSpec, seed: int, device: str | torch.device = "cpu") -> Tensor:
    """The first values of one tensor, whole: fp32, of shape `t.shape`."""
    return init_box(t, model, seed, [0] * len(t.shape), t.shape, device)


def init_box(
    t: TensorSpec,
    model: ModelSpec,
    seed: int,
    offsets: Sequence[int],
    sizes: Sequence[int],
    device: str | torch.device = "cpu",
) -> Tensor:
    """One box of the same values, fp32, of shape `sizes`: nothing outside of it is drawn."""
    wanted = torch.device(device)
    out = torch.empty(tuple(sizes), dtype=torch.float32, device=wanted if wanted.type in DRAWN_ON else "cpu")
    _set_values(out, t, model, seed, offsets)
    return out.to(wanted)


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
        if parameter.device.type in DRAWN_ON and parameter.is_contiguous():
            _set_values(parameter, t, model, seed, [0] * len(t.shape))
        else:
            parameter.copy_(init_tensor(t, model, seed))


def _set_values(out: Tensor, t: TensorSpec, model: ModelSpec, seed: int, offsets: Sequence[int]) -> None:
    """Sets `out` to the box of a tensor that begins at `offsets`, in place."""
    if t.init in ("zeros", "ones"):
        out.fill_(float(t.init == "ones"))
        return
    deviation = STANDARD_DEVIATION
    if t.init == "residual":
        deviation /= (2 * model.num_hidden_layers) ** 0.5
    fill_normal(out, tensor_seed(seed, t.name), t.shape, offsets, deviation)

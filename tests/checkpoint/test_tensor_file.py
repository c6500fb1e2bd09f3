"""The bytes of a file of tensors are those that safetensors writes."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save

from scalewright.checkpoint.tensor_file import NAMES, lay_out


def written(tensors: dict[str, torch.Tensor]) -> bytes:
    """A file by `lay_out`, filled."""
    about = {key: (str(t.dtype).removeprefix("torch."), tuple(t.shape), t.itemsize) for key, t in tensors.items()}
    head, begins = lay_out(about, {"format": "pt"})
    file = bytearray(head) + bytearray(sum(tensor.nbytes for tensor in tensors.values()))
    for key, tensor in tensors.items():
        begin = begins[key]
        assert begin % tensor.itemsize == 0
        file[begin : begin + tensor.nbytes] = (
            bytes(tensor.view(-1).view(torch.uint8).tolist()) if tensor.numel() else b""
        )
    return bytes(file)


@pytest.mark.parametrize("seed", range(3))
def test_the_same_bytes(seed):
    """Every dtype, names that need escapes, no dimension, none of an element."""
    torch.manual_seed(seed)
    tensors = {}
    for number, name in enumerate(NAMES):
        for key in (f"b.{name}", f'a/{name} "ä"', f"z{seed}"):
            shape = [(3, 2), (), (0, 4)][(number + seed + len(key)) % 3]
            bits = torch.randint(0, 2, (torch.Size(shape).numel(),)).to(torch.uint8)
            tensors[key] = bits.to(getattr(torch, name)).reshape(shape)
    assert written(tensors) == save(tensors, {"format": "pt"})


def test_nothing():
    assert written({}) == save({}, {"format": "pt"})

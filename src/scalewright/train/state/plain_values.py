"""Small Python values as JSON and back, exactly: numbers, tuples, tensors of a few numbers.

    tensor(3.)               3.0                                           a 0-dim fp32 tensor, as Adam's step
    tensor([7])              {"tensor": "int64", "shape": [1], "data": [7]}
    7, True, "train", None   {"python": 7}, ...
    (0.9, 0.95)              {"tuple": [{"python": 0.9}, {"python": 0.95}]}

A float's text has the digits that give the same bits back, and Python's JSON has NaN and infinities.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

LARGEST = 4096  # numbers of a tensor; larger ones have no place in a JSON file


def encode(value: Any) -> Any:
    """A value as JSON types; raises TypeError for one that has no such form."""
    if isinstance(value, Tensor):
        if value.is_complex() or value.numel() > LARGEST:
            raise TypeError(f"a tensor of {value.numel()} {value.dtype} numbers")
        numbers = value.detach().flatten().tolist()
        if value.dtype == torch.float32 and value.dim() == 0:
            return numbers[0]
        dtype = str(value.dtype).removeprefix("torch.")
        return {"tensor": dtype, "shape": list(value.shape), "data": numbers}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"python": value}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [encode(item) for item in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: encode(item) for key, item in value.items()}}
    raise TypeError(f"a {type(value).__name__}")


def same(a: Any, b: Any) -> bool:
    """Whether two encoded values are equal: as JSON text, where a NaN equals itself."""
    return json.dumps(a) == json.dumps(b)


def decode(value: Any, device: torch.device | None = None) -> Any:
    """The values given to `encode`, tensors on `device`; raises ValueError for JSON that it didn't write."""
    if isinstance(value, (int, float)):
        return torch.tensor(value, dtype=torch.float32, device=device)
    if not isinstance(value, dict):
        raise ValueError(f"not an encoded value: {value!r}")
    if "tensor" in value:
        dtype = getattr(torch, value["tensor"])
        return torch.tensor(value["data"], dtype=dtype, device=device).reshape(value["shape"])
    if "python" in value:
        return value["python"]
    if "dict" in value:
        return {key: decode(item, device) for key, item in value["dict"].items()}
    for kind in (list, tuple):
        if kind.__name__ in value:
            return kind(decode(item, device) for item in value[kind.__name__])
    raise ValueError(f"not an encoded value: {value!r}")

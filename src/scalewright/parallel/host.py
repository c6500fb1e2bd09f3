"""Marks of tensors that are offloaded on a CPU run, whose device memory is host memory too.

Offloading moves tensors to pinned host buffers. On a CPU both memories are one, so such buffers have a mark
on their storage: a meter of device memory leaves them out, and offloading can be measured without a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar

import torch
from torch import Tensor

_MARK = "scalewright_host"
_making: ContextVar[bool] = ContextVar("making", default=False)  # a meter sees a tensor before it is marked


def host_empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """An unfilled tensor in host memory, to hold tensors of `device`; pinned when that is a GPU."""
    with making_host():
        tensor = torch.empty(tuple(shape), dtype=dtype, device="cpu", pin_memory=device.type == "cuda")
    return mark_host(tensor)


class making_host:
    """Tensors made meanwhile count as host memory, for a meter that sees them before they are marked."""

    def __enter__(self) -> None:
        self.token = _making.set(True)

    def __exit__(self, *_: object) -> None:
        _making.reset(self.token)


def mark_host(tensor: Tensor) -> Tensor:
    """Marks a tensor, and all that share its storage, as host memory; returns it."""
    setattr(tensor.untyped_storage(), _MARK, True)
    return tensor


def is_host(tensor: Tensor) -> bool:
    """Whether a tensor lies in host memory, not in the memory of the device that computes."""
    return _making.get() or getattr(tensor.untyped_storage(), _MARK, False) is True

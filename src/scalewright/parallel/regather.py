"""Column-parallel layers keep this rank's part of their input, and gather it again in the backward.

    forward     part [B,T/tp,D] --all-gather--> whole [B,T,D] --> q, k, v          whole is freed,
                  '--- kept                                                        its part stays
    backward    part --all-gather--> whole --> the weights' gradients of q, k, v   one more all-gather

(Korthikanti et al. 2022 §4.2.2.) Without it the inputs of q, k, v and of gate and up would be the only
activations that sequence parallelism doesn't divide by tp: at tp 8 about as much as all the rest. Layers that
share an input share the gathered tensor; it dies with the last of them, also in a backward of two parts.

Where a block is recomputed nothing is kept, and its gather runs again anyway. A compiled block keeps the
tensors that its compiler chooses.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from scalewright.parallel.functions import AxisGroup, gather_sum, gathered


class _Input:
    """One forward's gathered input; the saved tensors that hold it keep this object alive."""

    def __init__(self, part: Tensor, whole: Tensor, dim: int, group: AxisGroup) -> None:
        self.part, self.dim, self.group = part.detach(), dim, group
        self.storage = whole.untyped_storage()._cdata  # whose saved views are to be replaced
        self.again: Tensor | None = None

    def pack(self, saved: Tensor) -> Any:
        if saved.untyped_storage()._cdata != self.storage:
            return saved
        return saved.shape, saved.stride(), saved.storage_offset()

    def unpack(self, packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        if self.again is None:
            self.again = gathered(self.part, self.dim, self.group)
        return self.again.as_strided(*packed)


class Regather:
    """Gathers the input of some linear layers, which then keep its part alone."""

    def __init__(self, linears: Iterable[nn.Linear], dim: int, group: AxisGroup) -> None:
        self.dim, self.group = dim, group
        self._input: _Input | None = None
        for linear in linears:
            self._wrap(linear)

    def enter(self, part: Tensor) -> Tensor:
        """The whole input; the linears that take it must come before `leave`."""
        whole = gather_sum(part, self.dim, self.group)
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self._input = _Input(part, whole, self.dim, self.group)
        return whole

    def leave(self) -> None:
        """Forgets the input: from here on only the graph refers to it."""
        if not torch.compiler.is_compiling():
            self._input = None

    def _wrap(self, linear: nn.Linear) -> None:
        def run(x: Tensor) -> Tensor:
            if torch.compiler.is_compiling() or self._input is None:
                return F.linear(x, linear.weight, linear.bias)
            with saved_tensors_hooks(self._input.pack, self._input.unpack):
                return F.linear(x, linear.weight, linear.bias)

        linear.forward = run  # type: ignore[assignment]

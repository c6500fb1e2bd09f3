"""Shared experts beside the dispatch: they compute while tokens travel to routed experts and back.

    rows       there ------------>            experts          back ------------->
    shared     gate, up, activation                            down
               '------ hidden -----'                           '---- hidden ----'

    backward   back's gradient travels beside down's backward, there's beside that of gate and up

Shared experts need no other rank's tokens (DeepSeek-AI 2024, arXiv 2401.06066 §3.2), so that each of the two
exchanges has half of them to hide behind (Megatron-LM's `--moe-shared-expert-overlap` cuts them there, too).
Nothing else changes: the same operators on the same numbers, in another order.

The model stays plain. Its `forward` asks for the routed experts first; from within them, once rows are on
their way, `around` calls the shared ones, and from within these, before `down`, the routed experts. The
backward follows by itself: autograd runs what the forward ran last first, so that the shared experts' part of
it lies between the start of a gradient's exchange and the wait for it (functions.py: `start_exchange`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from scalewright.model.moe import MoE

T = TypeVar("T")


class OverlapSharedExperts:
    """Runs a layer's shared experts in two halves around what its routed experts do."""

    def __init__(self, moe: MoE) -> None:
        assert moe.shared is not None
        self._shared = moe.shared_output  # with its gate, and as tensor parallelism has wrapped it
        self._down = moe.shared.down.forward
        self._whole = moe.forward
        self._x: Tensor | None = None  # of the running forward
        self._out: Tensor | None = None
        self._between: Callable[[], None] | None = None
        moe.forward = self._forward  # type: ignore[method-assign]
        moe.shared_output = self._beside  # type: ignore[method-assign]
        moe.shared.down.forward = self._second_half  # type: ignore[method-assign]

    @torch.compiler.disable(recursive=False)  # type: ignore[untyped-decorator,no-untyped-call]
    def _forward(self, x: Tensor) -> Tensor:
        self._x = x
        try:
            return self._whole(x)
        finally:
            self._x = self._out = self._between = None

    @torch.compiler.disable(recursive=False)  # type: ignore[untyped-decorator,no-untyped-call]
    def around(self, compute: Callable[[], T]) -> T:
        """The first half of the shared experts, then `compute`, then their second half; its result."""
        assert self._x is not None
        results: list[T] = []
        self._between = lambda: results.append(compute())
        self._out = self._shared(self._x)
        return results[0]

    @torch.compiler.disable(recursive=False)  # type: ignore[untyped-decorator,no-untyped-call]
    def _second_half(self, hidden: Tensor) -> Tensor:
        between, self._between = self._between, None
        assert between is not None
        between()
        out: Tensor = self._down(hidden)
        return out

    @torch.compiler.disable(recursive=False)  # type: ignore[untyped-decorator,no-untyped-call]
    def _beside(self, x: Tensor) -> Tensor:
        """What the shared experts made of x, when its tokens were on their way."""
        assert self._out is not None
        return self._out

"""Takes an optimizer's update, or leaves it out: weights, moments and step counts then stay as they were.

    where numbers can be looked at (a CPU, offloaded masters)   the host looks, and doesn't call the optimizer
    fused AdamW, Adam, SGD on a GPU                             `found_inf`: the kernel itself does nothing
    our Lion and Muon                                           the same flag (train/optimizer.py, muon.py)
    any other optimizer on a GPU                                the host looks: it waits for the norm

The last one costs a wait a step. Keeping a copy of weights and states to go back to would cost no wait, but
12 more bytes a parameter under Adam, and what an optimizer keeps to itself would be in no copy.
`torch.amp.GradScaler` looks, too, for optimizers without a fused step.

torch's contract of `found_inf`: `Optimizer._step_supports_amp_scaling`; the kernels return at once when it is
1, and the step count is taken back. One state is not covered: fused SGD makes its first momentum buffer
without filling it, so it is made here, of zeros (momentum * 0 + g = g, the same first step).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from scalewright.model.decoder import Decoder
from scalewright.parallel.stages import stages_of


def obeys_flag(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an update can be left out by `found_inf`, a number on the device."""
    if isinstance(optimizer, torch.optim.SGD) and any(group["dampening"] for group in optimizer.param_groups):
        return False  # its first step has no dampening; one that starts from zeros has
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


@torch.no_grad()
def update_unless(optimizer: torch.optim.Optimizer, skip: Tensor) -> None:
    """Takes the update unless `skip` (fp32, on the device) is 1. For optimizers with `obeys_flag`."""
    if isinstance(optimizer, torch.optim.SGD):
        for group in optimizer.param_groups:
            if group["momentum"]:
                _fill_momentum(optimizer, group["params"])
    optimizer.found_inf = skip  # type: ignore[attr-defined]
    optimizer.step()


def _fill_momentum(optimizer: torch.optim.Optimizer, params: Sequence[Tensor]) -> None:
    for param in params:
        state = optimizer.state[param]
        if param.grad is not None and state.get("momentum_buffer") is None:
            state["momentum_buffer"] = torch.zeros_like(param)


SMALL = 1 << 16  # elements: more than any layer has channels


class KeptBuffers:
    """A user's own module may change its buffers in a forward (BatchNorm): a skipped step puts them back.

    Large buffers that don't change, such as masks and tables, are copied once, by torch's count of a tensor's
    changes. Small ones are copied every step: batch norm's kernels write running means without counting. Our
    own decoder changes none, and nothing is copied.
    """

    def __init__(self, model: nn.Module) -> None:
        self.stages = [stage for stage in stages_of(model).values() if not isinstance(stage, Decoder)]
        self.kept: dict[tuple[nn.Module, str], _Kept] = {}

    @torch.no_grad()
    def keep(self) -> None:
        """Before a step: copies what may have to be put back."""
        places = {
            (module, name): buffer
            for stage in self.stages
            for module in stage.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        }
        self.kept = {
            place: kept if (kept := self.kept.get(place)) and kept.is_now(buffer) else _Kept.of(buffer)
            for place, buffer in places.items()
        }

    @torch.no_grad()
    def put_back_unless(self, keep: Tensor) -> None:
        """After a step that isn't kept (a bool on the device): buffers as they were before it.

        A forward may have put another tensor in a buffer's place (`self.mean = 0.9 * self.mean + 0.1 * x`). A
        buffer that has another shape than before stays: which one to keep would need the host to wait.
        """
        for (module, name), kept in self.kept.items():
            now = module._buffers.get(name)
            if now is None or kept.is_now(now):
                continue
            if now is kept.buffer:
                now.copy_(torch.where(keep, now, kept.copy))
            elif now.shape == kept.copy.shape:
                module._buffers[name] = torch.where(keep, now, kept.copy.to(now.dtype))


class _Kept(NamedTuple):
    """A buffer, and what it was."""

    buffer: Tensor
    version: int
    copy: Tensor

    @classmethod
    def of(cls, buffer: Tensor) -> _Kept:
        uncounted = buffer.is_inference() or buffer.numel() <= SMALL  # torch may change those and not count
        version = -1 if uncounted else buffer._version
        return cls(buffer, version, buffer.clone())

    def is_now(self, buffer: Tensor) -> bool:
        """Whether a buffer is still this one, unchanged."""
        return buffer is self.buffer and self.version >= 0 and buffer._version == self.version

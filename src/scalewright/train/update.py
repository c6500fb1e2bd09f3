"""Takes an optimizer's update, or leaves it out: weights, moments and step counts then stay as they were.

    where numbers can be looked at (a CPU, offloaded masters)   the host looks, and doesn't call the optimizer
    fused AdamW, Adam, SGD on a GPU                             `found_inf`: the kernel itself does nothing
    our Lion                                                    the same flag (train/optimizer.py)
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


class KeptBuffers:
    """A user's own module may change its buffers in a forward (BatchNorm): a skipped step puts them back.

    Our own decoder changes none, and nothing is copied.
    """

    def __init__(self, model: nn.Module) -> None:
        self.stages = [stage for stage in stages_of(model).values() if not isinstance(stage, Decoder)]
        self.kept: list[tuple[nn.Module, str, Tensor, Tensor]] = []  # module, name, buffer, its copy

    @torch.no_grad()
    def keep(self) -> None:
        """Before a step: copies what may have to be put back."""
        self.kept = [
            (module, name, buffer, buffer.clone())
            for stage in self.stages
            for module in stage.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]

    @torch.no_grad()
    def put_back_unless(self, keep: Tensor) -> None:
        """After a step that isn't kept (a bool on the device): buffers as they were before it.

        A forward may have put another tensor in a buffer's place (`self.mean = 0.9 * self.mean + 0.1 * x`). A
        buffer that has another shape than before stays: which one to keep would need the host to wait.
        """
        for module, name, buffer, copy in self.kept:
            now = module._buffers.get(name)
            if now is buffer:
                buffer.copy_(torch.where(keep, buffer, copy))
            elif now is not None and now.shape == copy.shape:
                module._buffers[name] = torch.where(keep, now, copy.to(now.dtype))

"""Plain PyTorch loops, as one would write them by hand for one process: the floor that a trainer can reach.

fp32         forward, backward, clip, fused AdamW
bf16-mixed   the same under autocast: fp32 weights, each cast to bf16 when a matmul needs it
bf16-true    bf16 weights, gradients and AdamW state
masters      bf16 weights for compute, fp32 masters for the update: what our `precision: bf16` means
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harness.setting import Setting, adamw, adamw_of, take
from scalewright.parallel.cross_entropy import CrossEntropy

LABEL = {
    "fp32": "fp32",
    "bf16-mixed": "bf16-mixed (autocast)",
    "bf16-true": "bf16-true",
    "masters": "bf16: fp32 masters, bf16 copies",
}


class BareLoop:
    """The loop over any module; `forward(tokens) -> logits [B, T, V]`."""

    def __init__(
        self,
        name: str,
        setting: Setting,
        module: nn.Module,
        forward: Callable[[Tensor], Tensor],
        samples: list[tuple[Tensor, Tensor]],
        precision: str,
    ) -> None:
        self.name, self.precision = name, LABEL[precision]
        self.forward, self.samples, self.done = forward, samples, 0
        self.clip = setting.optimizer.clip_norm
        self.mixed = precision == "bf16-mixed"
        self.module = module.to(torch.bfloat16) if precision in ("bf16-true", "masters") else module
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.masters: list[nn.Parameter] | None = None
        if precision == "masters":
            self.masters = [nn.Parameter(p.detach().float()) for p in self.parameters]
            self.optimizer = adamw_of(self.masters, setting.optimizer)
        else:
            self.optimizer = adamw(module, setting.optimizer)

    def run(self, steps: int) -> list[float]:
        """The next steps."""
        losses = []
        for tokens, targets in take(self.samples, self.done, steps):
            logits = self.logits(tokens)
            loss = self.loss(logits, targets)
            del logits
            loss.backward()  # type: ignore[no-untyped-call]
            if self.masters is not None:
                self.take_gradients()
            self.clip_gradients()
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.masters is not None:
                self.publish()
            losses.append(loss.item())
        self.done += steps
        return losses

    def close(self) -> None:
        """Nothing is open."""

    def logits(self, tokens: Tensor) -> Tensor:
        """The model's forward."""
        with torch.autocast("cpu", torch.bfloat16) if self.mixed else nullcontext():
            return self.forward(tokens)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy."""
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def clip_gradients(self) -> None:
        """Scales the gradient down to the norm that is allowed."""
        torch.nn.utils.clip_grad_norm_(self.masters or self.parameters, self.clip)

    def take_gradients(self) -> None:
        """bf16 gradients to the fp32 masters."""
        for master, copy in zip(self.masters or [], self.parameters, strict=True):
            assert copy.grad is not None
            master.grad, copy.grad = copy.grad.float(), None

    @torch.no_grad()
    def publish(self) -> None:
        """fp32 masters to the bf16 copies."""
        torch._foreach_copy_(list[Tensor](self.parameters), list[Tensor](self.masters or []))


class BareLoopOurLoss(BareLoop):
    """The same with our loss: what is left between it and ours is the framework alone."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy, whose gradient is made in place."""
        total, _ = CrossEntropy()(logits, targets)
        return total / targets.numel()


def bare(
    name: str, setting: Setting, samples: list[tuple[Tensor, Tensor]], precision: str, kind: type[BareLoop] = BareLoop
) -> BareLoop:
    """The bare loop over our own model."""
    decoder = setting.decoder()
    return kind(name, setting, decoder, decoder, samples, precision)

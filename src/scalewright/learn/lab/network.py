"""The network of labs about gradients: the next byte of a text from the eight before it, through residual blocks.

    x = [embed(byte) of 8 bytes]      x = x + gelu(norm(x) W)     logits = x W_head

Plain, without attention: so small that hundreds of its gradients take seconds, and real enough that they look like a
model's. Weights are in fp32.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

BEFORE, VOCABULARY = 8, 256


class Bytes:
    """`width` numbers a position, `layers` blocks; the same weights for the same seed."""

    def __init__(self, width: int, layers: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            return torch.mul(torch.randn(shape, generator=generator), shape[0] ** -0.5).requires_grad_()

        self.embedding = (torch.randn(VOCABULARY, width // BEFORE, generator=generator)).requires_grad_()
        self.blocks = [draw(width, width) for _ in range(layers)]
        self.head = draw(width, VOCABULARY)

    @property
    def weights(self) -> list[Tensor]:
        return [self.embedding, *self.blocks, self.head]

    def loss(self, text: bytes, places: Tensor) -> Tensor:
        """Cross-entropy, in nats, of the bytes after `places` [n] and the seven before each; the mean."""
        data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        windows = (places[:, None] + torch.arange(1 - BEFORE, 1)).clamp(min=0)
        x = self.embedding[data[windows]].flatten(1)
        for block in self.blocks:
            x = x + functional.gelu(functional.layer_norm(x, x.shape[1:]) @ block)
        return functional.cross_entropy(functional.layer_norm(x, x.shape[1:]) @ self.head, data[places + 1])

    def gradient(self) -> Tensor:
        """All weights' gradients in one row, which are taken away."""
        rows = [weight.grad.flatten() for weight in self.weights if weight.grad is not None]
        for weight in self.weights:
            weight.grad = None
        return torch.cat(rows)

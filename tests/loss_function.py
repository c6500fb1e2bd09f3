"""The built-in loss as a function."""

from __future__ import annotations

from torch import Tensor

from scalewright.parallel.cross_entropy import CrossEntropy, Losses, VocabularyColumns


def cross_entropy(
    logits: Tensor, targets: Tensor, z_loss: float = 0.0, columns: VocabularyColumns | None = None
) -> Losses:
    """Cross-entropy and z-loss of logits [B, T, V] against targets [B, T]."""
    return CrossEntropy(z_loss, columns)(logits, targets)

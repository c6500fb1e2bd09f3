"""The keys and values of the tokens seen so far, so that a new token costs one token's work.

    layer -> k, v: [B, G, room, K], filled from the left; `length` columns are in use

Bytes: 2 (k, v) x layers x B x G x K x room x bytes per element; latent attention keeps one latent and one key for all
heads: (L + R) in place of 2 G K. Every layer keeps all tokens: a sliding window's mask hides those outside of it.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Cache:
    """Room for `room` tokens of each row; shape, dtype and device are those of the first keys."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.length = 0
        self.documents: Tensor | None = None  # [B, length], when the rows hold several (or padding)
        self._store: dict[int, tuple[Tensor, Tensor]] = {}

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Adds this forward's k and v [B, G, T, K or L]; returns all, [B, G, length + T, ...]."""
        if layer not in self._store:
            shape = (*k.shape[:2], self.room, k.shape[3])
            self._store[layer] = (k.new_empty(shape), v.new_empty((*v.shape[:2], self.room, v.shape[3])))
        keys, values = self._store[layer]
        end = self.length + k.shape[2]
        keys[:, :, self.length : end] = k
        values[:, :, self.length : end] = v
        return keys[:, :, :end], values[:, :, :end]

    def add_documents(self, documents: Tensor | None) -> Tensor | None:
        """Adds the new tokens' documents [B, T]; returns those of all tokens, None when there are none."""
        if documents is not None:
            self.documents = documents if self.documents is None else torch.cat([self.documents, documents], dim=1)
        return self.documents

    def advance(self, count: int) -> None:
        """Counts the forward's tokens as seen, after its last layer."""
        self.length += count

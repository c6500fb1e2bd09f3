"""Chunks of a few logits: real sizes of which a head has several chunks would take gigabytes.

Of sizes as small the head is in chunks as soon as these keep less; real ones must be worth their traffic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scalewright.spec import loss_chunks


def few_logits(at_once: int, head_tokens: int = 1, put: Callable[[Any, str, float], None] = setattr) -> None:
    """`at_once` logits in a chunk of the loss; a head's chunk has several of these, to `head_tokens`.

    `put`: `monkeypatch.setattr`, where the change shall end with the test.
    """
    put(loss_chunks, "LOGITS_AT_ONCE", at_once)
    put(loss_chunks, "HEAD_TOKENS", head_tokens)
    put(loss_chunks, "WORTH", 1)

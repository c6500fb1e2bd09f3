"""The tokens whose loss is computed at once: a chunk's logits in fp32 are the only ones.

    chunk = 2^26 logits of a rank: 256 MiB in fp32, 523 tokens of a vocabulary of 128,256

Smaller chunks would save little beside the logits themselves, and launch more kernels.
"""

from __future__ import annotations

LOGITS_AT_ONCE = 1 << 26


def chunk_tokens(columns: int) -> int:
    """Tokens of a chunk, for logits with so many columns on a rank."""
    return max(1, LOGITS_AT_ONCE // columns)

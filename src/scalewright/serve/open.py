"""An engine for the model of a folder, with the cache that fits into the memory that it may take.

blocks = memory / (64 x bytes of a token's keys and values)          pages.py
"""

from __future__ import annotations

from pathlib import Path

from scalewright.model.decoder import Decoder
from scalewright.model.huggingface import torch_dtype
from scalewright.serve.blocks import BLOCK
from scalewright.serve.engine import Engine, Settings
from scalewright.serve.load import load_for_generation
from scalewright.serve.pages import token_bytes
from scalewright.serve.ranks import spread
from scalewright.spec.errors import UserError
from scalewright.spec.model import ModelSpec

MOST_BLOCKS, GIB = 1024, 1 << 30  # where nobody says: 65,536 tokens, and 1 GiB


def open_engine(
    source: str | Path,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    kv_memory_gib: float | None = None,
    max_concurrency: int = 32,
    tp: int = 1,
    trust_code: bool = False,
    verify: bool = True,
) -> Engine:
    """The model at `source`, over `tp` processes, ready for requests; `kv_memory_gib` of each. Raises UserError."""

    def blocks_of(spec: ModelSpec, heads: int) -> int:
        each = BLOCK * token_bytes(spec, torch_dtype(dtype).itemsize, heads)
        memory = (1.0 if kv_memory_gib is None else kv_memory_gib) * GIB
        blocks = int(memory // each)
        if blocks < 1:
            how = f"give it {each / GIB:.3g} or more: so much takes a block of {BLOCK} tokens"
            raise UserError(f"no block of the cache fits into {memory / GIB:g} GiB", "--kv-memory", how)
        return min(blocks, MOST_BLOCKS) if kv_memory_gib is None else blocks

    if tp > 1:
        loaded, compute, blocks = spread(str(source), tp, blocks_of, device, dtype, trust_code, verify)
        return Engine(loaded, Settings(kv_blocks=blocks, max_concurrency=max_concurrency), compute)
    loaded = load_for_generation(str(source), device, dtype, trust_code, verify)
    if not isinstance(loaded.model, Decoder):
        raise UserError("a module of your own has no paged cache", str(source), "use `generate`")
    blocks = blocks_of(loaded.model.spec, loaded.model.spec.kv_heads)
    return Engine(loaded, Settings(kv_blocks=blocks, max_concurrency=max_concurrency))

"""An engine for the model of a folder, with the cache that fits into the memory that it may take.

blocks = memory / (64 x bytes of a token's keys and values)          pages.py
"""

from __future__ import annotations

from pathlib import Path

from scalewright.model.decoder import Decoder
from scalewright.model.huggingface import torch_dtype
from scalewright.model.load import build
from scalewright.serve.drafts import Drafter, DraftModel, NGram
from scalewright.serve.engine import Engine, Settings
from scalewright.serve.load import load_for_generation, without_predictions
from scalewright.serve.pages import token_bytes
from scalewright.serve.ranks import spread
from scalewright.spec.errors import UserError
from scalewright.spec.model import ModelSpec
from scalewright.spec.serving import BLOCK

NGRAM, MTP = "ngram", "mtp"  # who guesses ahead, besides another model
MOST_BLOCKS, GIB = 1024, 1 << 30  # where nobody says: 65,536 tokens, and 1 GiB


def open_engine(
    source: str | Path,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    kv_memory_gib: float | None = None,
    max_concurrency: int = 32,
    draft: str | None = None,
    draft_tokens: int = 4,
    tp: int = 1,
    trust_code: bool = False,
    verify: bool = True,
) -> Engine:
    """The model at `source`, over `tp` processes, ready for requests; `kv_memory_gib` of each.

    `draft`: who guesses ahead (drafts.py): `ngram`, `mtp`, or a smaller model's folder; `draft_tokens` a step, one of
    `mtp`. Raises UserError.
    """

    def blocks_of(spec: ModelSpec, heads: int) -> int:
        each = BLOCK * token_bytes(spec, torch_dtype(dtype).itemsize, heads, int(draft == MTP))
        memory = (1.0 if kv_memory_gib is None else kv_memory_gib) * GIB
        blocks = int(memory // each)
        if blocks < 1:
            how = f"give it {each / GIB:.3g} or more: so much takes a block of {BLOCK} tokens"
            raise UserError(f"no block of the cache fits into {memory / GIB:g} GiB", "--kv-memory", how)
        return min(blocks, MOST_BLOCKS) if kv_memory_gib is None else blocks

    def settings(blocks: int, drafter: Drafter | None) -> Settings:
        return Settings(kv_blocks=blocks, max_concurrency=max_concurrency, drafter=drafter, mtp=draft == MTP)

    ngram = NGram(draft_tokens) if draft == NGRAM else None
    if tp > 1:
        if draft not in (None, NGRAM):
            raise UserError(f"--draft {draft} runs in one process", "--tp", f"leave --tp out, or use --draft {NGRAM}")
        loaded, compute, blocks = spread(str(source), tp, blocks_of, device, dtype, trust_code, verify)
        return Engine(loaded, settings(blocks, ngram), compute)
    make = build if draft == MTP else without_predictions
    loaded = load_for_generation(str(source), device, dtype, trust_code, verify, make)
    if not isinstance(loaded.model, Decoder):
        raise UserError("a module of your own has no paged cache", str(source), "use `generate`")
    spec = loaded.model.spec
    if draft == MTP and not spec.mtp_layers:
        raise UserError(
            "the model has no prediction module", f"--draft {MTP}", f"use --draft {NGRAM}, or another model"
        )
    blocks = blocks_of(spec, spec.kv_heads)
    if draft in (None, NGRAM, MTP):
        return Engine(loaded, settings(blocks, ngram))
    smaller = load_for_generation(draft, device, dtype, trust_code, verify)
    if smaller.tokenizer.get_vocab() != loaded.tokenizer.get_vocab():
        raise UserError("its tokenizer is another one", f"--draft {draft}", "use a model of the same tokens")
    if not isinstance(smaller.model, Decoder):
        raise UserError("a module of your own has no paged cache", f"--draft {draft}", "use another model")
    return Engine(loaded, settings(blocks, DraftModel(smaller.model, blocks, draft_tokens)))

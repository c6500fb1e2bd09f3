"""One layer: attention and MLP around a residual stream.

    sequential    x += attn(norm1(x));  x += mlp(norm2(x))            Llama, GPT-2
    parallel      x += attn(norm1(x)) + mlp(norm2(x))                 GPT-NeoX; parallel_shared: one norm

    norm_position  pre: f(norm(x))     post: norm(f(x)) (OLMo-2)      both: norm(f(norm(x))) (Gemma 2, 3)

A block is a pure function of x and the context: recomputing it gives the same bits, and it compiles and shards alone.
So is a module of multi-token prediction, behind the last block, each of which predicts one token further:

    depth 0       hidden h0_i [D] of token i, after the final norm        head -> token i+1
    depth 1       join([norm(embed(token i+1)), norm(h0_i)])              one block -> norm -> h1_i
                                                                          head -> token i+2
    depth k       join([norm(embed(token i+k)), norm(h(k-1)_i)])          ... -> h(k)_i -> token i+k+1

(DeepSeek-AI 2024, arXiv 2412.19437 §2.2, eq. 21-25.) Embedding and head are the model's own. Two conventions follow the
published weights: `join` takes the embedding first (DeepSeek's and GLM-4.5's files, Megatron-LM, vLLM, transformers;
eq. 21 writes it second), and every depth takes the hidden state after the norm of the depth before (Megatron-LM,
transformers; vLLM at depth 1, and the files have no more). What is joined at i stands at position i.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from scalewright.model.attention import Attention
from scalewright.model.context import Context
from scalewright.model.latent_attention import LatentAttention
from scalewright.model.mlp import MLP
from scalewright.model.moe import MoE
from scalewright.model.norm import build_norm
from scalewright.spec.model import ModelSpec


class Block(nn.Module):
    """x [B, T, D] and the forward's context -> [B, T, D]."""

    def __init__(self, spec: ModelSpec, layer: int) -> None:
        super().__init__()
        d, shared = spec.hidden_size, spec.residual == "parallel_shared"
        pre, post = spec.norm_position in ("pre", "both"), spec.norm_position in ("post", "both")
        self.parallel = spec.residual != "sequential"
        self.attention_norm = build_norm(spec, d) if pre else None
        self.attention = LatentAttention(spec, layer) if spec.mla else Attention(spec, layer)
        self.attention_post_norm = build_norm(spec, d) if post else None
        self.mlp_norm = build_norm(spec, d) if pre and not shared else None
        self.mlp = MoE(spec) if spec.is_moe(layer) else MLP(spec)
        self.mlp_post_norm = build_norm(spec, d) if post else None
        self.shared_norm = pre and shared

    def forward(self, x: Tensor, context: Context) -> Tensor:
        normed = x if self.attention_norm is None else self.attention_norm(x)
        attended = self.attention(normed, context)
        if self.attention_post_norm is not None:
            attended = self.attention_post_norm(attended)
        x = x if self.parallel else x + attended
        inner = x if self.mlp_norm is None else self.mlp_norm(x)
        fed: Tensor = self.mlp(normed if self.shared_norm else inner)
        if self.mlp_post_norm is not None:
            fed = self.mlp_post_norm(fed)
        return x + attended + fed if self.parallel else x + fed


class Predictions(NamedTuple):
    """What the head made for the next token, and for those after it: logits [B, T, V] or this rank's part of
    the words; or what their losses return. A tuple, in which FSDP's hooks look for tensors."""

    logits: Any
    ahead: tuple[Any, ...]  # of every depth, from 1 on


class Prediction(nn.Module):
    """The module of one depth: hidden and embedded tokens, both [B, T, D] -> the next hidden [B, T, D]."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        d = spec.hidden_size
        self.embed_norm, self.hidden_norm = build_norm(spec, d), build_norm(spec, d)
        self.join = nn.Linear(2 * d, d, bias=False)
        self.block = Block(spec, spec.num_hidden_layers - 1)  # as the last of the model's own
        self.norm = build_norm(spec, d)

    def forward(self, hidden: Tensor, embedded: Tensor, context: Context) -> Tensor:
        joined = torch.cat([self.embed_norm(embedded), self.hidden_norm(hidden)], dim=-1)
        return self.norm(self.block(self.join(joined), context))  # type: ignore[no-any-return]

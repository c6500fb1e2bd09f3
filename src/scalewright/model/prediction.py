"""Multi-token prediction: small modules behind the last block, each of which predicts one token further.

    depth 0       hidden h0_i [D] of token i, after the final norm        head -> token i+1
    depth 1       join([norm(embed(token i+1)), norm(h0_i)])              one block -> norm -> h1_i
                                                                          head -> token i+2
    depth k       join([norm(embed(token i+k)), norm(h(k-1)_i)])          ... -> h(k)_i -> token i+k+1

(DeepSeek-AI 2024, arXiv 2412.19437 §2.2, eq. 21-25.) Embedding and head are the model's own. Two conventions
follow the published weights: `join` takes the embedding first (DeepSeek's and GLM-4.5's files, Megatron-LM,
vLLM, transformers; eq. 21 writes it second), and every depth takes the hidden state after the norm of the
depth before (Megatron-LM, transformers; vLLM at depth 1, and the files have no more). What is joined at i
stands at position i.

A module is a pure function of its two inputs and the forward's context. Ranks and groups appear nowhere.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from scalewright.model.block import Block
from scalewright.model.context import Context
from scalewright.model.norm import build_norm
from scalewright.spec.model import ModelSpec


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
        out: Tensor = self.norm(self.block(self.join(joined), context))
        return out

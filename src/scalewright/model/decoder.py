"""The whole network, or the consecutive layers of it that one pipeline stage holds.

    tokens [B,T] -> embed (+ positions, + norm) -> blocks -> norm -> head -> logits [B,T,V]
                    `-------- first --------'                `---- last ---'
                                                              `-> mtp: tokens further ahead (block.py)

Parameter names and shapes are those of `spec/tensors.py`. Layers keep their global number as their key, so a
stage's names mean the same as the whole model's. Devices, ranks and groups appear nowhere here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scalewright.model.block import Block, Prediction, Predictions
from scalewright.model.cache import Cache
from scalewright.model.context import Context, make_context
from scalewright.model.gpu_rows import Packing
from scalewright.model.norm import build_norm
from scalewright.spec.errors import UserError
from scalewright.spec.model import ModelSpec
from scalewright.spec.trains import check_runs
from scalewright.spec.zigzag import SequenceCut

# Called with the head's input [..., D], its weight [V, D] and its bias [V], in place of multiplying them.
HeadProduct = Callable[[Tensor, Tensor, Tensor | None], Any]


class Head(nn.Module):
    """hidden [..., D] -> logits [..., V]; without a weight of its own (tied) it is handed the embedding's.

    With a `product`, what that returns: a loss may make the logits itself, a few at a time.
    """

    def __init__(self, spec: ModelSpec, own_weight: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty((spec.vocab_size, spec.hidden_size))) if own_weight else None
        self.bias = nn.Parameter(torch.zeros(spec.vocab_size)) if spec.head_bias else None
        if self.weight is not None:
            nn.init.normal_(self.weight, std=0.02)

    def forward(self, hidden: Tensor, tied: Tensor | None = None, product: HeadProduct | None = None) -> Any:
        weight = self.weight if self.weight is not None else tied
        assert weight is not None
        return (product or F.linear)(hidden, weight, self.bias)


class Decoder(nn.Module):
    """A decoder-only language model, or a cut of it: `layers`, with or without the `first` and `last` parts.

    A last cut that isn't also the first holds a copy of the embedding where it multiplies with it (a tied
    head: `head.weight`) or looks tokens up (prediction modules: `embed.weight`, which a tied head then uses).
    With `borrows` it holds none: `lender` then returns the embedding that another cut of this process has.
    Raises UserError for a model that is counted but doesn't run yet.
    """

    def __init__(
        self, spec: ModelSpec, layers: range | None = None, first: bool = True, last: bool = True, borrows: bool = False
    ) -> None:
        super().__init__()
        check_runs(spec)
        layers = range(spec.num_hidden_layers) if layers is None else layers
        d, predicts = spec.hidden_size, last and spec.mtp_layers > 0
        self.spec, self.first, self.last = spec, first, last
        # Tensor parallelism sets both: this rank's heads (ALiBi), and how many ranks share a row's tokens.
        self.heads, self.sequence_parts = range(spec.num_attention_heads), 1
        self.sequence_cut: SequenceCut | None = None  # context parallelism sets it: this rank's tokens of rows
        self.compiled = False  # whether the blocks are (parallel/parallelize.py sets it)
        self.lender: Callable[[], nn.Module] | None = None  # the embedding, where another cut holds it
        self.embedded: Callable[[Tensor], None] | None = None  # called with embeddings (parallel/pipeline.py)
        learned, normed = first and spec.positions == "learned", first and spec.embedding_norm
        embeds = first or (predicts and not borrows)
        self.embed = nn.Embedding(spec.vocab_size, d) if embeds else None
        self.positions = nn.Embedding(spec.learned_positions, d) if learned else None
        self.embed_norm = build_norm(spec, d) if normed else None
        self.layers = nn.ModuleDict({str(layer): Block(spec, layer) for layer in layers})
        self.norm = build_norm(spec, d) if last and spec.final_norm else None
        has_weight = not (spec.tie_word_embeddings and (embeds or borrows))
        self.head = Head(spec, has_weight) if last and (has_weight or spec.head_bias) else None
        depths = range(spec.mtp_layers) if last else ()
        self.mtp = nn.ModuleDict({str(depth): Prediction(spec) for depth in depths})

    @property
    def blocks(self) -> list[nn.Module]:
        """The blocks in the order of the forward, those of prediction modules last."""
        return [*self.layers.values(), *[module.get_submodule("block") for module in self.mtp.values()]]

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        cache: Cache | None = None,
        packing: Packing | None = None,
        ahead: Tensor | None = None,
        product: HeadProduct | None = None,
    ) -> Any:
        """tokens [B, T] (later stages: hidden [B, T, D]) -> logits [B, T, V] (all but the last: hidden).

        `positions` [B or 1, T]: null = 0..T-1 after the cached ones. `documents` [B, T]: tokens see only those of their
        own number (a run of it); null = one document. `packing`: the same for a GPU's host. `ahead` [depths, B, T]: the
        token that each prediction module takes at each place, in training, for Predictions of all depths; null = the
        modules are left out. `product`: the last stage returns what it makes of the head, in place of logits.
        """
        hidden, context = self.run(*self.enter(tokens, positions, documents, cache, packing))
        if not self.last:
            return hidden
        made = self.logits(hidden, product)
        if ahead is None:
            return made
        further = []
        for depth in range(len(ahead)):
            hidden = self.predict(depth, hidden, ahead[depth], context)
            further.append(self.logits(hidden, product))
        return Predictions(made, tuple(further))

    def features(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        cache: Cache | None = None,
        packing: Packing | None = None,
    ) -> Tensor:
        """As `forward` without the head: hidden [B, T, D], after the final norm in the last stage."""
        return self.run(*self.enter(tokens, positions, documents, cache, packing))[0]

    def draft(
        self,
        hidden: Tensor,
        tokens: Tensor,
        depth: int = 1,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """One token further: (the next hidden [B, T, D], logits [B, T, V] of the token behind `tokens`).

        `hidden` [B, T, D]: what `features`, or the depth before, gave; `tokens` [B, T]: the token
        that follows each place by `depth`. Raises UserError for a depth that the model has no module for.
        """
        if not 1 <= depth <= len(self.mtp):
            problem = f"depth {depth}, and the model has {len(self.mtp)} prediction modules"
            raise UserError(problem, f"model '{self.spec.name}'", "use a depth from 1 up to that number")
        context = self.context(hidden, tokens.shape[1], positions, documents, None)
        hidden = self.predict(depth - 1, hidden, tokens, context)
        return hidden, self.logits(hidden)

    def logits(self, hidden: Tensor, product: HeadProduct | None = None) -> Any:
        """hidden [..., D], after the final norm -> logits [..., V], capped as the model's; or what `product` makes."""
        head = self.head
        if head is not None and head.weight is not None:
            out = head(hidden, None, product)
        else:
            tied: Tensor = self._embedding().weight  # type: ignore[assignment]
            out = (product or F.linear)(hidden, tied, None) if head is None else head(hidden, tied, product)
        return out if product is not None else soft_cap(out, self.spec.logit_softcap)

    def context(
        self,
        x: Tensor,
        length: int,
        positions: Tensor | None,
        documents: Tensor | None,
        cache: Cache | None,
        packing: Packing | None = None,
    ) -> Context:
        """The values that all blocks share, with the device and dtype of x [B, T, D]."""
        return make_context(self.spec, x, length, self.heads, positions, documents, cache, packing, self.compiled)

    def run(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """x [B, T, D] through the blocks, and in the last stage the final norm; and what its blocks shared."""
        for block in self.layers.values():
            x = block(x, context)
        if context.cache is not None:
            context.cache.advance(context.positions.shape[1])
        return x if self.norm is None else self.norm(x), context

    def enter(
        self,
        tokens: Tensor,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        cache: Cache | None = None,
        packing: Packing | None = None,
    ) -> tuple[Tensor, Context]:
        """What the first block takes [B, T, D], and what all blocks share."""
        parts = 1 if self.first else self.sequence_parts  # a later stage gets its rank's tokens of each row
        length = tokens.shape[1] * parts if positions is None else positions.shape[1]
        before = cache.length if cache is not None else 0
        if self.positions is not None and positions is None:
            rows = self.positions.num_embeddings
            if before + length > rows:
                problem = f"{before + length} tokens in a row, and the model has learned {rows} positions"
                raise UserError(problem, f"model '{self.spec.name}'", "use shorter rows")
            positions = torch.arange(before, before + length, device=tokens.device)[None]
        x = self.embedded_tokens(tokens, positions) if self.first else tokens
        if self.first and self.embedded is not None:
            self.embedded(x)
        return x, self.context(x, length, positions, documents, cache, packing)

    def embedded_tokens(self, tokens: Tensor, positions: Tensor | None) -> Tensor:
        """What the first block takes of tokens [B, T]: [B, T, D]; `positions` as in `forward`."""
        x = self._look_up(tokens)
        if self.positions is not None:
            x = x + self.positions(positions)
        return x if self.embed_norm is None else self.embed_norm(x)

    def _look_up(self, tokens: Tensor) -> Tensor:
        """Rows of the embedding, scaled: [B, T] -> [B, T, D]."""
        x: Tensor = self._embedding()(tokens)
        return x if self.spec.embedding_scale is None else x * self.spec.embedding_scale

    def _embedding(self) -> nn.Module:
        """The embedding that this cut holds or borrows."""
        if self.embed is not None:
            return self.embed
        assert self.lender is not None, "only the ends of a model have the embedding"
        return self.lender()

    def predict(self, depth: int, hidden: Tensor, tokens: Tensor, context: Context) -> Tensor:
        """The next hidden [B, T, D] by the prediction module of a depth, from 0 on; `tokens` [B, T] as in `draft`."""
        return self.mtp[str(depth)](hidden, self._look_up(tokens), context)  # type: ignore[no-any-return]


def soft_cap(logits: Tensor, cap: float | None) -> Tensor:
    """Logits within +-cap, by tanh (Gemma 2: Gemma Team 2024 §2); null: as they are."""
    return logits if cap is None else torch.tanh(logits / cap) * cap

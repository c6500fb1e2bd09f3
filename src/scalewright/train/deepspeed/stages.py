"""Our decoder as the layers of a DeepSpeed PipelineModule, cut where the layout cuts it.

    Words | Block 0 | ... | Block L-1 | Norm | Head        LayerSpecs, of which a rank builds its stage's
      '-------------- one weight, if tied ------'          TiedLayerSpecs: gradients are summed over the two

The layers hold the modules of this rank's `Decoder`, under whose names weights stay known. Only hidden states
travel: positions and documents of a micro-batch are every rank's own, and each forward takes the next one's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from torch import Tensor, nn

from scalewright.model.context import Context
from scalewright.model.decoder import Decoder
from scalewright.parallel.inputs import Micro

LossOf = Callable[[Tensor, Tensor], Tensor]  # (logits, targets) -> what a backward begins from


class Feed:
    """The micro-batches of a step, one a forward, and what the blocks of a forward share."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.micros: list[Micro] = []
        self.context: Context | None = None

    def begin(self, micros: Sequence[Micro]) -> None:
        """Before a step's first forward."""
        self.micros = list(micros)

    def advance(self) -> None:
        """A forward begins: it is of the next micro-batch, as in every order of a pipeline without chunks."""
        self.arguments, self.context = self.micros.pop(0).arguments, None

    def enter(self, x: Tensor) -> Tensor:
        """What the first block here takes; the context is there afterwards."""
        x, self.context = self.decoder.enter(x, **self.arguments)
        return x


class Words(nn.Module):
    """Tokens to hidden states; where the embedding is tied, also its weight at the other end."""

    def __init__(self, feed: Feed) -> None:
        super().__init__()
        decoder = feed.decoder
        self.feed = feed
        self.table = decoder.embed if decoder.embed is not None else decoder.head
        self.positions, self.norm = decoder.positions, decoder.embed_norm

    def forward(self, tokens: Tensor) -> Tensor:
        return self.feed.enter(tokens)


class Block(nn.Module):
    """One block of the decoder."""

    def __init__(self, feed: Feed, number: int) -> None:
        super().__init__()
        self.feed, self.block = feed, feed.decoder.layers[str(number)]

    def forward(self, hidden: Tensor) -> Tensor:
        if self.feed.context is None:
            hidden = self.feed.enter(hidden)
        out: Tensor = self.block(hidden, self.feed.context)
        return out


class Norm(nn.Module):
    """The last norm, where the model has one."""

    def __init__(self, feed: Feed) -> None:
        super().__init__()
        self.norm = feed.decoder.norm

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = hidden if self.norm is None else self.norm(hidden)
        return out


class Head(nn.Module):
    """Hidden states to logits."""

    def __init__(self, feed: Feed) -> None:
        super().__init__()
        self.feed, self.head = feed, feed.decoder.head

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.feed.decoder.logits(hidden)
        return out


def tied_logits(words: Words, hidden: Tensor) -> Tensor:
    """Logits by the embedding's weight, which `words` holds at the last stage."""
    out: Tensor = words.feed.decoder.logits(hidden)
    return out


def build_stages(deepspeed: Any, feed: Feed, layers: Sequence[int], tied: bool, loss: LossOf) -> nn.Module:
    """The PipelineModule, with `layers` blocks in each stage."""
    pipe = deepspeed.pipe
    blocks = [pipe.LayerSpec(Block, feed, number) for number in range(sum(layers))]
    if tied:
        end = {"forward_fn": tied_logits, "tied_weight_attr": "table.weight"}
        words = pipe.TiedLayerSpec("words", Words, feed, tied_weight_attr="table.weight")
        head = pipe.TiedLayerSpec("words", Words, feed, **end)
    else:
        words, head = pipe.LayerSpec(Words, feed), pipe.LayerSpec(Head, feed)
    bounds = [1 + blocks_below for blocks_below in accumulate(layers)]
    bounds = [0, *bounds[:-1], len(blocks) + 3]
    specs = [words, *blocks, pipe.LayerSpec(Norm, feed), head]

    class Stages(pipe.PipelineModule):  # type: ignore[misc,name-defined]
        """The layers, cut at the layout's bounds."""

        def _partition_layers(self, method: str = "uniform") -> None:
            stage = self._topo.get_coord(self.global_rank).pipe
            self.parts = bounds
            self._set_bounds(start=bounds[stage], stop=bounds[stage + 1])

        def forward(self, inputs: Tensor) -> Any:
            feed.advance()
            return super().forward(inputs)

    stages: nn.Module = Stages(specs, num_stages=len(layers), loss_fn=loss)
    return stages

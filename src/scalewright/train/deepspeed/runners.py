"""A step's micro-batches, forward and backward, by DeepSpeed's two engines.

    DeepSpeedEngine   engine(micro) -> engine.backward(loss) -> engine.step(), which updates after the last
    PipelineEngine    engine.train_batch(micros): 1F1B, reduction and update in one call

Both average gradients over data-parallel ranks and micro-batches. Ours are sums: a loss is the sum of its tokens' over
the counted tokens of the whole global batch, so it is multiplied by ranks x micro-batches first. A PipelineModule has
our decoder as its layers, cut where the layout cuts it:

    Words | Block 0 | ... | Block L-1 | Norm | Head        LayerSpecs, of which a rank builds its stage's
      '-------------- one weight, if tied ------'          TiedLayerSpecs: gradients are summed over the two

The layers hold the modules of this rank's `Decoder`, under whose names weights stay known. Only hidden states travel:
positions and documents of a micro-batch are every rank's own, and each forward takes the next one's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from scalewright.model.context import Context
from scalewright.model.decoder import Decoder
from scalewright.parallel.chunked_loss import IGNORED
from scalewright.parallel.execute import Loss, Recorder
from scalewright.parallel.inputs import Micro


class WithLoss(nn.Module):
    """A network and its loss as one module: ZeRO 3 lets parameters go when a forward ends, the head's too."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, micro: Micro, loss: Loss) -> tuple[Tensor, Tensor]:
        """Sums of token losses and of auxiliary ones."""
        return loss(self.network(micro.tokens, **micro.arguments), micro.targets)


class Whole:
    """Every rank runs the whole network."""

    def __init__(self, engine: Any, averaged: int) -> None:
        """`averaged`: data-parallel ranks x micro-batches of a rank."""
        self.engine, self.averaged = engine, averaged
        self.recorder = Recorder()

    def train(self, micros: Sequence[Micro], loss: Loss, divisor: Tensor) -> Tensor:
        """Micro-batch after micro-batch; the update of the last one waits for `update`."""
        losses = torch.zeros(2, device=divisor.device)
        self.engine.train()
        for index, micro in enumerate(micros):
            total, extra = self.engine(micro, loss)
            self.engine.backward((total + extra) * self.averaged / divisor)
            losses += torch.stack([total.detach(), extra.detach()]) / divisor
            if index < len(micros) - 1:
                self.engine.step()
        return losses

    def update(self) -> None:
        """Clips and updates."""
        self.engine.step()

    @torch.no_grad()
    def total(self, micro: Micro, loss: Loss) -> Tensor:
        """The loss sum of one micro-batch."""
        self.engine.eval()
        total: Tensor = self.engine(micro, loss)[0]
        return total


class Piped:
    """Every rank runs a stage."""

    def __init__(self, feed: Feed, averaged: int, rows: int) -> None:
        """`rows`: of a micro-batch. The engine comes later: its module needs this object's `loss_of`."""
        self.feed, self.averaged, self.rows = feed, averaged, rows
        self.engine: Any = None
        self.recorder = Recorder()
        self._loss: Loss | None = None
        self._divisor: Tensor | None = None  # null: sums are wanted
        self._losses = torch.zeros(2)

    def train(self, micros: Sequence[Micro], loss: Loss, divisor: Tensor) -> Tensor:
        """The whole step, with the update; 0 where a rank isn't of the last stage."""
        self._loss, self._divisor = loss, divisor
        self._losses = torch.zeros(2, device=divisor.device)
        self.feed.begin(micros)
        self.engine.train_batch(iter([(micro.tokens, micro.targets) for micro in micros]))
        return self._losses

    def update(self) -> None:
        """Done already."""

    def loss_of(self, logits: Tensor, targets: Tensor) -> Tensor:
        """What the last stage begins a backward from, or adds up in a validation."""
        assert self._loss is not None
        total, extra = self._loss(logits, targets)
        if self._divisor is None:
            return total
        self._losses += torch.stack([total.detach(), extra.detach()]) / self._divisor
        return (total + extra) * self.averaged / self._divisor

    def total(self, micro: Micro, loss: Loss) -> Tensor:
        """The loss sum of one micro-batch; 0 where a rank isn't of the last stage. All ranks call it."""
        self._loss, self._divisor = loss, None
        micro = _filled(micro, self.rows)
        self.feed.begin([micro])
        batch = iter([(micro.tokens, micro.targets)])
        made = self.engine.eval_batch(batch, reduce_output=None, bcast_loss=False, num_micro_batches=1)
        return made[0] if self.engine.is_last_stage() else torch.zeros((), device=micro.tokens.device)


def _filled(micro: Micro, rows: int) -> Micro:
    """A micro-batch of `rows` rows, as all of a pipeline are: its last row again, of which nothing counts."""
    short = rows - len(micro.tokens)
    if not short:
        return micro

    def fill(values: Tensor) -> Tensor:
        return torch.cat([values, values[-1:].expand(short, *values.shape[1:])])

    targets = fill(micro.targets)
    targets[-short:] = IGNORED
    arguments = {name: fill(value) if len(value) > 1 else value for name, value in micro.arguments.items()}
    return Micro(fill(micro.tokens), targets, arguments)


def watch_updates(engine: Any, look: Callable[[], bool]) -> None:
    """Lets ZeRO 0's update ask `look()` first: whether gradients, reduced and not yet clipped, are finite. The other
    stages look themselves, and tell their norm; this one clips and updates whatever there is."""
    take = engine._take_model_step

    def guarded(lr_kwargs: Any, *rest: Any, **more: Any) -> None:
        if look():
            take(lr_kwargs, *rest, **more)
        else:
            engine.zero_grad()
            engine.skipped_steps += 1

    engine._take_model_step = guarded


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
        words, head = (
            pipe.TiedLayerSpec("words", Words, feed, forward_fn=function, tied_weight_attr="table.weight")
            for function in (None, tied_logits)
        )
    else:
        words, head = pipe.LayerSpec(Words, feed), pipe.LayerSpec(Head, feed)
    bounds = [0, *(1 + blocks_below for blocks_below in accumulate(layers[:-1])), len(blocks) + 3]
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

"""Multi-token prediction on one device: the loss and gradients of a loop over depths, one step as a draft."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from runs import MODEL
from scalewright.data.batch import IGNORED, Batch
from scalewright.model.block import Predictions
from scalewright.model.decoder import Decoder
from scalewright.parallel.execute import run_losses
from scalewright.parallel.inputs import Micro, Wanted, micro_batches
from scalewright.spec.errors import UserError
from scalewright.spec.model import ModelSpec
from scalewright.train.loss import build_loss
from scalewright.train.network import load_python

DEPTHS, WEIGHT = 2, 0.3
ROW = [5, 9, 2, 7, 7, 3, 11, 4, 8, 6, 1, 12]
STARTS = [0, 5, 7]  # of the documents of a row; the second is too short for a target of depth 2
WANTED = Wanted(frozenset({"positions", "documents"}), ahead=DEPTHS)
Weights = dict[str, Tensor]


def make(**keys: Any) -> Decoder:
    """A decoder with two prediction modules, whose numbers are large enough to be told apart."""
    decoder = Decoder(ModelSpec.parse({**MODEL, "mtp_layers": DEPTHS, **keys}))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in decoder.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1.0 + 0.1 * noise if parameter.dim() == 1 else 0.3 * noise)
    return decoder


def batch(starts: list[int] | None = None) -> Batch:
    """Two rows of other tokens, with the same documents; null: one document, as without a mask."""
    grid = np.array([[*ROW, 10], [*(np.array(ROW)[::-1] + 20), 40]])
    tokens, targets, length = grid[:, :-1], grid[:, 1:].copy(), len(ROW)
    positions, documents = np.tile(np.arange(length), (2, 1)), None
    if starts is not None:
        targets[:, [start - 1 for start in starts[1:]]] = IGNORED
        number = np.searchsorted(starts, np.arange(length), side="right") - 1
        positions = np.tile(np.arange(length) - np.array(starts)[number], (2, 1))
        documents = np.tile(number.astype(np.int32), (2, 1))
    return Batch(tokens, targets, positions, documents, np.arange(2))


def loss_of(decoder: Decoder, micro: Micro) -> tuple[Tensor, Tensor]:
    """The run's loss, and its auxiliary loss, as sums."""
    loss = build_loss("cross_entropy", 0.0, load_python, mtp_weight=WEIGHT)
    return run_losses(decoder, micro.tokens, micro, loss)


# -- the same by hand, a document by itself: x [T, D] ------------------------------------------------------


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt() * weight


def turn(x: Tensor) -> Tensor:
    """RoPE of x [T, H, K]: pairs (i, i + K/2) turn by position / 10000^(2i/K)."""
    half = x.shape[-1] // 2
    angle = torch.arange(len(x))[:, None, None] * 10000.0 ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], dim=-1)


def block(x: Tensor, w: Weights, name: str) -> Tensor:
    """A block of four query heads and two of keys."""
    normed = norm(x, w[f"{name}.attention_norm.weight"])
    q, k, v = ((normed @ w[f"{name}.attention.{part}.weight"].T).unflatten(-1, (-1, 6)) for part in ("q", "k", "v"))
    q, k, v = turn(q), turn(k).repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
    scores = torch.einsum("thk,shk->hts", q, k) / 6**0.5
    scores = scores.masked_fill(torch.ones(len(x), len(x)).triu(1).bool(), float("-inf"))
    attended = torch.einsum("hts,shk->thk", scores.softmax(dim=-1), v).flatten(1)
    x = x + attended @ w[f"{name}.attention.o.weight"].T
    normed = norm(x, w[f"{name}.mlp_norm.weight"])
    gate, up = (normed @ w[f"{name}.mlp.{part}.weight"].T for part in ("gate", "up"))
    return x + (F.silu(gate) * up) @ w[f"{name}.mlp.down.weight"].T


def by_hand(w: Weights, tokens: list[int], targets: list[int]) -> tuple[Tensor, Tensor]:
    """(loss, auxiliary loss) of one document: its tokens, and the target of each."""
    head = w.get("head.weight", w["embed.weight"])

    def entropy(hidden: Tensor, wanted: list[int]) -> Tensor:
        logs = (hidden @ head.T).log_softmax(dim=-1)
        pairs = [(place, word) for place, word in enumerate(wanted) if word != IGNORED]
        return sum((-logs[place, word] for place, word in pairs), torch.zeros(()))

    x = w["embed.weight"][tokens]
    for layer in range(3):
        x = block(x, w, f"layers.{layer}")
    hidden = norm(x, w["norm.weight"])
    main, ahead = entropy(hidden, targets), torch.zeros(())
    for k in range(1, DEPTHS + 1):
        name = f"mtp.{k - 1}"
        places = len(tokens) - k  # those whose token k ahead lies in the document
        if places < 1:
            break
        embedded = norm(w["embed.weight"][tokens[k:]], w[f"{name}.embed_norm.weight"])
        before = norm(hidden[:places], w[f"{name}.hidden_norm.weight"])
        x = torch.cat([embedded, before], dim=-1) @ w[f"{name}.join.weight"].T
        hidden = norm(block(x, w, f"{name}.block"), w[f"{name}.norm.weight"])
        ahead = ahead + entropy(hidden, targets[k:])
    return main, WEIGHT / DEPTHS * ahead


@pytest.mark.parametrize("starts", [None, STARTS], ids=["one document", "packed"])
@pytest.mark.parametrize("tied", [False, True])
def test_losses_and_gradients_are_those_of_a_loop_over_depths(starts: list[int] | None, tied: bool) -> None:
    decoder, rows = make(tie_word_embeddings=tied), batch(starts)
    (micro,) = micro_batches(rows, 2, torch.device("cpu"), WANTED)
    main, auxiliary = loss_of(decoder, micro)
    (main + auxiliary).backward()
    w = {name: p.detach().clone().requires_grad_() for name, p in decoder.named_parameters()}
    expected = [torch.zeros(()), torch.zeros(())]
    ends = [*(starts or [0]), len(ROW)]
    for tokens, targets in zip(rows.tokens.tolist(), rows.targets.tolist(), strict=True):
        for start, stop in pairwise(ends):
            parts = by_hand(w, tokens[start:stop], targets[start:stop])
            expected = [total + part for total, part in zip(expected, parts, strict=True)]
    sum(expected).backward()  # type: ignore[union-attr]
    # fp32 sums in another order
    assert main.item() == pytest.approx(expected[0].item(), rel=1e-6)
    assert auxiliary.item() == pytest.approx(expected[1].item(), rel=1e-6)
    assert {"embed.weight", "mtp.1.join.weight"} < set(w)
    for name, parameter in decoder.named_parameters():
        mine, theirs = parameter.grad, w[name].grad
        assert mine is not None
        assert theirs is not None
        assert theirs.abs().max() > 0, name
        assert (mine - theirs).abs().max() <= 1e-5 * theirs.abs().max(), name


def test_one_step_gives_the_logits_of_training() -> None:
    decoder = make()
    (micro,) = micro_batches(batch(STARTS), 2, torch.device("cpu"), WANTED)
    ahead = micro.arguments.pop("ahead")
    with torch.no_grad():
        trained = decoder(micro.tokens, **micro.arguments, ahead=ahead)
        hidden = decoder.features(micro.tokens, **micro.arguments)
        assert torch.equal(decoder.logits(hidden), trained.logits)
        for depth in range(1, DEPTHS + 1):
            hidden, logits = decoder.draft(hidden, ahead[depth - 1], depth, **micro.arguments)
            assert torch.equal(logits, trained.ahead[depth - 1])
    with pytest.raises(UserError, match="depth 3, and the model has 2 prediction modules"):
        decoder.draft(hidden, ahead[0], depth=3)


def test_without_tokens_ahead_the_modules_are_left_out() -> None:
    decoder = make()
    (micro,) = micro_batches(batch(), 2, torch.device("cpu"), WANTED)
    with torch.no_grad():
        expected = decoder(micro.tokens, **micro.arguments)
        for parameter in decoder.mtp.parameters():
            parameter.fill_(float("nan"))
        logits = decoder(micro.tokens)
    assert isinstance(expected, Predictions)
    assert torch.equal(logits, expected.logits)

"""Recomputation: the same bits, less memory, and only the matmuls of each kind run again.

A recomputation budget, executed: the same bits, bytes within it, and kept products don't run again.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from parts import build as build_words
from runs import MODEL
from scalewright.dry_run.live_bytes import LiveBytes
from scalewright.model.block import Block
from scalewright.model.decoder import Decoder
from scalewright.model.init import initialize
from scalewright.parallel.recompute import CORE, PRODUCTS, apply_recompute, is_core
from scalewright.parallel.stages import find_blocks
from scalewright.spec.layout import Layout, RecomputeBudget, RecomputeEvery
from scalewright.spec.model import ModelSpec
from scalewright.spec.presets import load_model_spec
from scalewright.spec.recompute_budget import keep, products

KINDS = ["none", "selective", "full", RecomputeEvery(every=2)]
SPEC = ModelSpec.parse(MODEL)
ARGUMENTS = {"tokens": torch.randint(0, 67, (2, 16), generator=torch.Generator().manual_seed(0))}


class Count(TorchDispatchMode):
    """How often a matrix product ran."""

    def __init__(self) -> None:
        super().__init__()
        self.matmuls = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.matmuls += function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return function(*args, **(kwargs or {}))


def decoder(kind: Any) -> nn.Module:
    model = Decoder(SPEC)
    initialize(model, SPEC, 0)
    apply_recompute(find_blocks(model), kind)
    return model


def gradients(model: nn.Module, **arguments: Tensor) -> tuple[Tensor, list[Tensor], int]:
    """The loss, the gradients, and the matrix products that the backward ran."""
    torch.manual_seed(5)
    loss = model(**arguments).logsumexp(-1).sum()
    with Count() as count:
        loss.backward()
    return loss.detach(), [p.grad for p in model.parameters() if p.grad is not None], count.matmuls


@pytest.mark.parametrize("kind", KINDS[1:], ids=["selective", "full", "every2"])
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_are_equal_bit_for_bit(kind, masked):
    more = {"documents": torch.tensor([[0] * 7 + [1] * 9, [0] * 12 + [1] * 4])} if masked else {}
    loss, control, _ = gradients(decoder("none"), **ARGUMENTS, **more)
    again, recomputed, _ = gradients(decoder(kind), **ARGUMENTS, **more)
    assert torch.equal(again, loss)
    assert len(recomputed) == len(control) == 3 * 9 + 3
    assert all(torch.equal(a, b) for a, b in zip(recomputed, control, strict=True))


def test_each_kinds_products_run_again():
    """A block has 7 products (q, k, v, o, gate, up, down), each with two in its backward; the head has one.

    selective runs none of them again, full all 7 of 3 blocks, every 2 those of blocks 0 and 2. (The last
    product of a block isn't needed by its backward, so torch may stop before it: 6 or 7.)
    """
    counts = [gradients(decoder(kind), **ARGUMENTS)[2] for kind in KINDS]
    none = 2 * (3 * 7 + 1)
    assert counts[0] == none
    assert counts[1] == none
    assert none + 3 * 6 <= counts[2] <= none + 3 * 7
    assert none + 2 * 6 <= counts[3] <= none + 2 * 7


@pytest.mark.parametrize("kind", ["selective", "full"])
def test_dropout_draws_the_same_numbers_again(kind):
    def run(kind: Any) -> tuple[Tensor, list[Tensor], int]:
        torch.manual_seed(0)
        model = build_words(dropout=0.5)
        apply_recompute(find_blocks(model), kind, random=True)
        return gradients(model, tokens=ARGUMENTS["tokens"])

    loss, control, _ = run("none")
    again, recomputed, _ = run(kind)
    assert torch.equal(again, loss)
    assert all(torch.equal(a, b) for a, b in zip(recomputed, control, strict=True))


def test_no_gradient_no_recomputation():
    model = decoder("full")
    with torch.no_grad():
        out = model(**ARGUMENTS)
    assert not out.requires_grad
    assert torch.equal(out, decoder("none")(**ARGUMENTS))


def test_blocks_are_found():
    """The longest run of siblings of one class, in order."""
    assert [type(block).__name__ for block in find_blocks(Decoder(SPEC))] == ["Block"] * 3
    assert [type(block).__name__ for block in find_blocks(build_words(layers=2))] == ["Layer"] * 2
    assert find_blocks(nn.Linear(2, 2)) == []
    mixed = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    assert find_blocks(mixed) == []


# One of each wiring: gated, plain with biases, parallel, norms on both sides, after, of heads, capped scores
FAMILIES = ["llama-56m", "gpt2-124m", "pythia-160m", "gemma-3-270m", "olmo-2-1b", "qwen3-0.6b", "gemma-2-2b"]
BUDGETS = [0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9, 1.0]
BATCH, LENGTH = 2, 64
LAYOUT = Layout(micro_batch=BATCH, precision="fp32")


def family(name: str) -> ModelSpec:
    """A family's wiring at a small size."""
    spec = load_model_spec(name)
    heads = 4 if spec.kv_heads == spec.num_attention_heads else 2
    return spec.replace(
        num_hidden_layers=1, vocab_size=67, hidden_size=64, intermediate_size=160, num_attention_heads=4,
        num_key_value_heads=heads, head_dim=16, context=LENGTH, query_scale=None,
    )  # fmt: skip


class Seen(TorchDispatchMode):
    """Live bytes, and the products and attention kernels that ran, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.live, self.ran = LiveBytes(), list[str]()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        if function in PRODUCTS:
            self.ran.append("product")
        elif is_core(function):
            self.ran.append("core")
        for tensor in output if isinstance(output, (tuple, list)) else (output,):
            if isinstance(tensor, Tensor):
                self.live.count(tensor, "activations")
        return output


def run_block(spec: ModelSpec, budget: float | None) -> tuple[int, list[str], list[Tensor]]:
    """Bytes that a block keeps with its input, what its backward ran, and every gradient."""
    torch.manual_seed(0)
    decoder = Decoder(spec)
    initialize(decoder, spec, 0)
    block = decoder.layers["0"]
    assert isinstance(block, Block)
    if budget is not None:
        kind = RecomputeBudget(budget=budget)
        apply_recompute([block], kind, model=spec, layout=LAYOUT, seq_len=LENGTH)
    x = torch.randn(BATCH, LENGTH, spec.hidden_size, requires_grad=True)
    context = decoder.context(x, LENGTH, None, None, None)
    with Seen() as seen:
        for tensor in (*block.parameters(), *(context.rope or ())):
            seen.live.tag(tensor, "parameters")
        seen.live.tag(x, "activations")
        out = block(x, context)
        kept = seen.live.now["activations"] - out.nbytes
        seen.ran.clear()
        out.square().sum().backward()
    return kept, seen.ran, [x.grad, *(p.grad for p in block.parameters())]  # type: ignore[list-item]


@pytest.mark.parametrize("name", FAMILIES)
def test_bytes_stay_within_the_budget_and_bits_the_same(name):
    spec = family(name)
    none, ran_none, control = run_block(spec, None)
    before = 0
    for budget in BUDGETS:
        kept, ran, gradients = run_block(spec, budget)
        choice = keep(spec, LAYOUT, LENGTH, budget)
        assert all(torch.equal(a, b) for a, b in zip(gradients, control, strict=True))
        assert kept <= max(budget * none, choice.bytes * 1.01)  # norms' and statistics' numbers a row
        assert kept >= before
        before = kept
        if not choice.whole:
            assert kept == pytest.approx(choice.bytes, rel=0.01)
        # the last product is not needed by the backward: torch stops before it, unless a norm follows
        again = [n for n in products(spec) if n not in choice.kept]
        stops = not choice.whole and spec.norm_position == "pre"
        assert ran.count("product") - ran_none.count("product") == len(again) - stops
        assert ran.count("core") - ran_none.count("core") == (CORE not in choice.kept)


@pytest.mark.parametrize("name", FAMILIES)
def test_products_run_in_the_order_of_the_spec(name):
    """By their shapes, made different for every product: the n-th that runs is the n-th of the spec."""
    spec = family(name)
    block = Decoder(spec).layers["0"]
    order: list[str] = []
    for path, module in block.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_pre_hook(lambda *_, path=path: order.append(path))
    x = torch.randn(1, LENGTH, spec.hidden_size)
    block(x, Decoder(spec).context(x, LENGTH, None, None, None))
    assert tuple(order) == products(spec)


def test_compiled_blocks_keep_the_budget_too():
    """The policy is called for every operator of the traced block, in the same order."""
    spec = family("llama-56m")

    def gradients(budget: float | None) -> list[Tensor]:
        torch._dynamo.reset()
        decoder = Decoder(spec)
        initialize(decoder, spec, 0)
        if budget is not None:
            kind = RecomputeBudget(budget=budget)
            blocks = list(decoder.layers.values())
            apply_recompute(blocks, kind, model=spec, layout=LAYOUT, seq_len=LENGTH)
            blocks[0].compile(backend="aot_eager", fullgraph=True)
        tokens = torch.arange(BATCH * LENGTH).reshape(BATCH, LENGTH) % 67
        decoder(tokens).logsumexp(-1).sum().backward()
        return [p.grad for p in decoder.parameters() if p.grad is not None]

    for compiled, control in zip(gradients(0.5), gradients(None), strict=True):
        torch.testing.assert_close(compiled, control, rtol=1e-5, atol=1e-6)  # fused steps round elsewhere

"""Recomputation under a budget: the best set, never too large, and priced as the planner prices it."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest

from scalewright.spec.block import block
from scalewright.spec.flops import recompute_flops
from scalewright.spec.layout import Layout
from scalewright.spec.operators import activation_bytes
from scalewright.spec.presets import load_model_spec
from scalewright.spec.primitives import sizes
from scalewright.spec.recompute_budget import Choice, keep, least_budget, products

BUDGETS = [0, 0.05, 0.1, 0.2, 0.25, 0.33, 0.4, 0.5, 0.6, 0.67, 0.75, 0.9, 1]
MODELS = ["llama-3.1-8b", "gpt2-124m", "pythia-160m", "gemma-2-9b", "mixtral-8x7b", "deepseek-v3"]
LAYOUT = Layout.parse({"devices": 4, "tp": 4, "micro_batch": 2, "precision": "bf16"})


@pytest.mark.parametrize("name", MODELS)
def test_a_budget_is_kept_and_more_of_it_never_costs_work(name):
    model = load_model_spec(name)
    for layer in (0, model.num_hidden_layers - 1):
        choices = [keep(model, LAYOUT, 2048, budget, layer) for budget in BUDGETS]
        floor = choices[0].bytes
        for budget, choice in zip(BUDGETS, choices, strict=True):
            assert choice.bytes <= max(budget * choice.none_bytes, floor)
            assert choice.kept <= {*products(model, layer), "attention.core"}
        for less, more in pairwise(choices):
            assert more.bytes >= less.bytes
            assert more.flops_causal <= less.flops_causal


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt2-124m", "pythia-160m"])
def test_no_other_set_saves_more(name):
    """Against every subset."""
    model = load_model_spec(name)
    ops = list(block(model, sizes(LAYOUT, 2048), 0))
    costly = {o.name.removeprefix("layers.0."): o for o in ops if o.flops}
    last = list(costly)[-1]
    none, inputs = sum(o.saved for o in ops), sum(o.saved_full for o in ops)
    prices = {n: o.saved if o.kind == "attention" else o.written for n, o in costly.items() if n != last}
    for budget in BUDGETS[1:-1]:
        best = max(
            sum(costly[name].flops_causal for name in chosen)
            for count in range(len(prices) + 1)
            for chosen in combinations(prices, count)
            if inputs + sum(prices[name] for name in chosen) <= max(budget * none, inputs)
        )
        choice = keep(model, LAYOUT, 2048, budget)
        assert sum(costly[name].flops_causal for name in choice.kept) == best


def test_the_ends_are_full_and_none():
    model = load_model_spec("llama-3.1-8b")

    def price(kind: object) -> tuple[float, float]:
        layout = LAYOUT.replace(recompute=kind)
        return activation_bytes(model, layout, 2048), recompute_flops(model, layout, 2048)

    assert price({"budget": 0.0}) == price("full")
    assert price({"budget": 1.0}) == price("none")
    half = keep(model, LAYOUT, 2048, 0.5)
    layers = model.num_hidden_layers
    outside = price("none")[0] - layers * half.none_bytes
    assert price({"budget": 0.5}) == (pytest.approx(outside + layers * half.bytes), layers * half.flops_causal)


def test_longer_sequences_keep_attention_first():
    """Its FLOPs grow with the square of the length, its bytes don't."""
    model = load_model_spec("llama-3.1-8b")

    def kept(seq_len: int) -> Choice:
        return keep(model, LAYOUT, seq_len, 0.15)

    assert "attention.core" not in kept(512).kept
    assert "attention.core" in kept(65536).kept


def test_a_capped_attention_is_kept_as_any():
    """It keeps its output and a number a query and head, of its scores nothing."""
    capped = load_model_spec("gemma-2-9b")
    plain = capped.replace(attention_softcap=None)
    for budget in BUDGETS:
        assert keep(capped, LAYOUT, 65536, budget) == keep(plain, LAYOUT, 65536, budget)
    assert "attention.core" in keep(capped, LAYOUT, 65536, 0.5).kept


def test_the_least_budget_is_a_blocks_input():
    model = load_model_spec("llama-3.1-8b")
    least = least_budget(model, LAYOUT, 2048)
    assert keep(model, LAYOUT, 2048, least).kept == frozenset()
    assert 0.03 < least < 0.1

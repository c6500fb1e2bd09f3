"""Memory falls as each technique's paper says: measured on CPU processes by live tensor bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from harness.live_memory import Found
from harness.memory_cases import BASELINES, CASES, FALLING, ONE, Case, baseline, falling, with_baselines
from harness.memory_claims import Claim, Setting

from scalewright.spec.model import ModelSpec

SETTING = Setting(
    ModelSpec.parse(
        {
            "name": "tiny",
            "vocab_size": 512,
            "hidden_size": 64,
            "intermediate_size": 176,
            "num_hidden_layers": 8,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "context": 64,
        }
    ),
    64,
)
BY_NAME = {case.name: case for case in CASES}
# One of each technique; the others are slow.
DEFAULT = {
    "one device", "micro-batch 1", "recompute full", "recompute {budget: 0.5}", "offload activations",
    "ZeRO-3 on 2", "tp 2, sp", "pp 2, 1f1b", "mixture, ep 2",
}  # fmt: skip


@pytest.fixture(scope="module")
def measured() -> dict[str, Found]:
    """What was measured so far; one device first, since the others are held against it."""
    return {"one device": BY_NAME["one device"].measure(SETTING)}


def marked(case: Case) -> object:
    return case if case.name in DEFAULT else pytest.param(case, marks=pytest.mark.slow)


@pytest.mark.parametrize("case", [marked(case) for case in CASES], ids=lambda case: case.name)
def test_the_papers_numbers(measured, case):
    """Tolerances: 2% for what a formula leaves out (tokens, a norm's statistics, tables); a pipeline's 8% for
    outputs on their way. Each claim says its own."""
    found = measured.get(case.name) or measured.setdefault(case.name, case.measure(SETTING))
    claims = case.claims(case.setting(SETTING), case.keys, found, measured["one device"])
    assert claims
    assert [claim for claim in claims if not claim.holds] == []


def test_what_falls(measured):
    """After the others: of what they measured (all of it, when slow tests run)."""
    fell = falling(measured)
    assert [pair for pair in fell if not pair[3]] == []


def test_a_pipeline_is_held_against_the_same_micro_batch():
    """A smaller micro-batch saves memory by itself; `pp 2, 1f1b` falls without its help."""
    for size, name in BASELINES.items():
        assert BY_NAME[name].keys == {**ONE, "micro_batch": size}
    assert baseline(BY_NAME["pp 2, 1f1b"]) == "micro-batch 1"
    assert baseline(BY_NAME["ZeRO-3 on 4"]) == "one device"
    assert ("peak", "micro-batch 1", "pp 2, 1f1b") in {
        (kind, *pair) for kind, names in FALLING for pair in pairwise(names)
    }
    names = [case.name for case in with_baselines(["pp 2, gpipe"])]
    assert names == ["one device", "micro-batch 1", "pp 2, gpipe"]


def test_claims_can_fail():
    assert not Claim("", 1.1, 1.0, 0.05).holds
    assert not Claim("", 0.9, 1.0, 0.05).holds
    assert Claim("", 0.9, 1.0, 0.05, at_most=True).holds
    assert not Claim("", 1.1, 1.0, 0.05, at_most=True).holds
    assert not Claim("", 1.0, 0.0, 0.05).holds
    assert {name for _, names in FALLING for name in names} <= BY_NAME.keys()


@pytest.mark.slow
def test_the_script(script):
    data, text = script("memory.py", "--quick", "--cases", "recompute full", "tp 2, sp")
    assert data["facts"]["command"].startswith("python ")
    assert data["finished"] >= data["started"]
    assert list(data["cases"]) == ["one device", "recompute full", "tp 2, sp"]
    assert all(claim["holds"] for case in data["cases"].values() for claim in case["claims"])
    assert len(data["cases"]["tp 2, sp"]["ranks"]) == 2
    pairs = {(fell["from"], fell["to"]): fell["fell"] for fell in data["falling"]}
    assert pairs == {("one device", "tp 2, sp"): True, ("one device", "recompute full"): True}
    assert "recompute full" in text

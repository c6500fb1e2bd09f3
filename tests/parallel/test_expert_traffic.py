"""What a mixture's ranks send and keep in real steps on Gloo, against the formulas and the papers.

    ep     2 x k b s h each way of a pass, twice a step: dispatch and combine     Lepikhin et al. 2020 §3.2
    etp    etp times as much, since every rank of it gets every row               Singh et al. 2023 §4

How many rows come to a rank is the router's choice: bytes of all-to-alls over ep and etp are compared in sum
over the ranks that exchange, where what one gets another has sent. All else is compared rank by rank.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.parallel.test_traffic import SEQ_LEN, SMALL, watched_step
from tests.rank_states import state_bytes
from tests.rank_traffic import step_traffic
from tests.worlds import run_world

from scalewright.learn.communication import expert_volume
from scalewright.spec.grid import make_grid
from scalewright.spec.layout import Layout
from scalewright.spec.layout_check import check_layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.run import BalanceSpec

MOE: dict[str, Any] = {"num_experts": 4, "top_k": 2, "moe_intermediate_size": 12}
MODELS: dict[str, dict[str, Any]] = {
    "mixture": {**SMALL, "moe": MOE},
    "shared, a dense layer": {**SMALL, "moe": {**MOE, "num_shared_experts": 1, "first_k_dense": 1}},
    "shared behind a gate": {**SMALL, "moe": {**MOE, "num_shared_experts": 1, "shared_gate": True}},
    "biases, norms after": {**SMALL, "mlp_bias": True, "norm_position": "post", "moe": MOE},
}
LAYOUTS: list[tuple[str, dict[str, Any]]] = [
    ("mixture", {"devices": 2, "ep": 2, "zero_stage": 3, "global_batch": 4}),
    ("mixture", {"devices": 4, "ep": 2, "zero_stage": 0, "global_batch": 8}),
    ("mixture", {"devices": 4, "ep": 2, "zero_stage": 3, "dp_replicate": 2, "global_batch": 4}),
    ("mixture", {"devices": 2, "tp": 2, "zero_stage": 0}),
    ("mixture", {"devices": 2, "tp": 2, "ep": 2, "sp": False, "recompute": "full"}),
    ("mixture", {"devices": 4, "pp": 2, "ep": 2, "schedule": "zb-h1", "zero_stage": 3, "global_batch": 8}),
    ("mixture", {"devices": 4, "pp": 2, "ep": 1, "zero_stage": 3, "global_batch": 8}),
    ("shared, a dense layer", {"devices": 2, "ep": 2, "zero_stage": 3, "recompute": "full"}),
    ("shared, a dense layer", {"devices": 2, "tp": 2, "etp": 2, "recompute": "selective"}),
    ("shared, a dense layer", {"devices": 2, "tp": 2, "sp": False, "recompute": "full"}),
    ("shared, a dense layer", {"devices": 4, "tp": 2, "ep": 2, "zero_stage": 2, "global_batch": 4}),
    ("shared behind a gate", {"devices": 2, "tp": 2, "ep": 2, "sp": False, "recompute": "full"}),
    ("shared behind a gate", {"devices": 2, "tp": 2, "recompute": "full"}),
    ("biases, norms after", {"devices": 4, "tp": 2, "etp": 2, "zero_stage": 1, "global_batch": 4}),
    ("biases, norms after", {"devices": 2, "cp": 2, "ep": 2, "zero_stage": 3, "precision": "bf16"}),
]
UNEVEN = {f"{axis} all_to_all" for axis in ("ep", "etp")}
QUICK = (0, 4, 8, 9, 12)  # the others are slow


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        pytest.param(*case, id=f"{case[0]} {case[1]}", marks=[] if turn in QUICK else [pytest.mark.slow])
        for turn, case in enumerate(LAYOUTS)
    ],
)
def test_a_step_sends_the_bytes_of_the_spec(name: str, keys: dict[str, Any]) -> None:
    layout, model = Layout.parse(keys), ModelSpec.parse(MODELS[name])
    check_layout(layout, model, SEQ_LEN, train=True)
    bf16 = layout.precision == "bf16"
    results = run_world(watched_step, keys, MODELS[name])
    compare(layout, model, results, BalanceSpec(), bf16=bf16)
    for rank, result in enumerate(results):
        kept = state_bytes(model, layout, rank, bf16=bf16)
        assert result["kept"] == [kept.parameters, kept.gradients, kept.optimizer]


def compare(layout: Layout, model: ModelSpec, results: list[Any], balance: BalanceSpec, *, bf16: bool = False) -> None:
    """Calls and bytes of every rank; uneven bytes in sum over the ranks of a stage."""
    grid = make_grid(layout, model.kv_heads)
    expected_sums: Counter[tuple[int, str]] = Counter()
    sums: Counter[tuple[int, str]] = Counter()
    for rank, result in enumerate(results):
        table = step_traffic(model, layout, SEQ_LEN, rank, bf16=bf16, balance=balance)
        expected = {f"{axis} {kind}": [t.count, t.bytes] for (axis, kind), t in table.items()}
        for key in UNEVEN & expected.keys():
            stage = grid.coords(rank)["pp"]
            expected_sums[stage, key] += expected[key].pop()
            sums[stage, key] += result["sent"][key].pop()
        assert result["sent"] == expected, rank
    assert sums == expected_sums


@pytest.mark.parametrize(
    ("balance", "keys"),
    [
        ({"loss": 0.1}, {"devices": 2, "cp": 2, "zero_stage": 0}),
        pytest.param({"loss": 0.1}, {"devices": 2, "tp": 2, "recompute": "full"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_counts_by_whole_sequences_travel_too(balance: dict[str, Any], keys: dict[str, Any]) -> None:
    layout, model = Layout.parse(keys), ModelSpec.parse(MODELS["mixture"])
    results = run_world(watched_step, keys, MODELS["mixture"], balance)
    compare(layout, model, results, BalanceSpec.parse(balance))


@pytest.mark.parametrize(("axis", "devices"), [("ep", 2), pytest.param("etp", 2, marks=pytest.mark.slow)])
def test_dispatch_and_combine_as_in_their_papers(axis: str, devices: int) -> None:
    """All ranks together; each layer also sends its counts, 8 bytes an expert, a forward."""
    keys = {"devices": devices, axis: devices, "micro_batch": 2, "zero_stage": 0}
    results = run_world(watched_step, keys, MODELS["mixture"])
    sent = sum(result["sent"][f"{axis} all_to_all"][1] for result in results)
    layers, hidden = SMALL["num_hidden_layers"], SMALL["hidden_size"]
    counts = layers * 8 * MOE["num_experts"] * devices if axis == "ep" else 0
    paper = layers * expert_volume(2, SEQ_LEN, hidden, MOE["top_k"], copies=1 if axis == "ep" else devices)
    assert sent - counts == devices * 4 * paper

"""Expert capacity: which tokens are dropped, by an explicit loop; the same on any layout; planted errors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rank_traffic import step_traffic
from torch import Tensor

from dry_run.test_spec import by_axis
from parallel.test_expert_traffic import compare
from parallel.test_traffic import SMALL, watched_step
from parity.matrix import MOE
from report.page_checks import read_page
from runs import rows, run, run_data
from scalewright.dry_run.dry_run import dry_run
from scalewright.model.decoder import Decoder
from scalewright.model.init import init_box, initialize
from scalewright.model.moe import MoE
from scalewright.parallel.inputs import wanted_by
from scalewright.parallel.mesh import Mesh, make_mesh
from scalewright.parallel.parallelize import fill, parallelize
from scalewright.plan.request import from_question
from scalewright.report.run import write_report
from scalewright.spec.errors import UserError
from scalewright.spec.expert_volumes import capacity, kept_share
from scalewright.spec.grid import make_grid
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import place
from scalewright.spec.question import Question
from scalewright.spec.run import BalanceSpec, RunSpec
from scalewright.train import capacity as module
from scalewright.train.balance import Balance
from scalewright.train.capacity import within_capacity
from scalewright.train.resolve import resolve
from worlds import CPU, one_rank, run_world

KEYS: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "moe": {"num_experts": 4, "top_k": 2, "moe_intermediate_size": 12, "num_shared_experts": 1},
}  # fmt: skip
B, T, FACTOR = 2, 16, 0.75
SPEC = ModelSpec.parse(KEYS)
assert SPEC.moe is not None
MOST = capacity(FACTOR, SPEC.moe, T)


def by_loop(experts: list[list[list[int]]], most: int) -> list[list[list[bool]]]:
    """Token after token of each sequence: an expert takes it while it has room."""
    taken = []
    for sequence in experts:
        room = dict.fromkeys(range(64), most)
        taken.append([])
        for chosen in sequence:
            taken[-1].append([room[expert] > 0 for expert in chosen])
            for expert in chosen:
                room[expert] -= 1
    return taken


@pytest.mark.parametrize("most", [1, 3, 100])
def test_the_first_tokens_of_a_sequence_are_taken(most: int) -> None:
    random = torch.Generator().manual_seed(0)
    experts = torch.rand(3, 20, 6, generator=random).argsort(dim=-1)[..., :2]
    assert within_capacity(experts, most).tolist() == by_loop(experts.tolist(), most)


@pytest.mark.parametrize(
    ("factor", "tokens", "expected"), [(1.0, 16, 8), (1.25, 16, 10), (0.1, 16, 1), (1.0, 3, 2), (8.0, 16, 64)]
)
def test_capacity_is_the_papers(factor: float, tokens: int, expected: int) -> None:
    """Fedus et al. 2021 eq. 3, times k; of 4 experts, 2 for each token."""
    assert SPEC.moe is not None
    assert capacity(factor, SPEC.moe, tokens) == expected
    share = kept_share(factor, SPEC.moe, tokens)
    assert share == pytest.approx(min(1.0, 4 * expected / (2 * tokens)))


def tokens() -> Tensor:
    """The batch of every case; some words come often, and so do their experts."""
    return torch.randint(0, 64, (B, T), generator=torch.Generator().manual_seed(0)).square() % 64


def test_a_dropped_slot_gives_nothing_and_the_others_keep_their_weights() -> None:
    """A layer against a loop over its tokens, and only in training."""
    decoder, (mesh, _) = Decoder(SPEC), one_rank()
    initialize(decoder, SPEC, 0)
    layer = decoder.get_submodule("layers.0.mlp")
    assert isinstance(layer, MoE)
    x = torch.randn(B, T, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        whole = layer(x)
    balance = Balance.of(BalanceSpec(capacity_factor=FACTOR), mesh, decoder)
    out = layer(x)
    choice = layer.router(x.flatten(0, 1))
    taken = torch.tensor(by_loop(choice.experts.view(B, T, 2).tolist(), MOST)).view(-1, 2)
    assert 0 < int((~taken).sum()) == int(balance.drops[0])
    expected = layer.shared_output(x).flatten(0, 1).detach()
    for token, row in enumerate(x.flatten(0, 1)):
        for slot, expert in enumerate(choice.experts[token].tolist()):
            if taken[token, slot]:
                counts = torch.zeros(4, dtype=torch.int64).scatter(0, torch.tensor([expert]), 1)
                (made,) = layer.experts(row[None], counts).detach()
                expected[token] += choice.weights[token, slot].detach() * made
    assert torch.allclose(out.flatten(0, 1), expected, atol=1e-6)  # fp32 sums in another order
    with torch.no_grad():
        assert torch.equal(layer(x), whole)


def on_rank(mesh: Mesh, layout: Layout, fault: str) -> list[Any]:
    """This rank's tokens by their places in their rows, and of each layer the slots that were taken."""
    mesh = make_mesh(make_grid(layout, SPEC.kv_heads), mesh.rank, CPU)
    with torch.device("meta"):
        decoder = Decoder(SPEC)
    parallel = parallelize(decoder, place(SPEC, layout), layout, mesh, bf16=False, seq_len=T)
    fill(parallel.weights, lambda t, box: init_box(t, SPEC, 0, *box))
    Balance.of(BalanceSpec(capacity_factor=FACTOR), mesh, parallel.model)
    cut = wanted_by(parallel.model).cut
    index = torch.arange(T) if cut is None else torch.from_numpy(cut.tokens(T))
    layers: list[Any] = []
    for moe in (m for m in parallel.model.modules() if isinstance(m, MoE)):
        moe.limit = recorded(moe.limit, layers)
    patch = pytest.MonkeyPatch()
    if fault == "own tokens":  # counted without those of other ranks
        patch.setattr(module, "gathered", lambda x, dim, group: x.repeat(1, group.size, 1))
    try:
        parallel.model(tokens()[:, index], positions=index[None])
    finally:
        patch.undo()
    part = T // mesh.size("cp") // mesh.size("tp")
    return [index[mesh.index("tp") * part :][:part].tolist(), layers]


def with_and_without(mesh: Mesh, layout: Layout, faults: list[str]) -> list[list[Any]]:
    return [on_rank(mesh, layout, fault) for fault in faults]


def recorded(limit: Any, layers: list[Any]) -> Any:
    def run(choice: Any, number: int) -> Any:
        kept = limit(choice, number)
        layers.append(kept.slots.view(number, -1, 2).int().tolist())
        return kept

    return run


def whole_rows(ranks: Sequence[Any]) -> list[Tensor]:
    """The layers' slots [B, T, k], from those of all ranks."""
    layers = [torch.full((B, T, 2), -1) for _ in range(2)]
    for index, parts in ranks:
        for layer, part in zip(layers, parts, strict=True):
            layer[:, index] = torch.tensor(part)
    return layers


LAYOUTS: list[dict[str, Any]] = [
    {"cp": 2},
    {"cp": 2, "cp_kind": "ulysses"},
    {"tp": 2},
    {"tp": 2, "sp": False, "ep": 2},
    {"cp": 2, "tp": 2, "ep": 2, "etp": 2},
]


@pytest.mark.parametrize("axes", LAYOUTS, ids=str)
def test_no_layout_changes_what_is_dropped_and_a_planted_error_does(axes: dict[str, Any]) -> None:
    devices = axes.get("cp", 1) * axes.get("tp", 1)
    layout = {"devices": devices, "micro_batch": B, "global_batch": B, "zero_stage": 0, **axes}
    alone = {"devices": 1, "micro_batch": B, "global_batch": B, "zero_stage": 0}
    mesh, _ = one_rank()
    expected = whole_rows([on_rank(mesh, Layout.parse(alone), "none")])
    assert all(0 < int((layer == 0).sum()) < layer.numel() for layer in expected)
    mine, faulty = zip(*run_world(with_and_without, layout, ["none", "own tokens"]), strict=True)
    assert all(map(torch.equal, whole_rows(mine), expected))
    assert not all(map(torch.equal, whole_rows(faulty), expected))


def test_a_run_writes_the_share_that_is_dropped(tmp_path: Path) -> None:
    """Zero without a capacity, and no chart; with half of what even loads need, half of all or more."""
    model = {"moe": MOE}
    shares = {}
    for factor in (None, 0.5):
        train = {"steps": 2, "balance": {"capacity_factor": factor}}
        folder = str(tmp_path / f"factor-{factor}")
        data = run_data(tmp_path, out_dir=folder, model=model, train=train)
        out = Path(run(data).out_dir)
        shares[factor] = [row["expert_drop_share"] for row in rows(out)]
        assert ("Dropped by experts" in read_page(write_report(out)).body) is (factor is not None)
    assert shares[None] == [0.0, 0.0]
    assert all(0.5 <= share < 1 for share in shares[0.5])


def test_a_model_without_experts_is_refused(tmp_path: Path) -> None:
    spec = RunSpec.parse(run_data(tmp_path, train={"balance": {"capacity_factor": 1.0}}))
    with pytest.raises(UserError, match="capacity_factor 1 limits experts"):
        resolve(spec)


TRAFFIC: list[dict[str, Any]] = [
    {"devices": 2, "ep": 2, "zero_stage": 0},
    {"devices": 4, "cp": 2, "tp": 2, "ep": 2, "zero_stage": 0, "recompute": "full"},
]


@pytest.mark.parametrize("keys", TRAFFIC, ids=str)
def test_what_a_capacity_of_even_loads_sends_is_counted(keys: dict[str, Any]) -> None:
    """The dry run, whose loads are even: half a capacity, half the rows; choices are gathered."""
    layout, balance = Layout.parse({"precision": "fp32", **keys}), BalanceSpec(capacity_factor=0.5)
    model = ModelSpec.parse({**SMALL, "moe": MOE})
    data = {"train": "nowhere", "seq_len": T, "document_mask": False}
    train = {"steps": 1, "balance": balance.dump()}
    run_file = {"model": model.dump(), "layout": layout.dump(), "data": data, "train": train}
    for group in dry_run(run_file).groups:
        sent = by_axis(group)
        table = step_traffic(model, layout, T, group.ranks[0], bf16=False, balance=balance)
        assert sent == {key: (traffic.count, traffic.bytes) for key, traffic in table.items()}
    whole = step_traffic(model, layout, T, bf16=False)["ep", "all_to_all"].bytes
    assert table["ep", "all_to_all"].bytes < 0.6 * whole
    question = Question(RunSpec.parse(run_file), load_cluster("dgx-h100"))
    assert from_question(question).switches.capacity == 0.5


def test_an_ample_capacity_sends_what_none_sends() -> None:
    """On Gloo, with real routers: nothing is dropped, and the choices of whole sequences travel."""
    keys, balance = {"devices": 2, "cp": 2, "ep": 2, "zero_stage": 0}, {"capacity_factor": 4.0}
    model = {**SMALL, "moe": MOE}
    results = run_world(watched_step, keys, model, balance)
    compare(Layout.parse(keys), ModelSpec.parse(model), results, BalanceSpec.parse(balance))

"""The losses and the bias that balance experts: by hand, the same on any layout, and with planted errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from scalewright.model.decoder import Decoder
from scalewright.model.init import init_box, initialize
from scalewright.model.moe import MoE
from scalewright.parallel.inputs import wanted_by
from scalewright.parallel.mesh import Mesh, make_mesh
from scalewright.parallel.parallelize import fill, parallelize
from scalewright.parallel.stages import take_auxiliary
from scalewright.spec.grid import make_grid
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import place
from scalewright.spec.run import BalanceSpec
from scalewright.train import balance as module
from scalewright.train.balance import Balance
from worlds import CPU, one_rank, run_world

ALPHA, BETA = 0.1, 0.01
KEYS: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "moe": {"num_experts": 4, "top_k": 2, "moe_intermediate_size": 12},
}  # fmt: skip
B, T = 2, 16


def tokens() -> Tensor:
    """The batch of every case."""
    return torch.randint(0, 64, (B, T), generator=torch.Generator().manual_seed(0))


def alone(**mixture: Any) -> tuple[float, list[list[int]]]:
    """Auxiliary loss and loads of one process."""
    spec = ModelSpec.parse({**KEYS, "moe": {**KEYS["moe"], **mixture}})
    decoder, (mesh, _) = Decoder(spec), one_rank()
    initialize(decoder, spec, 0)
    balance = Balance.of(BalanceSpec(loss=ALPHA, z_loss=BETA), mesh, decoder)
    decoder(tokens())
    auxiliary = take_auxiliary(decoder)
    assert auxiliary is not None
    return float(auxiliary), [balance.loads[layer].tolist() for layer in (0, 1)]


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_the_losses_are_the_papers(score: str) -> None:
    """DeepSeek-V3 eq. 17 to 20 of each sequence, times its tokens; the z-loss of each token."""
    spec = ModelSpec.parse({**KEYS, "moe": {**KEYS["moe"], "score": score}})
    decoder = Decoder(spec)
    initialize(decoder, spec, 0)
    choices: list[Any] = []
    for mixture in (m for m in decoder.modules() if isinstance(m, MoE)):
        mixture.watch = lambda choice, rows: choices.append(choice)
    decoder(tokens())
    expected = 0.0
    for choice in choices:
        scores = choice.scores / choice.scores.sum(dim=1, keepdim=True)
        for row in range(B):
            part = slice(row * T, (row + 1) * T)
            f = torch.stack([(choice.experts[part] == e).sum() for e in range(4)]) * 4 / (2 * T)
            expected += ALPHA * T * float((f * scores[part].detach().mean(dim=0)).sum())
        expected += BETA * float((choice.logits.detach().exp().sum(dim=1).log() ** 2).sum())
    total, loads = alone(score=score)
    assert total == pytest.approx(expected, rel=1e-5)
    assert [sum(load) for load in loads] == [B * T * 2] * 2


def on_rank(mesh: Mesh, layout: Layout, fault: str) -> float:
    """This rank's auxiliary loss; a rank of tp has a part times tp."""
    spec = ModelSpec.parse(KEYS)
    mesh = make_mesh(make_grid(layout, spec.kv_heads), mesh.rank, CPU)
    with torch.device("meta"):
        decoder = Decoder(spec)
    parallel = parallelize(decoder, place(spec, layout), layout, mesh, bf16=False, seq_len=T)
    fill(parallel.weights, lambda t, box: init_box(t, spec, 0, *box))
    Balance.of(BalanceSpec(loss=ALPHA, z_loss=BETA), mesh, parallel.model)
    cut = wanted_by(parallel.model).cut
    index = torch.arange(T) if cut is None else torch.from_numpy(cut.tokens(T))
    patch = pytest.MonkeyPatch()
    if fault == "own counts":  # f of this rank's tokens alone
        patch.setattr(module, "all_sum", lambda tensor, *_: tensor)
    try:
        parallel.model(tokens()[:, index], positions=index[None])
    finally:
        patch.undo()
    return float(take_auxiliary(parallel.model)) / mesh.size("tp")


def with_and_without(mesh: Mesh, layout: Layout, faults: list[str]) -> list[float]:
    return [on_rank(mesh, layout, fault) for fault in faults]


@pytest.mark.parametrize("axes", [{"cp": 2}, {"tp": 2}, {"tp": 2, "sp": False}, {"cp": 2, "tp": 2, "ep": 2}], ids=str)
def test_no_layout_changes_it_and_a_planted_error_does(axes: dict[str, Any]) -> None:
    """Ranks of cp and tp have parts of each sequence. Without the others' counts the loss is another one."""
    devices = axes.get("cp", 1) * axes.get("tp", 1)
    layout = {"devices": devices, "micro_batch": B, "global_batch": B, "zero_stage": 0, **axes}
    expected, _ = alone()
    mine, faulty = zip(*run_world(with_and_without, layout, ["none", "own counts"]), strict=True)
    assert sum(mine) == pytest.approx(expected, rel=1e-5)  # sums in fp32
    assert abs(sum(faulty) / expected - 1) > 1e-4


def updated(mesh: Mesh, layout: Layout, keep: bool) -> list[list[float]]:
    """Every layer's bias after a step that this rank's half of the batch was routed in."""
    spec = ModelSpec.parse({**KEYS, "moe": {**KEYS["moe"], "score": "sigmoid", "router_bias": True}})
    mesh = make_mesh(make_grid(layout, spec.kv_heads), mesh.rank, CPU)
    with torch.device("meta"):
        decoder = Decoder(spec)
    parallel = parallelize(decoder, place(spec, layout), layout, mesh, bf16=False, seq_len=T)
    fill(parallel.weights, lambda t, box: init_box(t, spec, 0, *box))
    balance = Balance.of(BalanceSpec(bias_rate=0.5), mesh, parallel.model)
    first = mesh.index("batch") * layout.micro_batch
    parallel.model(tokens()[first : first + layout.micro_batch])
    balance.count()
    balance.update(parallel.weights, torch.tensor(keep))
    biases = [w for w in parallel.weights if w.name.endswith("router.bias")]
    return [[weight.box[0][0], *weight.true(weight.master).tolist()] for weight in biases]


@pytest.mark.parametrize("axes", [{}, {"zero_stage": 0}, {"zero_stage": 3}, {"zero_stage": 3, "ep": 2}], ids=str)
def test_the_bias_moves_by_the_global_batchs_loads(axes: dict[str, Any]) -> None:
    """Wang et al. 2024: down for experts with more than the mean, up for those with less."""
    _, loads = alone(score="sigmoid", router_bias=True)
    expected = [
        [0.5 * (1 if load < B * T * 2 / 4 else -1 if load > B * T * 2 / 4 else 0) for load in row] for row in loads
    ]
    layout = {"devices": 2 if axes else 1, "micro_batch": B // (2 if axes else 1), "global_batch": B, **axes}
    for layers in run_world(updated, layout, True):
        for (first, *values), moves in zip(layers, expected, strict=True):
            assert values == moves[int(first) : int(first) + len(values)]


def test_a_step_that_is_left_out_moves_no_bias() -> None:
    """One with a loss that isn't finite, say."""
    layout = {"devices": 1, "micro_batch": B, "global_batch": B}
    for layers in run_world(updated, layout, False):
        assert not any(value for _, *values in layers for value in values)

"""Cut matrices reach their owners whole, once each, and what comes back is each rank's part of the answer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from parallel.tensor_cases import slices
from scalewright.parallel import owners
from scalewright.parallel.mesh import Mesh, make_mesh
from scalewright.parallel.owners import Owners, balanced
from scalewright.spec.grid import make_grid
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.optimizers import is_matrix
from scalewright.spec.placement import place
from worlds import CPU, run_world

SPEC = ModelSpec.parse(
    {
        "vocab_size": 64, "hidden_size": 18, "intermediate_size": 25, "num_hidden_layers": 2, "head_dim": 6,
        "num_attention_heads": 4, "num_key_value_heads": 2, "mlp_bias": False,
        "moe": {"num_experts": 4, "top_k": 2, "moe_intermediate_size": 14, "first_k_dense": 1},
    }
)  # fmt: skip


def mixed(matrix: Tensor) -> Tensor:
    """A function in which every number depends on the whole matrix, and on no other of a stack."""
    return matrix * matrix.sum(dim=(-2, -1), keepdim=True) + matrix.flip(-2).flip(-1)


def on_rank(mesh: Mesh, layout: Layout) -> dict[str, Any]:
    """The worst difference from whole matrices' answers, and the numbers of products, sent and made."""
    mesh = make_mesh(make_grid(layout, SPEC.kv_heads), mesh.rank, CPU)
    placements = [p for p in place(SPEC, layout) if is_matrix(p.tensor)]
    generator = torch.Generator().manual_seed(0)
    wholes = [torch.randn(p.tensor.shape, generator=generator) for p in placements]
    parts = [whole[slices(p, mesh)] for p, whole in zip(placements, wholes, strict=True)]
    made: list[int] = []
    sent: list[int] = []
    real = owners.exchanged

    def counted(x: Tensor, send: list[int], receive: list[int], group: Any) -> Tensor:
        sent.append(sum(count for rank, count in enumerate(send) if rank != group.index))
        return real(x, send, receive, group)

    def watched(matrix: Tensor) -> Tensor:
        made.append(matrix.numel())
        return mixed(matrix)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owners, "exchanged", counted)
        answers = Owners(placements, mesh).apply(parts, watched)
    worst = max(
        (answer - mixed(whole)[slices(p, mesh)]).abs().max().item() if answer.numel() else 0.0
        for p, whole, answer in zip(placements, wholes, answers, strict=True)
    )
    shapes = [answer.shape == part.shape for answer, part in zip(answers, parts, strict=True)]
    return {"worst": worst, "shapes": all(shapes), "made": sum(made), "sent": sum(sent)}


@pytest.mark.parametrize(
    "axes",
    [
        {"devices": 4, "zero_stage": 3},
        {"devices": 2, "tp": 2},
        {"devices": 4, "tp": 4},  # two ranks hold copies of each KV head
        {"devices": 4, "tp": 2, "zero_stage": 1},
        {"devices": 4, "zero_stage": 2, "ep": 2, "etp": 2, "tp": 2},
        {"devices": 4, "dp_replicate": 2, "zero_stage": 3, "tp": 1},
    ],
    ids=["fsdp4", "tp2", "tp4", "tp2-fsdp2", "ep2-etp2", "hsdp"],
)
def test_a_function_of_whole_matrices_is_computed_once_by_its_ranks(axes: dict[str, Any]) -> None:
    layout = {"global_batch": 8, "precision": "fp32", **axes}
    answers = run_world(on_rank, layout)
    # sums of at most 450 numbers near 1 in another order: 450 x 6e-8
    assert max(answer["worst"] for answer in answers) < 3e-5
    assert all(answer["shapes"] for answer in answers)
    matrices = [tensor for tensor in place(SPEC, Layout.parse(layout)) if is_matrix(tensor.tensor)]
    numbers = sum(p.tensor.size for p in matrices)
    copies = axes.get("dp_replicate", 1)
    if axes.get("ep", 1) == 1 and axes.get("tp", 1) == 1:  # else experts, or dense ones, are on more ranks
        experts = sum(p.tensor.size for p in matrices if p.tensor.role.startswith("expert"))
        assert sum(answer["made"] for answer in answers) == copies * numbers
        ranks = axes["devices"] // copies
        # there and back, all but what stays: experts' cuts are between matrices
        assert sum(answer["sent"] for answer in answers) == pytest.approx(
            2 * copies * (numbers - experts) * (ranks - 1) / ranks, rel=0.15
        )  # 18 and 25 rows aren't a multiple of 4


def test_the_dearest_matrices_are_spread_first() -> None:
    assert balanced([(8, 8), (8, 8), (16, 16), (4, 4)], 2) == (1, 1, 0, 1)
    assert balanced([(4, 8, 8), (8, 8)], 2) == (0, 1)
    assert balanced([], 3) == ()

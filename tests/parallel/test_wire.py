"""Means over ranks in fp32 and in fewer bytes: the same on every rank, and in the long run exact."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from scalewright.parallel.mesh import Mesh
from scalewright.parallel.wire import Mean, pack, unpack
from scalewright.spec.diloco import BLOCK, DilocoSpec
from scalewright.spec.layout import Layout
from worlds import run_world

NUMBERS, TIMES = 700, 12  # no multiple of ranks or blocks
# Of its block's largest number: half a step of 127 (int8), half a unit of 8 bits (bf16) or of 4 (fp8).
ROUNDING = {"int8": 1 / 254, "bf16": 1 / 256, "fp8": 1 / 16}


def given(rank: int, time: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(100 * time + rank)
    return torch.randn(NUMBERS, generator=random) * torch.linspace(0.01, 3, NUMBERS)


def means(mesh: Mesh, layout: Layout, dtype: Any) -> dict[str, Any]:
    """Several means, every other one advanced on its way; and one of nothing."""
    rest = torch.zeros(NUMBERS) if dtype != "fp32" else None
    taken = []
    for time in range(TIMES):
        mean = Mean(given(mesh.rank, time), mesh, "dp_replicate", dtype, rest)
        if time % 2:
            mean.advance()
        taken.append(mean.finish().tolist())
        assert mean.finish().tolist() == taken[-1]
    nothing = Mean(torch.zeros(0), mesh, "dp_replicate", dtype, torch.zeros(0)).finish()
    return {"means": taken, "rest": rest.tolist() if rest is not None else None, "nothing": len(nothing)}


@pytest.mark.parametrize(("dtype", "ranks"), [("fp32", 2), ("int8", 3), ("bf16", 2), ("fp8", 2)])
def test_nothing_is_lost_in_several_means(dtype: str, ranks: int) -> None:
    """What all ranks' rests still hold is all that the means are short of."""
    seen = run_world(means, {"devices": ranks, "dp_replicate": ranks}, dtype)
    assert all(rank["means"] == seen[0]["means"] and rank["nothing"] == 0 for rank in seen)
    taken = torch.tensor(seen[0]["means"], dtype=torch.float64)
    true = torch.stack(
        [torch.stack([given(rank, time) for rank in range(ranks)]).double().mean(0) for time in range(TIMES)]
    )
    if dtype == "fp32":
        torch.testing.assert_close(taken, true, rtol=1e-6, atol=1e-7)  # one rounding of fp32
        return
    assert (taken[0] - true[0]).abs().max() > 1e-4  # it does round
    bound = 4 * ROUNDING[dtype] * true.abs().max() * ranks  # of both ways, and of what was kept
    assert (taken - true).abs().max() < bound
    rests = torch.tensor([rank["rest"] for rank in seen], dtype=torch.float64).mean(0)
    # fp32 sums of twelve numbers near 3
    torch.testing.assert_close(taken.sum(0) + rests, true.sum(0), rtol=0, atol=2e-5)


@pytest.mark.parametrize("dtype", ["bf16", "fp8", "int8"])
def test_bytes_of_a_number(dtype: Any) -> None:
    rows = torch.randn(3, 2 * BLOCK)
    packed = pack(rows, dtype)
    width = DilocoSpec.parse({"outer_dtype": dtype}).wire_bytes
    assert packed.shape == (3, int(2 * BLOCK * width))
    assert (unpack(packed, dtype) - rows).abs().max() <= ROUNDING[dtype] * rows.abs().max() * 1.01
    assert torch.equal(unpack(pack(torch.zeros(1, BLOCK), dtype), dtype), torch.zeros(1, BLOCK))
    broken = torch.full((1, BLOCK), float("nan"))
    assert unpack(pack(broken, dtype), dtype).isnan().all()

"""torch.compile, block by block, has eager's gradients, alone and under layouts and recomputation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from parallel.small_steps import build
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.parallelize import Parallel
from scalewright.spec.layout import Layout
from worlds import one_rank, plain, run_world

TOKENS = torch.randint(0, 67, (2, 16), generator=torch.Generator().manual_seed(0))


def train(parallel: Parallel) -> tuple[Tensor, list[Tensor]]:
    """The loss and the local gradients of two micro-batches."""
    parallel.gradients.clear()
    losses = []
    for micro in range(2):
        parallel.gradients.begin(0, last=micro == 1)
        loss = parallel.model(TOKENS[micro : micro + 1]).logsumexp(-1).mean()
        loss.backward()
        losses.append(loss.detach())
    parallel.gradients.finish()
    return torch.stack(losses), parallel.weights.take_gradients()


def assert_equal(compiled: tuple[Tensor, list[Tensor]], control: tuple[Tensor, list[Tensor]]) -> None:
    """Fused kernels round in other places: some fp32 steps on numbers near 1."""
    torch.testing.assert_close(compiled[0], control[0], rtol=1e-5, atol=1e-6)
    for a, b in zip(compiled[1], control[1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("recompute", ["none", pytest.param("selective", marks=pytest.mark.slow), "full"])
def test_compiled_blocks_equal_eager_ones(recompute):
    mesh, _ = one_rank()
    layout = Layout.parse({"recompute": recompute})
    torch._dynamo.reset()
    parallel = build(mesh, layout, backend="aot_eager")
    result = train(parallel)
    assert_equal(result, train(build(mesh, layout)))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0  # it was compiled


def on_rank(mesh: Mesh, layout: Layout, backend: str) -> Any:
    results = []
    for kind in (backend, None):
        losses, gradients = train(build(mesh, layout, backend=kind))
        results.append([plain(losses), [plain(g) for g in gradients]])
    return results


@pytest.mark.slow  # the compiler's import alone takes seconds in every rank
@pytest.mark.parametrize("zero", [0, 3])
def test_compiled_on_two_ranks(zero):
    for compiled, control in run_world(on_rank, {"devices": 2, "zero_stage": zero}, "aot_eager"):
        assert_equal(*[(torch.tensor(a[0]), [torch.tensor(g) for g in a[1]]) for a in (compiled, control)])


@pytest.mark.slow
@pytest.mark.parametrize("layout", [{}, {"devices": 2, "zero_stage": 0}, {"devices": 2, "zero_stage": 3}])
def test_inductor_trains_as_eager_does(tmp_path, layout):
    """The real thing, with the C++ compiler: a whole run."""
    from runs import rows, run, run_data, worst

    eager = run(run_data(tmp_path, out_dir=str(tmp_path / "eager"), layout=layout)).out_dir
    data = run_data(tmp_path, out_dir=str(tmp_path / "compiled"), layout=layout, train={"compile": True})
    compiled = run(data).out_dir
    assert worst(rows(compiled), rows(eager), "loss") < 1e-5
    assert worst(rows(compiled), rows(eager), "grad_norm") < 1e-4

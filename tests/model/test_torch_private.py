"""The private names of torch that we depend on: each does what we take it to do, and none stands elsewhere.

Seen on torch 2.13, on a CPU.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from scalewright.model import torch_private as private

SOURCE = Path(private.__file__).resolve().parent.parent
FOLDERS = ("model", "parallel", "train", "dry_run", "checkpoint", "evaluate", "serve", "parity", "data")
DOCUMENTED = ("torch._foreach_", "torch.cuda.memory._record_memory_history", "torch.cuda.memory._dump_snapshot")
FILES = {
    "model/torch_private.py",
    "parallel/shard.py",  # two base classes of FSDP's: only with zero_stage 3 is all of it imported
}


def names_of_torch(tree: ast.AST) -> Iterator[str]:
    """Modules, imported names and chains of attributes, all with their whole path."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield ast.unparse(node)


def test_no_private_name_stands_elsewhere() -> None:
    places = []
    for path in (file for folder in FOLDERS for file in sorted((SOURCE / folder).rglob("*.py"))):
        place = path.relative_to(SOURCE).as_posix()
        names = set(names_of_torch(ast.parse(path.read_text(encoding="utf-8"))))
        private_names = {n for n in names if re.match(r"torch(\.\w+)*\._[A-Za-z]\w*", n)}
        if place not in FILES:
            places += [f"{place}: {n}" for n in private_names if not n.startswith(DOCUMENTED)]
    assert places == []


@pytest.fixture
def world() -> Iterator[None]:
    """A process group of rank 0 of 2, whose other rank doesn't exist."""
    private.complete_fakes()
    dist.init_process_group("fake", store=private.fake_store(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


def test_collectives_by_a_groups_name(world: None) -> None:
    name = dist.group.WORLD.group_name  # type: ignore[union-attr]
    with private.FakeTensorMode():
        x = torch.ones(4, 2)
        gathered = private.collectives.wait_tensor(private.collectives.all_gather_into_tensor(x, 2, name))
        assert isinstance(gathered, private.FakeTensor)
        assert gathered.shape == (8, 2)
        with private.unset_fake_temporarily():
            assert torch.ones(1).item() == 1


def test_a_groups_timeout_and_its_recorders(world: None) -> None:
    private.set_group_timeout(timedelta(seconds=7), dist.new_group([0, 1], backend="fake"))
    assert private.flight_dumps()


def test_a_value_of_a_fake_tensor_is_refused() -> None:
    with private.FakeTensorMode(), pytest.raises(private.NEEDS_VALUES):
        torch.ones(1).item()
    with private.FakeTensorMode(), pytest.raises(private.NEEDS_VALUES):
        torch.ones(3).nonzero()


def test_a_backward_knows_that_it_runs() -> None:
    seen = []
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda gradient: seen.append(private.in_backward()))
    x.sum().backward()
    assert (seen, private.in_backward()) == ([True], False)


def test_products_of_groups_of_rows() -> None:
    operators = []

    class Seen(private.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            operators.append(func)
            return func(*args, **(kwargs or {}))

    rows, weight = torch.randn(3, 16).bfloat16(), torch.randn(2, 16, 8).bfloat16()
    with Seen():
        out = private.grouped_mm(rows, weight, offs=torch.tensor([1, 3], dtype=torch.int32))
    wanted = torch.cat([rows[:1] @ weight[0], rows[1:] @ weight[1]])
    assert torch.allclose(out.float(), wanted.float(), rtol=2e-2, atol=2e-2)  # of bf16
    assert private.GROUPED_MM in operators


def test_recomputation_does_not_see_a_hidden_function() -> None:
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    runs: list[int] = []

    def once(x: Tensor) -> None:
        if not runs:  # another number of operators when it runs again
            private.hidden_from_recomputation(lambda: x.detach().mul(2))
        runs.append(1)

    def block(x: Tensor) -> Tensor:
        once(x)
        return (x * x).sin()

    def contexts() -> Any:
        return create_selective_checkpoint_contexts(lambda *_, **__: CheckpointPolicy.MUST_SAVE)

    x = torch.ones(2, requires_grad=True)
    checkpoint(block, x, use_reentrant=False, context_fn=contexts).sum().backward()
    assert len(runs) == 2
    assert x.grad is not None


def test_the_rest_has_its_use() -> None:
    assert private.tree_leaves({"a": [1, (2, 3)]}) == [1, 2, 3]
    with private.functorch_config.patch(donated_buffer=False):
        assert private.functorch_config.donated_buffer is False


def test_a_step_without_graph_breaks_is_torchs() -> None:
    weights = [torch.nn.Parameter(torch.arange(6.0).reshape(2, 3)) for _ in range(2)]
    plain, ours = (torch.optim.AdamW([w], lr=0.1, weight_decay=0.1) for w in weights)
    ours = private.without_graph_breaks(ours)
    hooked: list[str] = []
    ours.register_step_post_hook(lambda *_: hooked.append("after"))
    for _ in range(3):
        for weight, optimizer in zip(weights, (plain, ours), strict=True):
            weight.grad = weight.detach().sin()
            optimizer.step()
    assert torch.equal(*weights)
    assert weights[1].requires_grad
    assert hooked == ["after"] * 3


def test_what_is_not_compiled_breaks_the_graph_and_runs() -> None:
    seen: list[bool] = []

    def inner(x: Tensor) -> Tensor:
        seen.append(torch.compiler.is_compiling())
        return x + 1

    kept_out, graphs = private.not_compiled()(inner), []
    assert torch.equal(kept_out(torch.zeros(2)), torch.ones(2))

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: kept_out(x * 2) * 3, backend=backend)
    for value in (1.0, 2.0):
        assert torch.equal(compiled(torch.full((2,), value)), torch.full((2,), (2 * value + 1) * 3))
    assert seen == [False] * 3
    assert len(graphs) == 2  # before and after


WITHOUT = """
import sys
from pathlib import Path
sys.path[:0] = {paths}
from runs import run_data
import scalewright as sw
folder = Path({folder})
moe = {{"num_experts": 4, "top_k": 2, "moe_intermediate_size": 12}}
sw.train(run_data(folder, train={{"steps": 1}}), quiet=True)
mixture = dict(model={{"moe": moe}}, optimizer={{"name": "adamw"}}, out_dir=str(folder / "moe"))
sw.train(run_data(folder, train={{"steps": 1}}, **mixture), quiet=True)
print(sorted({{"sympy", "torch._dynamo", "torch.distributed.tensor"}} & set(sys.modules)))
"""


def test_a_run_starts_without_what_it_does_not_use(tmp_path: Path) -> None:
    """The compiler, sympy and DTensor: 2 of 5 CPU seconds of a small run's start."""
    tests = Path(__file__).resolve().parents[1]
    code = WITHOUT.format(paths=[str(tests), str(tests.parent)], folder=repr(str(tmp_path)))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n", done.stderr

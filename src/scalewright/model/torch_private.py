"""Private names of torch that we import or call, in one place: a new release of torch is looked at here.

Seen on torch 2.13. tests/model/test_torch_private.py tries each, and finds any elsewhere. Those of FSDP, slow
to import, are in parallel/shard.py.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import MethodType
from typing import Any, TypeVar, cast

import torch
from torch._functorch import config
from torch._subclasses import fake_tensor
from torch.optim import Optimizer
from torch.utils import _python_dispatch, _pytree
from torch.utils.checkpoint import _CachedTorchDispatchMode, _CachingTorchDispatchMode

FakeTensor, FakeTensorMode = fake_tensor.FakeTensor, fake_tensor.FakeTensorMode
unset_fake_temporarily = fake_tensor.unset_fake_temporarily
# Raised where an operator looks at a fake tensor's values.
NEEDS_VALUES = (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException)
TorchDispatchMode = _python_dispatch.TorchDispatchMode
tree_leaves = _pytree.tree_leaves
functorch_config = config
collectives = torch.ops._c10d_functional
grouped_mm: Any = torch._grouped_mm
CAST = torch.ops.aten._to_copy.default  # the operator of `Tensor.to`
GROUPED_MM = torch.ops.aten._grouped_mm.default  # the operator that it runs
_INSTEAD = "__dynamo_disable"  # attribute of a function: what `_disable_dynamo` calls in its place, if it is there
F = TypeVar("F", bound=Callable[..., Any])


def not_compiled(recursive: bool = True) -> Callable[[F], F]:
    """As `torch.compiler.disable`, but imports the compiler (2 CPU seconds) only once something else has."""

    def decorate(function: F) -> F:
        kept_out = cast(F, torch._disable_dynamo(function, recursive))  # type: ignore[attr-defined]

        def run(*arguments: Any, **keywords: Any) -> Any:
            if "torch._dynamo" not in sys.modules:
                return function(*arguments, **keywords)
            delattr(function, _INSTEAD)
            return kept_out(*arguments, **keywords)

        setattr(function, _INSTEAD, run)
        return kept_out

    return decorate


@contextmanager
def without_compiler() -> Iterator[None]:
    """Optimizers are made here without the compiler's import, which costs an uncompiled run 2 CPU seconds.

    torch keeps `add_param_group` out of graphs, and imports the compiler for that; until it is imported, no
    graph is being made.
    """
    plain: Any = inspect.unwrap(Optimizer.add_param_group)
    if "torch._dynamo" in sys.modules or hasattr(plain, _INSTEAD):
        yield
        return
    setattr(plain, _INSTEAD, plain)
    try:
        yield
    finally:
        delattr(plain, _INSTEAD)


def without_graph_breaks(optimizer: Optimizer) -> Optimizer:
    """The same, with its own `step`: torch's breaks graphs around it, and imports the compiler for that."""
    step = torch.no_grad()(inspect.unwrap(type(optimizer).step))
    optimizer.step = MethodType(Optimizer.profile_hook_step(step), optimizer)  # type: ignore[method-assign]
    return optimizer


def in_backward() -> bool:
    """Whether a backward runs; a forward within it is run for the second time."""
    return torch._C._current_graph_task_id() != -1


def hidden_from_recomputation(function: Callable[[], Any]) -> Any:
    """Calls a function, whose operators selective recomputation neither keeps nor expects again."""
    if isinstance(_python_dispatch._get_current_dispatch_mode(), _CachingTorchDispatchMode | _CachedTorchDispatchMode):
        with _python_dispatch._pop_mode_temporarily():
            return function()
    return function()


def set_group_timeout(timeout: timedelta, group: Any) -> None:
    """Sets the timeout of a process group's later collectives."""
    from torch.distributed.distributed_c10d import _set_pg_timeout

    _set_pg_timeout(timeout, group)


def abort_groups() -> None:
    """Gives up what runs in this process's groups, and the groups with it: NCCL's."""
    from torch.distributed.distributed_c10d import _abort_process_group

    _abort_process_group()


def flight_dumps() -> list[Callable[[bool, bool, bool], bytes]]:
    """Of the flight recorders that this build has: (with collectives, stacks, only active) -> a pickle."""
    import torch._C._distributed_c10d as c10d

    dumps = [getattr(c10d, name, None) for name in ("_dump_fr_trace", "_dump_nccl_trace")]
    return [dump for dump in dumps if dump is not None]


def fake_store() -> Any:
    """The store of a process group without other ranks ("fake")."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    return FakeStore()


def complete_fakes() -> None:
    """Gives fake tensors the coalesced collectives, which torch has no fake form of."""
    from torch._C._distributed_c10d import FakeWork

    for name in ("allreduce_coalesced_", "allgather_into_tensor_coalesced_", "reduce_scatter_tensor_coalesced_"):
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"c10d::{name}", "Meta"):
            torch.library.register_fake(f"c10d::{name}", lambda *_, **__: FakeWork().boxed())

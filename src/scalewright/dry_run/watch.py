"""Counts everything that a rank does between two points: collectives, live bytes, FLOPs.

    with Watch(mesh) as watch:            mesh = make_mesh(..., share=False): every axis has its own group
        watch.register(parallel, optimizer)
        step(...)
    watch.collectives     [Collective(axis="tp", kind="all_gather", group_size=2, count=18, bytes=...), ...]
    watch.live            current and peak bytes by kind (live_bytes.py)
    watch.flops           [m, k] @ [k, n]       2 m n k
                          attention, forward    2 matmuls over the full square of scores
                          attention, backward   4: a fused kernel's own recomputation of the scores is not counted

It is a dispatch mode: every operator passes it, real or fake, in forwards, backwards and updates alike, and collectives
are operators (`c10d.*`), FSDP's too. Operators inside a compiled kernel don't pass it. Bytes of a collective, per rank:
all-reduce and broadcast the tensor; all-gather its output; reduce-scatter its input; all-to-all and send what is sent.
A receive is the other end of a send, and is not counted. The convention of FLOPs is that of `spec/operators.py` (PaLM,
Chowdhery et al. 2022, appendix B), whichever kernel runs; other operators have none. A recomputed forward is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils.flop_counter import flop_registry

from scalewright.dry_run.live_bytes import Kind, LiveBytes
from scalewright.model.torch_private import CAST, TorchDispatchMode, collectives, in_backward
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.offload_states import is_host
from scalewright.parallel.timers import reported_axis
from scalewright.parallel.weights import Weights

# Operator -> (kind, which argument is counted). The arguments of c10d's: outputs come before inputs.
_KINDS: dict[str, tuple[str, int]] = {
    **{f"allreduce{form}": ("all_reduce", 0) for form in ("_", "_coalesced_")},
    **{f"allgather{form}": ("all_gather", 0) for form in ("_", "_coalesced_", "_into_tensor_coalesced_")},
    **{f"reduce_scatter{form}": ("reduce_scatter", 1) for form in ("_", "_tensor_coalesced_")},
    "_allgather_base_": ("all_gather", 0),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    **{f"alltoall{form}": ("all_to_all", 1) for form in ("_", "_base_")},
    "broadcast_": ("broadcast", 0),
    "send": ("send", 0),
}
_FUNCTIONAL = {  # of a gather the output is counted, else the first argument
    **{f"all_reduce{form}": "all_reduce" for form in ("", "_", "_coalesced", "_coalesced_")},
    **{f"all_gather_into_tensor{form}": "all_gather" for form in ("", "_out", "_coalesced")},
    **{f"reduce_scatter_tensor{form}": "reduce_scatter" for form in ("", "_coalesced")},
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
    "broadcast_": "broadcast",
}
_DEVICE = torch.ops.prim.device.default
_WAIT = collectives.wait_tensor.default
_COPY = torch.ops.aten.copy_.default
_DATA_PARALLEL = frozenset({"dp_shard", "dp_replicate"})
# FLOPs, and (count, bytes) by (axis, kind, group size).
Tally = tuple[int, dict[tuple[str, str, int], tuple[int, int]]]
_FUSED = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
_FORWARD = frozenset(f"_scaled_dot_product_{name}" for name in (*_FUSED, "fused_attention_overrideable"))
_BACKWARD = frozenset(f"{name}_backward" for name in _FORWARD)


@dataclass
class Collective:
    """All calls of one kind over one axis."""

    axis: str
    kind: str
    group_size: int
    count: int = 0
    bytes: int = 0

    def dump(self) -> dict[str, object]:
        """Plain data."""
        return dict(vars(self))


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what runs while it is entered; `offloaded(tensor)`: whether it is in host memory."""

    def __init__(self, mesh: Mesh, offloaded: Callable[[Tensor], bool] | None = is_host) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.mesh = mesh
        self.live = LiveBytes(offloaded)
        self.flops = 0
        self.updating = False  # what is made now belongs to the update, not to a forward
        self._collectives: dict[tuple[str, str, int], Collective] = {}
        self._axes: dict[str, tuple[str, int]] = {}
        self._hooks: list[Any] = []

    @property
    def collectives(self) -> list[Collective]:
        """What was communicated, by axis and kind."""
        return [self._collectives[key] for key in sorted(self._collectives)]

    def tally(self) -> Tally:
        """FLOPs, and (count, bytes) by (axis, kind, group size), so far."""
        return self.flops, {key: (sent.count, sent.bytes) for key, sent in self._collectives.items()}

    def clear(self) -> None:
        """Forgets collectives and FLOPs, not what is alive."""
        self._collectives.clear()
        self.flops = 0

    def register(self, weights: Weights, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Marks weights, gradients and optimizer states as such; once, before the first step."""
        for weight in weights:
            self.live.tag(weight.compute, "parameters")
            self.live.tag(weight.master, "parameters")
            if weight.main_gradient is not None:
                self.live.tag(weight.main_gradient, "gradients")
            if weight.compute.requires_grad and weight.compute.is_leaf:
                watched = weight.compute.register_post_accumulate_grad_hook
                self._hooks.append(watched(self._gradient))  # type: ignore[no-untyped-call]
        if optimizer is not None:
            self._hooks.append(optimizer.register_step_pre_hook(self._before_update))
            self._hooks.append(optimizer.register_step_post_hook(self._after_update))
            self._states(optimizer)

    def keeps(self, tensors: Iterable[Tensor]) -> None:
        """Marks what data parallelism keeps from step to step."""
        for tensor in tensors:
            self.live.tag(tensor, "buffers")

    def kept(self, gradients: Iterable[Tensor]) -> None:
        """Marks gradients that wait for the next micro-batch's."""
        for gradient in gradients:
            self.live.tag(gradient, "gradients")

    def _gradient(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            self.live.tag(parameter.grad, "gradients")

    def _before_update(self, *_: Any) -> None:
        self.updating = True

    def _after_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.updating = False
        self._states(optimizer)

    def _states(self, optimizer: torch.optim.Optimizer) -> None:
        for state in optimizer.state.values():
            for tensor in _tensors(state.values()):
                self.live.tag(tensor, "optimizer")

    def __enter__(self) -> Watch:
        self.live.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *problem: Any) -> None:
        super().__exit__(*problem)  # type: ignore[no-untyped-call]
        self.live.__exit__()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # it runs the operator on its local tensors, which come by here
        if func is _DEVICE:  # of a fake tensor: more than half of all calls
            return getattr(args[0], "fake_device", None) or func(*args)
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func is _WAIT:
            result = args[0]  # what it returns, too; torch's fake form of it makes another tensor
        namespace = func.namespace
        if namespace in ("c10d", "_c10d_functional"):
            self._communicate(func, args, result)
        elif namespace == "fsdp":  # gradients that are copied to be sent stay what they are
            self._tag_buffers((() if func._opname == "chunk_cat" else args, kwargs.get("out")))
        elif func is _COPY and self._returns(*args[:2]):
            self.live.tag(result, "activations", over=("other",))
        else:
            self.flops += flops_of(func, args, kwargs, result)
        kind = "buffers" if self._copies_weights(func, args) else self._kind(func)
        for tensor in _tensors(result):
            self.live.count(tensor, kind)
        return result

    def _kind(self, func: Any) -> Kind:
        """The kind of what is made now: a backward has no grad mode, but for what it recomputes.

        Space made without grad mode is for a collective, which will tag it (see `_communicate`).
        """
        if torch.is_grad_enabled() and not self.updating:
            return "activations"
        space = func is torch.ops.aten.empty.memory_format
        return "other" if self.updating or space or in_backward() else "activations"

    def _copies_weights(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Whether FSDP casts or copies what it would gather: of a unit that a rank has to itself."""
        if func is CAST:
            return self.live.kind(args[0]) == "parameters"
        return func is _COPY and self.live.kind(args[1]) in ("parameters", "buffers")

    def _returns(self, there: Tensor, source: Tensor) -> bool:
        """Whether a copy brings back an activation that was offloaded."""
        away = self.live.offloaded
        return away is not None and away(source) and not away(there)

    def _communicate(self, func: Any, args: tuple[Any, ...], result: Any) -> None:
        name = func._opname
        if name not in (_KINDS if func.namespace == "c10d" else _FUNCTIONAL):
            return
        if func.namespace == "c10d":
            kind, counted = _KINDS[name][0], args[_KINDS[name][1]]
            group_name = str(next(g for g in map(_group, args) if g is not None).group_name)
        else:
            kind = _FUNCTIONAL[name]
            counted = result if kind == "all_gather" else args[0]
            group_name = next(a for a in reversed(args) if isinstance(a, str))
        axis, size = self._axis(group_name)
        sent = self._collectives.setdefault((axis, kind, size), Collective(axis, kind, size))
        sent.count += 1
        sent.bytes += sum(tensor.numel() * tensor.element_size() for tensor in _tensors(counted))
        if axis in _DATA_PARALLEL:
            self._tag_buffers(args)
        elif not in_backward():
            for tensor in _tensors(args):
                self.live.tag(tensor, "activations", over=("other",))

    def _tag_buffers(self, value: Any) -> None:
        for tensor in _tensors(value):
            self.live.tag(tensor, "buffers", over=("activations", "other"))

    def _axis(self, group_name: str) -> tuple[str, int]:
        """A group's axis as it is reported, and its ranks."""
        if group_name not in self._axes:
            axis = self.mesh.axis_of(group_name) or "world"  # torch's own group of all ranks has no axis
            replicates = axis == "gradient" and self.mesh.size("fsdp") == 1
            self._axes[group_name] = (reported_axis("dp_replicate" if replicates else axis), self.mesh.size(axis))
        return self._axes[group_name]


def _group(argument: Any) -> dist.ProcessGroup | None:
    """The process group behind an operator's argument; None for any other argument."""
    if isinstance(argument, torch.ScriptObject):
        with suppress(RuntimeError):  # a reduction's operation
            return dist.ProcessGroup.unbox(argument)
    return argument if isinstance(argument, dist.ProcessGroup) else None


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        for item in value:
            yield from _tensors(item)


def flops_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, object], result: Any) -> int:
    """FLOPs of one call of an operator."""
    packet = func._overloadpacket
    name = packet.__name__
    if name in _FORWARD:
        return 2 * _square(args[0], args[1], args[2])
    if name in _BACKWARD:  # its first argument is the output's gradient
        return 4 * _square(args[1], args[2], args[3])
    formula = flop_registry.get(packet)
    return int(formula(*args, **kwargs, out_val=result)) if formula is not None else 0


def _square(query: Any, key: Any, value: Any) -> int:
    """Half of the FLOPs of both matmuls, each 2 x rows x columns x depth: [B,H,T,D] over [B,H,S,D]."""
    batch, heads, rows, depth = query.shape
    return int(batch * heads * rows * key.shape[-2] * (depth + value.shape[-1]))

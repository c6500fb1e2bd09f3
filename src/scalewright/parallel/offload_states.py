"""Masters, optimizer states and parameters in host memory (Ren et al. 2021, ZeRO-Offload; ZeRO-Infinity §5).

    optimizer       device                                       host
                    compute copies (or shards of them)           fp32 masters, optimizer states
                    gradients, summed, clipped     --fetch-->    gradients (pinned)
                                                                 update, on the host's cores
                    compute copies                 <--publish--  masters, in the copies' dtype

    parameters      a block's tensors, gathered    <---------->  shards, which are the masters; gradients,
    (ZeRO-3)        while it runs                                states and update (FSDP2's CPUOffloadPolicy)

Numbers are those of the same layout without offload, up to the rounding of another device's update. On a CPU both
memories are one: the same code runs, and its host buffers have a mark on their storage, so that a meter of device
memory leaves them out, and offloading can be measured without a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from scalewright.model.init import to_empty
from scalewright.parallel.weights import Weights, local_tensor
from scalewright.spec.layout import Layout
from scalewright.spec.memory import offloads_optimizer, offloads_parameters


def allocate(model: nn.Module, layout: Layout, device: torch.device) -> None:
    """Allocates a module's parameters and buffers, in place: offloaded shards in host memory."""
    if not offloads_parameters(layout):
        if any(parameter.is_meta for parameter in model.parameters()):
            to_empty(model, device)
        else:
            model.to(device)
        return
    if any(parameter.is_meta for parameter in model.parameters()):
        with making_host():
            to_empty(model, "cpu")
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device)


def masters_device(layout: Layout, device: torch.device) -> torch.device:
    """Where a rank's masters lie: in host memory, or on its device."""
    return torch.device("cpu") if offloads_optimizer(layout) or offloads_parameters(layout) else device


def apply_offload(weights: Weights, layout: Layout, device: torch.device) -> None:
    """Moves masters to the host, or marks those that are there, before gradients and optimizer are made."""
    if offloads_optimizer(layout):
        weights.host = HostMasters(weights, device)
    elif offloads_parameters(layout):
        for weight in weights:
            mark_host(weight.master)
            if device.type == "cpu" and weight.trained:  # elsewhere FSDP copies gradients to the host itself
                weight.compute.register_post_accumulate_grad_hook(_mark_gradient)  # type: ignore[no-untyped-call]


def _mark_gradient(parameter: Tensor) -> None:
    if (gradient := parameter.grad) is not None:
        mark_host(local_tensor(gradient))


class HostMasters:
    """fp32 masters on the host beside the device's compute copies, and the copies between the two."""

    def __init__(self, weights: Weights, device: torch.device) -> None:
        self.weights, self.device = weights, device
        self.staged: list[Tensor | None] = []  # where masters are rounded before they travel
        for weight in weights:
            local = weight.resident
            master = host_empty(local.shape, torch.float32, device)
            weight.master = nn.Parameter(master, requires_grad=weight.trained)
            rounded = local.dtype != torch.float32 and device.type != "cpu"
            self.staged.append(host_empty(local.shape, local.dtype, device) if rounded else None)
        trained = weights.trained()
        self.gradients = [host_empty(weight.master.shape, torch.float32, device) for weight in trained]

    @torch.no_grad()
    def fetch(self, gradients: list[Tensor]) -> None:
        """Copies finished gradients (of the trained weights, in order) to where the optimizer looks."""
        for weight, host, gradient in zip(self.weights.trained(), self.gradients, gradients, strict=True):
            host.copy_(gradient, non_blocking=True)
            weight.master.grad = host
        if self.device.type == "cuda":  # the update reads them at once
            torch.cuda.current_stream(self.device).synchronize()

    @torch.no_grad()
    def publish(self) -> None:
        """Copies the masters into the compute copies; the device's next work waits for that."""
        for weight, staged in zip(self.weights, self.staged, strict=True):
            source = weight.master if staged is None else staged.copy_(weight.master)
            weight.resident.copy_(source, non_blocking=True)


def keep_states_on_host(optimizer: torch.optim.Optimizer) -> None:
    """Marks the states of an optimizer whose weights are offloaded; they are made beside the masters."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if not any(is_host(p) for p in parameters):
        return
    updating = making_host()

    def before(*_: Any) -> None:
        updating.__enter__()

    def after(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        updating.__exit__(None, None, None)
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    mark_host(value)

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


_MARK = "scalewright_host"
_making: ContextVar[bool] = ContextVar("making", default=False)  # a meter sees a tensor before it is marked


def host_empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """An unfilled tensor in host memory, to hold tensors of `device`; pinned when that is a GPU."""
    with making_host():
        tensor = torch.empty(tuple(shape), dtype=dtype, device="cpu", pin_memory=device.type == "cuda")
    return mark_host(tensor)


class making_host:
    """Tensors made meanwhile count as host memory, for a meter that sees them before they are marked."""

    def __enter__(self) -> None:
        self.token = _making.set(True)

    def __exit__(self, *_: object) -> None:
        _making.reset(self.token)


def mark_host(tensor: Tensor) -> Tensor:
    """Marks a tensor, and all that share its storage, as host memory; returns it."""
    setattr(tensor.untyped_storage(), _MARK, True)
    return tensor


def is_host(tensor: Tensor) -> bool:
    """Whether a tensor lies in host memory, not in the memory of the device that computes."""
    return _making.get() or getattr(tensor.untyped_storage(), _MARK, False) is True

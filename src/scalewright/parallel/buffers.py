"""The buffers of a user's module (running means, counters, tables): part of the model, though not trained.

    a step        rank 0 ──broadcast──► all      once, after the update: ranks enter a step with the same
    a save        rank 0 writes them whole       `buffer/<name>` in a checkpoint, in their own dtype
    a resume      every rank reads them

As in torch's DistributedDataParallel (broadcast_buffers), rank 0's are the model's: running means are those
of its share of the batch. Averages over ranks would suit running means, and spoil masks, counters and tables.
Non-persistent buffers are in no checkpoint and aren't exchanged, as torch has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scalewright.parallel.mesh import Mesh


class Buffers:
    """All persistent buffers of a module that every rank holds whole."""

    def __init__(self, model: nn.Module, mesh: Mesh) -> None:
        self.model = model
        self.mesh = mesh

    def named(self) -> dict[str, Tensor]:
        """The buffers by their names in `state_dict`, as they are now."""
        return {name: value for name, value in self._slots() if value is not None}

    def _slots(self) -> Iterator[tuple[str, Tensor | None]]:
        for prefix, module in self.model.named_modules():
            for key, value in module._buffers.items():
                if key not in module._non_persistent_buffers_set:
                    yield (f"{prefix}.{key}" if prefix else key), value

    @torch.no_grad()
    def share(self) -> None:
        """Copies rank 0's buffers to every rank, in one message; the host waits for nothing."""
        group = self.mesh.group(self.mesh.together)
        if group is None:
            return
        tensors = sorted(self.named().values(), key=lambda t: -t.element_size())  # views stay aligned
        tensors = [tensor for tensor in tensors if tensor.numel()]
        if not tensors:
            return
        flat = torch.cat([tensor.reshape(-1).view(torch.uint8) for tensor in tensors])
        with self.mesh.timers.comm(self.mesh.together):
            dist.broadcast(flat, group=group, group_src=0)
        if dist.get_rank(group) == 0:
            return
        start = 0
        for tensor in tensors:
            size = tensor.numel() * tensor.element_size()
            tensor.copy_(flat[start : start + size].view(tensor.dtype).view(tensor.shape))
            start += size

    @torch.no_grad()
    def load(self, read: Callable[[str], Tensor | None]) -> list[str]:
        """Sets each buffer to `read(name)`, in its dtype and shape; returns the names without one."""
        missing = []
        devices = {tensor.device for tensor in self.model.parameters()} or {torch.device("cpu")}
        for name, value in list(self._slots()):
            stored = read(name)
            if stored is None:
                missing += [name] if value is not None else []
            elif value is not None and (value.shape, value.dtype) == (stored.shape, stored.dtype):
                value.copy_(stored)
            else:  # it grew since the module was made, or was made in the first forward
                prefix, _, key = name.rpartition(".")
                device = value.device if value is not None else next(iter(devices))
                self.model.get_submodule(prefix)._buffers[key] = stored.to(device)
        return missing

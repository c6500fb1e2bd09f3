"""Every weight and its moments in fp32: out of DeepSpeed's flat partitions, and back into them.

    ZeRO 0      the module's own parameters, and the optimizer's state of each
    ZeRO 1, 2   rank r has the r-th part of all parameters of a group laid end to end     deepspeed.utils'
    ZeRO 3      rank r has the r-th part of each parameter                                safe_get/set_full_*

DeepSpeed's functions give and take whole tensors, one at a time, with all ranks of a data-parallel group. For
a save every rank keeps its own box of each (`spec/placement.py`), so that the ranks together hold what a
checkpoint needs once, in host memory: 12 bytes / ranks for a weight under AdamW.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from scalewright.parallel.mesh import Mesh
from scalewright.parallel.stages import stages_of
from scalewright.parallel.weights import Source, Weight, Weights
from scalewright.spec.placement import Box, Placement, box, copies

STEP = "step"  # counted by Adam alone


def find_weights(model: nn.Module, placements: Sequence[Placement], mesh: Mesh) -> list[Weight]:
    """The weights of this rank's stage by canonical name; masters are empty, on torch's meta device. A tied head apart
    from its embedding is found by its own name. `compute` is the module's parameter."""
    (stage, module), *_ = stages_of(model).items()
    parameters = dict(module.named_parameters())
    items = []
    for placement in placements:
        tensor = placement.tensor
        parameter = parameters.get(tensor.name, parameters.get(str(tensor.tied_to)))
        if parameter is not None:
            part_and_copies = box(placement, mesh.coords, mesh.grid.size_of), copies(placement, mesh.grid.copying)
            items.append(Weight(placement, parameter, _no_master(parameter.requires_grad), *part_and_copies, stage))
    return items


def _no_master(trained: bool) -> nn.Parameter:
    return nn.Parameter(torch.empty(0, device="meta"), requires_grad=trained)


def whole(weight: Weight) -> Box:
    """The box of the whole tensor."""
    shape = weight.placement.tensor.shape
    return (0,) * len(shape), shape


class Partitions:
    """What DeepSpeed's engine holds of weights and their moments, as whole tensors."""

    def __init__(self, deepspeed: Any, engine: Any, stage: int, kinds: tuple[str, ...], *, counts: bool) -> None:
        """`stage`: of ZeRO. `kinds`: the optimizer's states of a weight's shape; `counts`: a step beside."""
        self.deepspeed, self.engine, self.stage, self.kinds, self.counts = deepspeed, engine, stage, kinds, counts
        self.optimizer: torch.optim.Optimizer = engine.basic_optimizer

    @property
    def flat(self) -> list[Tensor]:
        """The tensors that the optimizer updates: parameters under ZeRO 0, else this rank's parts."""
        if self.stage == 3:
            return list(self.engine.optimizer.fp32_partitioned_groups_flat)
        return [tensor for group in self.optimizer.param_groups for tensor in group["params"]]

    def get(self, weight: Weight) -> Tensor:
        """A weight in fp32."""
        parameter = weight.compute
        if self.stage and weight.trained:
            tensor: Tensor = self.deepspeed.utils.safe_get_full_fp32_param(parameter)
            return tensor.view(weight.placement.tensor.shape)
        with self._gathered(parameter):
            return parameter.detach().float().clone()

    def set(self, weight: Weight, value: Tensor) -> None:
        """Sets a weight, and the copy that is computed with."""
        parameter = weight.compute
        with self._gathered(parameter, changes=True):
            parameter.data.copy_(value)
        if not weight.trained:
            return
        if self.stage == 3:
            self.deepspeed.utils.safe_set_local_fp32_param(parameter, self._local(parameter, value))
        elif self.stage:
            self.deepspeed.utils.safe_set_full_fp32_param(parameter, value)

    def get_state(self, weight: Weight, kind: str) -> Tensor:
        """A moment of a weight; there is none before the first update."""
        if not self.stage:
            moment: Tensor = self.optimizer.state[weight.compute][kind]
            return moment.detach()
        tensor: Tensor = self.deepspeed.utils.safe_get_full_optimizer_state(weight.compute, kind)
        return tensor.view(weight.placement.tensor.shape)

    def set_state(self, weight: Weight, kind: str, value: Tensor) -> None:
        """Sets a moment of a weight, of those that `make_states` has made."""
        parameter, functions = weight.compute, self.deepspeed.utils
        if self.stage == 3:
            functions.safe_set_local_optimizer_state(parameter, self._local(parameter, value), kind)
        elif self.stage:
            functions.safe_set_full_optimizer_state(parameter, value, kind)
        else:
            self.optimizer.state[weight.compute][kind].copy_(value)

    @property
    def updated(self) -> bool:
        """Whether the optimizer has states: after an update, or `make_states`."""
        return any(tensor in self.optimizer.state for tensor in self.flat)

    def step(self) -> float:
        """The number of updates that Adam counts."""
        states: Mapping[Any, Any] = self.optimizer.state
        return float(next(states[tensor][STEP] for tensor in self.flat if tensor in states))

    def make_states(self, step: float) -> None:
        """Makes every state, of zeros, as if `step` updates had been taken; in the place of those there."""
        fused = [bool(group.get("fused")) for group in self.optimizer.param_groups]
        for tensor in self.flat:
            state: dict[str, object] = {kind: torch.zeros_like(tensor) for kind in self.kinds}
            if self.counts:
                on_device = all(fused) and tensor.device.type != "cpu"
                state[STEP] = torch.tensor(step, device=tensor.device if on_device else "cpu")
                if not isinstance(self.optimizer, torch.optim.AdamW):
                    state[STEP] = int(step)  # DeepSpeedCPUAdam's
            self.optimizer.state[tensor] = state
        self.link_states()

    def link_states(self) -> None:
        """Lets ZeRO 1 and 2 find every state: 0.19 looks once, when one group of parameters has some."""
        if self.stage in (1, 2):
            self.engine.optimizer._hp_optimizer_states_linked = False
            self.engine.optimizer._lazy_init_hp_params_optimizer_state()

    def _local(self, parameter: Any, value: Tensor) -> Tensor:
        """This rank's part of a value, padded as ZeRO 3 pads, whose function for whole ones doesn't."""
        length, rank = int(parameter.ds_tensor.ds_numel), self.engine.global_rank
        flat = value.flatten()[rank * length : (rank + 1) * length]
        return torch.cat([flat, flat.new_zeros(length - flat.numel())])

    def _gathered(self, parameter: nn.Parameter, *, changes: bool = False) -> Any:
        """While entered, a parameter is whole on every rank; if it `changes`, rank 0's is shared then."""
        return self.deepspeed.zero.GatheredParameters(
            [parameter], modifier_rank=0 if changes else None, enabled=self.stage == 3
        )


class DeepSpeedWeights(Weights):
    """The weights of a rank, with masters only between `collect` and `release`."""

    def __init__(self, items: list[Weight], partitions: Partitions) -> None:
        super().__init__(items)
        self.partitions = partitions

    @torch.no_grad()
    def fill(self, source: Source) -> None:
        """Sets every weight, one whole tensor at a time. All ranks call it."""
        for weight in self.items:
            value = source(weight.placement.tensor, whole(weight))
            self.partitions.set(weight, value.to(weight.compute.device))

    def publish(self) -> None:
        """Nothing to do: `fill` sets the copies for compute, too."""

    @torch.no_grad()
    def collect(self) -> None:
        """Copies this rank's box of every weight to its master, in host memory. All ranks call it."""
        for weight in self.items:
            part = own_part(self.partitions.get(weight), weight)
            weight.master = nn.Parameter(part, requires_grad=weight.trained)

    def release(self) -> None:
        """Lets the masters go."""
        for weight in self.items:
            weight.master = _no_master(weight.trained)


def own_part(tensor: Tensor, weight: Weight) -> Tensor:
    """A copy of this rank's box of a whole tensor, in host memory."""
    offsets, sizes = weight.box
    part = tensor[tuple(slice(o, o + size) for o, size in zip(offsets, sizes, strict=True))]
    return part.detach().to("cpu", copy=True).contiguous()

"""When FSDP gathers, reduces and frees: the flags of every module, set around the backwards of a step.

                      between backwards    in a backward     in the step's last
    ZeRO-1            -                    -                 reduce, all-reduce, free
    ZeRO-2            -                    reduce            reduce, all-reduce, free
    ZeRO-3            free                 reduce, free      reduce, all-reduce, free
      pipeline root   -                    reduce            reduce, all-reduce, free

    reduce        FSDP reduce-scatters the gradients after the module's backward
    all-reduce    and sums them over the replicas (HSDP)
    free          the gathered parameters go after the backward; the next forward gathers them again

FSDP reduces inside a backward that runs whole. Elsewhere it has the flags of the first column, and we reduce after the
backward: in schedules that split it (its own reduction would come after the input part, before there are gradients),
and, in ZeRO-1 and before torch 2.12, for a user's own module, whose ranks may each leave other parameters unused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from scalewright.model.decoder import Decoder
from scalewright.parallel.shard import reduces_unused, sharded_modules
from scalewright.parallel.stages import tied_stages
from scalewright.parallel.weights import Weights
from scalewright.spec.layout import Layout
from scalewright.spec.schedule import find_kind


class Flags(NamedTuple):
    """FSDP's flags of one module; see the table above."""

    reduce: bool = False
    all_reduce: bool = False
    free: bool = False


KEEP, LAST = Flags(), Flags(reduce=True, all_reduce=True, free=True)
FLAGS = {  # by ZeRO stage: between backwards, in a backward, in the step's last
    1: (KEEP, KEEP, LAST),
    2: (KEEP, Flags(reduce=True), LAST),
    3: (Flags(free=True), Flags(reduce=True, free=True), LAST),
}


class ShardedGradients:
    """The gradients of every stage of this rank, reduced when the ZeRO stage reduces them.

    A stage whose embedding another stage of this rank uses, too (both ends of a V), lends it: the embedding
    is reduced when both stages are done.
    """

    def __init__(self, stages: Mapping[int, nn.Module], weights: Weights, layout: Layout) -> None:
        self.weights = weights
        self.zero_stage = layout.zero_stage
        self.pipeline = layout.pp > 1
        self.split = self.pipeline and find_kind(layout.schedule).splits
        # Whether parameters that a backward left out get zeros here, because FSDP adds none.
        self.fill = not reduces_unused(layout) and not all(isinstance(s, Decoder) for s in stages.values())
        self.modules = {number: sharded_modules(stage) for number, stage in stages.items()}
        self.roots = {number: modules[0] for number, modules in self.modules.items()}
        self.tied = tied_stages(stages)
        self.done: set[int] = set()  # tied stages that have run their last backward of the step
        self.lender: FSDPModule | None = None  # the module that holds the tied embedding
        if self.tied:
            self.lender = self.modules[min(stages)].pop(0)
            _set(self.lender, KEEP)

    def clear(self) -> None:
        """Before a step: forgets the last one's gradients, and sets the flags between backwards."""
        for weight in self.weights:
            weight.compute.grad = weight.master.grad = None  # both ends: neither keeps the last step's alive
        self.done.clear()
        for number in self.modules:
            self._set_between(number)

    def begin(self, stage: int, last: bool) -> None:
        """Before a micro-batch; in a pipeline, before a backward (or its weight part) of a stage."""
        if self.split and self.zero_stage == 3:
            self._gather(stage)
        elif not self.split and not self.fill:
            self._set_backward(stage, last)
            self.roots[stage].set_is_last_backward(last)

    def end(self, stage: int, last: bool) -> None:
        """After it: reduces the gradients that FSDP didn't reduce by itself."""
        if self.split or self.fill:
            if last or self.zero_stage >= 2:
                if self.fill:
                    accumulate_now(self.modules[stage], fill=True)
                self._set_backward(stage, last)
                reduce_now(self.roots[stage], self.modules[stage], last=last)
            else:
                accumulate_now(self.modules[stage])
        self._set_between(stage)
        if self.lender is not None and stage in self.tied:
            self._end_tied(self.lender, stage, last)

    def finish(self) -> None:
        """FSDP has let the current stream wait for its reductions at the end of each last backward."""

    def _gather(self, stage: int) -> None:
        """For a weight part: its norms read their weights again, and no hook gathers those in time. FSDP's own hooks
        run again in it where a norm ends a block (Gemma's), and must not free the gathered parameters: without these
        flags the gathers are no longer those of spec/volumes.py."""
        for module in self.modules[stage]:
            module.unshard()
            _set(module, KEEP)

    def _set_between(self, stage: int) -> None:
        for module in self.modules[stage]:
            _set(module, self._flags(module, stage)[0])
        self.roots[stage].set_is_last_backward(False)

    def _set_backward(self, stage: int, last: bool) -> None:
        for module in self.modules[stage]:
            _set(module, self._flags(module, stage)[2 if last else 1])

    def _flags(self, module: FSDPModule, stage: int) -> tuple[Flags, Flags, Flags]:
        """The module's row of FLAGS; the root of a pipeline's stage is gathered once a step, as in ZeRO-2."""
        once = self.pipeline and module is self.roots[stage]
        return FLAGS[min(2, self.zero_stage) if once else self.zero_stage]

    def _end_tied(self, lender: FSDPModule, stage: int, last: bool) -> None:
        """Adds one end's part to the embedding's gradient, and reduces it when both ends have given all."""
        if last:
            self.done.add(stage)
        if self.done != self.tied:
            accumulate_now([lender])
            return
        _set(lender, LAST)
        reduce_now(lender, [lender], last=True)
        _set(lender, KEEP)


def _set(module: FSDPModule, flags: Flags) -> None:
    module.set_requires_gradient_sync(flags.reduce, recurse=False)
    module.set_requires_all_reduce(flags.all_reduce, recurse=False)
    module.set_reshard_after_backward(flags.free, recurse=False)


# -- the two places that use names which torch does not promise ------------------------------------------


def reduce_now(root: FSDPModule, modules: Iterable[FSDPModule], *, last: bool) -> None:
    """Reduces the gradients that lie in the modules' gathered parameters, as the end of a backward would.

    FSDP2 has no public call for it: its reduction hangs on a hook of the backward, which the weight part of a split one
    doesn't reach. torch's own pipeline runtime (`stage.perform_reduce_grad`) makes the same calls: `post_backward` of
    every parameter group, which does as the flags are, then the callback with which a backward ends, which waits and
    (after the last) cleans up. Both have these names in torch 2.11 and 2.13; `_groups` handles the groups' two names.
    """
    root.set_is_last_backward(last)
    for module in modules:
        for group in _groups(module):
            _make_uniform(group)
            group.post_backward()
    root._get_fsdp_state()._root_post_backward_final_callback()


def _make_uniform(group: Any) -> None:
    """Brings a group's gradients to fp32 where some are: one reduction takes all, and refuses two types. In a split
    backward FSDP's hook runs after the input part, and adds what is there by then to fp32 sums; the weight part makes
    the others in bf16. Seen on CPUs: a head in the sums, the norm before it not."""
    gathered = _gathered(group)
    if any(parameter.unsharded_accumulated_grad is not None for parameter in gathered):
        for parameter in gathered:
            _add_to_sum(parameter)


def accumulate_now(modules: Iterable[FSDPModule], *, fill: bool = False) -> None:
    """Adds bf16 gradients of the gathered parameters to their fp32 sums, where FSDP isn't to reduce yet.

    `fill` adds zeros for parameters without a gradient, so that every rank reduces the same.
    """
    for module in modules:
        for group in _groups(module):
            for parameter in _gathered(group):
                _add_to_sum(parameter)
                whole = parameter.unsharded_param
                without = parameter.unsharded_accumulated_grad is None and whole.grad is None
                if fill and without and whole.requires_grad:
                    parameter.unsharded_accumulated_grad = torch.zeros_like(whole, dtype=torch.float32)


def kept_gradients(modules: Iterable[FSDPModule]) -> Iterator[Tensor]:
    """Gradients that wait for the next micro-batch's: whole ones, and sums of a shard that replicas have yet to sum."""
    for module in modules:
        for group in _groups(module):
            for parameter in _gathered(group):
                kept = (parameter.unsharded_accumulated_grad, parameter._unsharded_param.grad)
                yield from (gradient for gradient in kept if gradient is not None)
            if group._partial_reduce_output is not None:
                yield group._partial_reduce_output


def _gathered(group: Any) -> list[Any]:
    return [parameter for parameter in group.fsdp_params if hasattr(parameter, "_unsharded_param")]


def _add_to_sum(parameter: Any) -> None:
    """Its bf16 gradient, if it has one, to its fp32 sum."""
    parameter.accumulate_unsharded_grad_if_needed()
    parameter.to_accumulated_grad_if_needed()


def _groups(module: FSDPModule) -> list[Any]:
    state: Any = module._get_fsdp_state()
    if (groups := getattr(state, "_fsdp_param_groups", None)) is None:
        groups = [state._fsdp_param_group] if state._fsdp_param_group is not None else []
    return list(groups)

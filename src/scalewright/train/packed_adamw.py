"""AdamW whose moments take two bytes or one: unpacked to fp32 a chunk at a time, updated, packed again.

    m = b1 m + (1 - b1) g     v = b2 v + (1 - b2) g^2     w -= lr (m / c1 / (sqrt(v / c2) + eps) + decay w)

                  m and v are kept in        packed by
    adamw_bf16    bfloat16                   stochastic rounding                 rounding.py
    adamw_8bit    bytes, a scale for 256     the nearest of 255 or 256 levels    rounding.py
                  tensors < 4096: fp32

(Loshchilov & Hutter 2019, algorithm 2; c1 and c2 undo the zeros that m and v begin with.) The update takes m and v
before they are packed. Rounding depends on a number's place in the whole tensor, so bf16 states are those of one device
on every layout. Blocks of 256 follow the flattened part that a rank holds: where a layout cuts tensors (tp, ZeRO),
other numbers share a scale than on one device, and the run differs from it by the quantisation. Plain torch, without a
wait: it counts the steps, and obeys `found_inf` (1: leave everything as it is), as torch's fused optimizers do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from scalewright.parallel.weights import Weight
from scalewright.spec.optimizers import CHUNK
from scalewright.spec.run import OptimizerSpec
from scalewright.train.rounding import BLOCK, Bytes, Numbering, blocks, halves, key, mixed, rounded

MOMENTS = ("exp_avg", "exp_avg_sq")
SCALE = "_scale"  # ends the name of a quantised moment's scales
State = dict[str, Tensor]


class Packing(Protocol):
    """How the two moments of a weight are kept. Parts are slices of its flattened tensor."""

    def make(self, master: Tensor) -> State:
        """Moments of zero."""

    def read(self, state: State, part: slice) -> tuple[Tensor, Tensor]:
        """fp32 copies of a part."""

    def write(self, state: State, part: slice, moments: Sequence[Tensor], skip: Tensor | None) -> None:
        """Packs a part, unless `skip` (a bool on the device); may change `moments`."""


class Wide:
    """fp32, for small tensors."""

    dtype = torch.float32

    def make(self, master: Tensor) -> State:
        return {kind: torch.zeros_like(master, dtype=self.dtype) for kind in MOMENTS}

    def read(self, state: State, part: slice) -> tuple[Tensor, Tensor]:
        first, second = (state[kind].view(-1)[part].to(torch.float32, copy=True) for kind in MOMENTS)
        return first, second

    def write(self, state: State, part: slice, moments: Sequence[Tensor], skip: Tensor | None) -> None:
        for kind, moment in zip(MOMENTS, moments, strict=True):
            _put(state[kind].view(-1)[part], moment, skip)


class Rounded(Wide):
    """bfloat16, rounded stochastically by the weight's name, the step and each number's place."""

    dtype = torch.bfloat16

    def __init__(self, weight: Weight, seed: int) -> None:
        self.name, self.seed = weight.name, seed
        self.places = Numbering(tuple(weight.master.shape), weight.box[0], tuple(weight.placement.tensor.shape))

    def write(self, state: State, part: slice, moments: Sequence[Tensor], skip: Tensor | None) -> None:
        """Rounds a part; both moments of a number take half of one hash."""
        hashes = self.places.of(part.start, part.stop, moments[0].device)
        noises = halves(mixed(hashes.add_(key(self.name, self.seed, state["step"]))))
        super().write(state, part, [rounded(m, noise) for m, noise in zip(moments, noises, strict=True)], skip)


class Quantized:
    """A byte a number, and an fp32 scale for each 256."""

    def __init__(self, device: torch.device) -> None:
        self.tables = dict(zip(MOMENTS, (Bytes(True, device), Bytes(False, device)), strict=True))

    def make(self, master: Tensor) -> State:
        state = {}
        for kind, table in self.tables.items():
            state[kind] = torch.full_like(master, table.zero, dtype=torch.uint8)
            state[kind + SCALE] = torch.zeros(blocks(master.numel()), device=master.device)
        return state

    def read(self, state: State, part: slice) -> tuple[Tensor, Tensor]:
        """fp32 copies of a part, which begins with a block."""
        first, second = (self.moment(state, kind, part) for kind in MOMENTS)
        return first, second

    def moment(self, state: State, kind: str, part: slice) -> Tensor:
        """An fp32 copy of a part of one of them."""
        scales = state[kind + SCALE][part.start // BLOCK : blocks(part.stop)]
        return self.tables[kind].unpack(state[kind].view(-1)[part], scales)

    def write(self, state: State, part: slice, moments: Sequence[Tensor], skip: Tensor | None) -> None:
        for (kind, table), moment in zip(self.tables.items(), moments, strict=True):
            codes, scales = table.pack(moment)
            _put(state[kind].view(-1)[part], codes, skip)
            _put(state[kind + SCALE][part.start // BLOCK : blocks(part.stop)], scales, skip)


class PackedAdamW(torch.optim.Optimizer):
    """AdamW over this rank's parts of weights, with a record's states (spec/optimizers.py). `seed`: of the rounding."""

    _step_supports_amp_scaling = True
    found_inf: Tensor | None = None

    def __init__(self, groups: Any, weights: Sequence[Weight], spec: OptimizerSpec, seed: int) -> None:
        # `capturable` is torch's word for a step count on the device, which a resume looks for
        super().__init__(groups, {"lr": spec.lr, "betas": spec.betas, "eps": spec.eps, "capturable": True})
        tables: dict[torch.device, Quantized] = {}
        self.packings: dict[Tensor, Packing] = {}
        for weight in weights:
            device = weight.master.device
            if weight.placement.tensor.size < spec.record.least:
                packing: Packing = Wide()
            elif spec.record.block:
                packing = tables.setdefault(device, Quantized(device))
            else:
                packing = Rounded(weight, seed)
            self.packings[weight.master] = packing

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        skip = None if self.found_inf is None else self.found_inf.to(torch.bool)
        for group in self.param_groups:
            for master in group["params"]:
                if master.grad is not None:
                    self._update(master, group, skip)

    def _update(self, master: Tensor, group: Mapping[str, Any], skip: Tensor | None) -> None:
        packing, state = self.packings[master], self.state[master]
        if not state:
            state["step"] = torch.zeros((), device=master.device)
            state.update(packing.make(master))
        state["step"] += 1 if skip is None else ~skip
        first, second = group["betas"]
        rate = group["lr"] / (1 - first ** state["step"])  # of m, as it is
        root = (1 - second ** state["step"]).sqrt()
        decay = 1 - group["lr"] * group["weight_decay"]
        if skip is not None:
            decay = torch.where(skip, 1.0, decay)
        assert master.grad is not None
        whole, gradient = master.detach().contiguous().view(-1), master.grad.reshape(-1)
        for begin in range(0, len(whole), CHUNK):
            part = slice(begin, min(begin + CHUNK, len(whole)))
            moments = packing.read(state, part)
            update = _next(moments, gradient[part], (first, second), root, group["eps"]).mul_(rate)
            if skip is not None:
                update.masked_fill_(skip, 0.0)
            whole[part].mul_(decay).sub_(update)
            del update
            packing.write(state, part, moments, skip)
        if not master.is_contiguous():
            master.copy_(whole.view(master.shape))

    def unpacked(self, master: Tensor) -> dict[str, Any]:
        """The state as a checkpoint has it: bytes as fp32, made when they are written."""
        state, packing = self.state.get(master, {}), self.packings[master]
        if not isinstance(packing, Quantized):
            return dict(state)
        kept = {kind: value for kind, value in state.items() if not kind.endswith(SCALE)}
        return kept | {kind: Unpacked(packing, state, kind) for kind in MOMENTS if kind in kept}

    def pack(self, master: Tensor) -> None:
        """After a checkpoint's state was put in place: fp32 moments of a byte are quantised again."""
        state, packing = self.state.get(master, {}), self.packings[master]
        if not isinstance(packing, Quantized) or not all(kind in state for kind in MOMENTS):
            return
        moments = [state[kind].float().reshape(-1) for kind in MOMENTS]
        state.update(packing.make(master))
        packing.write(state, slice(0, master.numel()), moments, None)


class Unpacked:
    """A quantised moment on its way into a checkpoint, in fp32 from the call on."""

    dtype = torch.float32

    def __init__(self, packing: Quantized, state: State, kind: str) -> None:
        self._packing, self._state, self._kind = packing, state, kind
        self.shape = state[kind].shape

    def numel(self) -> int:
        """How many numbers it has."""
        return self.shape.numel()

    def __call__(self) -> Tensor:
        """The numbers, in the weight's shape."""
        return self._packing.moment(self._state, self._kind, slice(0, self.numel())).view(self.shape)


def _next(moments: Sequence[Tensor], gradient: Tensor, betas: tuple[float, float], root: Tensor, eps: float) -> Tensor:
    """Moves both moments on, in place; m / (sqrt(v) / root + eps)."""
    m, v = moments
    m.lerp_(gradient, 1 - betas[0])
    v.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
    update = v.sqrt().div_(root).add_(eps)
    return torch.div(m, update, out=update)


def _put(target: Tensor, value: Tensor, skip: Tensor | None) -> None:
    """Copies, unless `skip`."""
    if skip is None:
        target.copy_(value)
    else:
        torch.where(skip, target, value.to(target.dtype), out=target)

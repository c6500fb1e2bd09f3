"""What papers say that techniques save, as claims about what was measured of a layout.

A claim is a number of a paper's beside ours, and a tolerance. Claims are about kinds of memory, so that one
can't hide behind another. Activations by formula are `spec/operators.py`'s, whose sums are Korthikanti's
equations for GPT-2's block and their like for other blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from harness.live_memory import Found
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.operators import activation_bytes, operators
from scalewright.spec.placement import stage_layers
from scalewright.spec.primitives import Kernels
from scalewright.spec.schedule import layout_schedule
from scalewright.spec.schedules.bubble import peak_activations
from scalewright.spec.tensors import TensorSpec, tensors


@dataclass(frozen=True)
class Claim:
    """One number of a paper's, and ours."""

    text: str
    measured: float
    expected: float
    tolerance: float  # relative; 1% is what tokens, statistics and odd sizes take
    at_most: bool = False

    @property
    def holds(self) -> bool:
        """Whether ours is theirs, within the tolerance."""
        if self.at_most:
            return self.measured <= self.expected * (1 + self.tolerance)
        return abs(self.measured - self.expected) <= self.tolerance * abs(self.expected)

    def dump(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "holds": self.holds}


@dataclass(frozen=True)
class Setting:
    """What all cases share."""

    model: ModelSpec
    seq_len: int

    @property
    def weights(self) -> float:
        """Bytes of the parameters in fp32."""
        return self.dense + self.experts

    @property
    def dense(self) -> float:
        """Bytes of those that all tokens go through."""
        return self._bytes(experts=False)

    @property
    def experts(self) -> float:
        """Bytes of all experts."""
        return self._bytes(experts=True)

    def _bytes(self, *, experts: bool) -> float:
        own = (t for t in tensors(self.model) if t.tied_to is None)
        return 4.0 * sum(math.prod(t.shape) for t in own if t.role.startswith("expert") is experts)

    def layout(self, keys: dict[str, Any]) -> Layout:
        """A case's layout, as it is run."""
        return Layout.parse({"precision": "fp32", **keys})

    def kept(self, keys: dict[str, Any]) -> float:
        """Activations that wait for a micro-batch's backward, by formula; logits stand for the loss's."""
        return activation_bytes(self.model, self.layout(keys), self.seq_len, kernels="cpu")

    def blocks(self, keys: dict[str, Any], *, kernels: Kernels) -> float:
        """What all blocks keep without recomputation."""
        found = operators(self.model, self.layout(keys), self.seq_len, kernels=kernels)
        return sum(o.saved for o in found if 0 <= o.layer < self.model.num_hidden_layers)

    def logits(self, keys: dict[str, Any]) -> float:
        """Bytes of a rank's logits."""
        found = operators(self.model, self.layout(keys), self.seq_len)
        return next(o.written for o in found if o.kind == "head")


Claims = Callable[[Setting, dict[str, Any], Found, Found], list[Claim]]  # (setting, layout, found, one device's)


def states(
    parameters: float | None = None,
    gradients: float | None = None,
    optimizer: float | None = None,
    *,
    mean: bool = False,
) -> Claims:
    """What is left of parameters (4 Psi bytes in fp32), gradients (4 Psi) and Adam's moments (8 Psi).

    On the worst rank, or the `mean` over ranks whose pipeline stages are uneven.
    """
    shares = {"parameters": parameters, "gradients": gradients, "optimizer": optimizer}

    def claims(setting: Setting, keys: dict[str, Any], found: Found, one: Found) -> list[Claim]:
        whole = {"parameters": setting.weights, "gradients": setting.weights, "optimizer": 2 * setting.weights}
        made = []
        for kind, share in shares.items():
            if share is not None:
                sizes = [rank[kind] for rank in found]
                measured = sum(sizes) / len(sizes) if mean else max(sizes)
                text = f"{kind} x {share:.4g}" + (", mean" if mean else "")
                made.append(Claim(text, measured, share * whole[kind], 0.02))
        return made

    return claims


def experts(share: float, dense: float = 1.0) -> Claims:
    """What a rank has of parameters, gradients and moments: a share of the experts, and of all else."""

    def claims(setting: Setting, keys: dict[str, Any], found: Found, one: Found) -> list[Claim]:
        size = share * setting.experts + dense * setting.dense
        whole = {"parameters": size, "gradients": size, "optimizer": 2 * size}
        what = f"experts x {share:.4g}" + ("" if dense == 1.0 else f", all else x {dense:.4g}")
        return [
            Claim(f"{kind}: {what}", max(rank[kind] for rank in found), expected, 0.02)
            for kind, expected in whole.items()
        ]

    return claims


def least(found: Found, kind: str) -> float:
    """A kind on the rank that has least of it, of ranks that do the same.

    A collective's input lives until Gloo's own thread lets it go, which on a busy machine is some time later.
    """
    return min(rank[kind] for rank in found)


def kept(text: str, tolerance: float = 0.02) -> Claims:
    """Activations of a micro-batch that wait for its backward, by formula."""

    def claims(setting: Setting, keys: dict[str, Any], found: Found, one: Found) -> list[Claim]:
        return [Claim(text, least(found, "kept"), setting.kept(keys), tolerance)]

    return claims


def share_of_blocks(share: float) -> Claims:
    """A budget is about what blocks keep; what is outside them (the norm, the logits) is taken off."""

    def claims(setting: Setting, keys: dict[str, Any], found: Found, one: Found) -> list[Claim]:
        outside = setting.kept({**keys, "recompute": "none"}) - setting.blocks(keys, kernels="cpu")
        text = f"at most {share:g} of what blocks keep"
        expected = share * setting.blocks(keys, kernels="fused")
        return [Claim(text, found[0]["kept"] - outside, expected, 0.02, at_most=True)]

    return claims


def outside_blocks(setting: Setting, keys: dict[str, Any], found: Found, one: Found) -> list[Claim]:
    """Of activations that wait, only the last norm's and the logits are on the device."""
    outside = setting.kept(keys) - setting.blocks(keys, kernels="cpu")
    return [Claim("nothing of the blocks", found[0]["kept"], outside, 0.05)]  # and outputs too small to move


def in_flight(setting: Setting, keys: dict[str, Any], found: Found, one: Found) -> list[Claim]:
    """Each pipeline rank's activations: its stages' of a micro-batch, as often as they are alive at once."""
    layout = setting.layout(keys)
    plan, sizes, start = layout_schedule(layout), [], 0
    for count in stage_layers(setting.model, layout):
        held = range(start, start + count)
        start += count
        sizes.append(activation_bytes(setting.model, layout, setting.seq_len, layers=held, kernels="cpu"))
    alive, peaks = peak_activations(plan), list(peak_activations(plan, sizes))
    peaks[plan.rank_of[-1]] += setting.logits(keys)  # the loss makes its probabilities beside them
    kept, all_of_it = (
        activation_bytes(setting.model, candidate, setting.seq_len, kernels="cpu")
        for candidate in (layout, layout.replace(recompute="none"))
    )
    rebuilt = (all_of_it - kept) / setting.model.num_hidden_layers  # of one block
    # 8%: a stage's output waits to be sent. 20%: while a block runs again, all that it makes counts
    return [
        Claim(
            f"rank {rank}: {alive[rank]:g} alive",
            found[rank]["activations"],
            peaks[rank] + rebuilt,
            0.2 if rebuilt else 0.08,
            at_most=bool(rebuilt),
        )
        for rank in range(layout.pp)
    ]


def times_kind(kind: str, share: float, tolerance: float = 0.02) -> Claims:
    """A kind against one device's."""

    def claims(setting: Setting, keys: dict[str, Any], found: Found, one: Found) -> list[Claim]:
        return [Claim(f"{kind} x {share:.4g}", least(found, kind), share * one[0][kind], tolerance)]

    return claims


def both(*parts: Claims) -> Claims:
    """All of these."""
    return lambda setting, keys, found, one: [claim for part in parts for claim in part(setting, keys, found, one)]


def outputs_twice(setting: Setting, keys: dict[str, Any], found: Found, one: Found) -> list[Claim]:
    """With Ulysses attention's output is kept before and after it has changed hands."""
    model, layout = setting.model, setting.layout(keys)
    rows = layout.micro_batch * setting.seq_len / layout.cp
    outputs = model.num_hidden_layers * rows * model.num_attention_heads * model.dim_per_head * 4
    return [Claim("over cp, and the output", least(found, "kept"), setting.kept(keys) + outputs, 0.02)]


def states_of(text: str, tensor_bytes: Callable[[TensorSpec, ModelSpec], float]) -> Claims:
    """An optimizer's states, tensor by tensor."""

    def claims(setting: Setting, keys: dict[str, Any], found: Found, one: Found) -> list[Claim]:
        own = (t for t in tensors(setting.model) if t.tied_to is None)
        expected = sum(tensor_bytes(t, setting.model) for t in own)
        return [Claim(text, found[0]["optimizer"], expected, 0.02)]

    return claims


def eight_bits(tensor: TensorSpec, model: ModelSpec) -> float:
    """A byte a moment, and fp32 scales of 256 numbers; both moments of a small tensor are in fp32."""
    return tensor.size * (2 + 2 * 4 / 256 if tensor.size >= 4096 else 8)


def one_momentum(tensor: TensorSpec, model: ModelSpec) -> float:
    """Muon's of a block's matrices; AdamW has both moments of the rest."""
    in_block = 0 <= tensor.layer < model.num_hidden_layers
    return tensor.size * (4.0 if in_block and len(tensor.shape) > 1 else 8.0)

"""Every technique that saves memory, as a layout, beside what its paper says that it saves.

    ZeRO        optimizer 1/N; from stage 2 gradients 1/N; in stage 3 parameters 1/N       Rajbhandari 2020 §5
    tensor      weights 1/t; activations by eq. 2, with sequence parallelism by eq. 4      Korthikanti 2022 §4
    pipeline    weights 1/p; activations x micro-batches in flight      Huang 2019, Narayanan 2021, Qi 2023
    context     activations 1/c; weights whole, or sharded over its ranks too              Liu 2023 §3
    recompute   a block keeps its input, or its products, or what a budget holds           Chen 2016
    offload     what is in host memory isn't on the device                                 Rhu 2016, Ren 2021

Activations by formula are `spec/operators.py`'s, whose sums are Korthikanti's equations for GPT-2's block and
their like for other blocks. Claims are about kinds of memory, so that one can't hide behind another. A peak
is held against one device's with the same micro-batch: a smaller one would be a saving of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from harness.live_memory import Found
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.operators import activation_bytes, operators
from scalewright.spec.placement import stage_layers
from scalewright.spec.primitives import Kernels
from scalewright.spec.schedule import layout_schedule
from scalewright.spec.schedules.memory import peak_activations
from scalewright.spec.tensors import tensors

MICROS = 8  # of a pipeline's step


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
        own = (t for t in tensors(self.model) if t.tied_to is None)
        return 4.0 * sum(math.prod(t.shape) for t in own)

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


Claims = Callable[
    [Setting, dict[str, Any], Found, Found], list[Claim]
]  # (setting, layout, found, one device's)


@dataclass(frozen=True)
class Case:
    """A layout, and what is claimed of it."""

    name: str
    keys: dict[str, Any]
    claims: Claims


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
        whole = {
            "parameters": setting.weights,
            "gradients": setting.weights,
            "optimizer": 2 * setting.weights,
        }
        made = []
        for kind, share in shares.items():
            if share is not None:
                sizes = [rank[kind] for rank in found]
                measured = sum(sizes) / len(sizes) if mean else max(sizes)
                text = f"{kind} x {share:.4g}" + (", mean" if mean else "")
                made.append(Claim(text, measured, share * whole[kind], 0.02))
        return made

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
        activation_bytes(setting.model, one, setting.seq_len, kernels="cpu")
        for one in (layout, layout.replace(recompute="none"))
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
    return lambda setting, keys, found, one: [
        claim for part in parts for claim in part(setting, keys, found, one)
    ]


def zero(stage: int, devices: int, **more: Any) -> Case:
    """A ZeRO stage; two micro-batches, so that stages 1 and 2 differ."""
    keys = {"devices": devices, "zero_stage": stage, "micro_batch": 2, "global_batch": 4 * devices, **more}
    shards = devices // more.get("dp_replicate", 1)
    share = 1.0 / shards
    rest: dict[int, Claims] = {
        0: states(1, 1, 1),
        1: states(optimizer=share),
        2: states(gradients=share, optimizer=share),
        3: states(share, share, share),
    }
    name = f"ZeRO-{stage} on {devices}" if stage else f"DDP on {devices}"
    if shards < devices:
        name = f"HSDP {devices // shards} x {shards}"
    return Case(name, keys, rest[stage])


def context(kind: str, cp: int) -> Case:
    """A row's tokens over `cp` ranks, and weights whole on each."""
    keys = {**ONE, "devices": cp, "cp": cp, "cp_kind": kind, "zero_stage": 0}
    if kind == "ulysses":
        return Case(f"cp {cp}, {kind}", keys, both(states(1, 1, 1), outputs_twice))
    claims = both(states(1, 1, 1), kept("formula over cp"), times_kind("kept", 1 / cp))
    return Case(f"cp {cp}, {kind}", keys, claims)


def outputs_twice(setting: Setting, keys: dict[str, Any], found: Found, one: Found) -> list[Claim]:
    """With Ulysses attention's output is kept before and after it has changed hands."""
    model, layout = setting.model, setting.layout(keys)
    rows = layout.micro_batch * setting.seq_len / layout.cp
    outputs = model.num_hidden_layers * rows * model.num_attention_heads * model.dim_per_head * 4
    return [Claim("over cp, and the output", least(found, "kept"), setting.kept(keys) + outputs, 0.02)]


def pipeline(schedule: str, **more: Any) -> Case:
    """A schedule on two ranks."""
    keys = {"devices": 2, "pp": 2, "schedule": schedule, "zero_stage": 0, "global_batch": MICROS, **more}
    name = ", ".join(["pp 2", schedule, *(f"{key} {value}" for key, value in more.items())])
    return Case(name, keys, both(states(0.5, 0.5, 0.5, mean=True), in_flight))


def recompute(kind: Any, text: str, *more: Claims) -> Case:
    """A kind of recomputation on one device."""
    words = kind if isinstance(kind, str) else str(kind).replace("'", "")
    return Case(f"recompute {words}", {**ONE, "recompute": kind}, both(kept(text), *more))


def offload(kind: str, claims: Claims, **keys: Any) -> Case:
    """A kind of offload."""
    return Case(f"offload {kind}", {**ONE, "offload": kind, **keys}, claims)


# Two micro-batches a step: the second meets the gradients of the first, which is the highest that there is.
ONE = {"devices": 1, "micro_batch": 2, "global_batch": 4}
TENSOR = {"devices": 2, "tp": 2, "zero_stage": 0, "micro_batch": 2, "global_batch": 4}
ALL = {"devices": 8, "pp": 2, "tp": 2, "zero_stage": 3, "global_batch": MICROS}
HALF = states(0.5, 0.5, 0.5)
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-interleaved", "zbv", "dualpipev")
CASES: tuple[Case, ...] = (
    Case("one device", ONE, both(states(1, 1, 1), kept("sum over operators"))),
    Case("micro-batch 1", {**ONE, "micro_batch": 1}, both(times_kind("kept", 0.5), states(1, 1, 1))),
    Case("micro-batch 4", {**ONE, "micro_batch": 4}, both(times_kind("kept", 2), states(1, 1, 1))),
    recompute("selective", "input and products of a block"),
    recompute({"every": 2}, "every second block's input alone"),
    recompute({"budget": 0.5}, "the knapsack's choice", share_of_blocks(0.5)),
    recompute({"budget": 0.25}, "the knapsack's choice", share_of_blocks(0.25)),
    recompute("full", "the blocks' inputs alone"),
    offload("activations", outside_blocks),
    offload("optimizer", states(1, 1, 0)),
    offload("parameters", states(0, 0, 0), devices=2, zero_stage=3, global_batch=8),
    *(zero(stage, devices) for devices in (2, 4) for stage in (0, 1, 2, 3)),
    zero(3, 4, dp_replicate=2),
    Case("tp 2", {**TENSOR, "sp": False}, both(HALF, kept("Korthikanti eq. 2"))),
    Case("tp 2, sp", TENSOR, both(HALF, kept("Korthikanti eq. 4"), times_kind("kept", 0.5))),
    *(context(kind, cp) for kind, cp in (("ring", 2), ("allgather", 2), ("ulysses", 2), ("ring", 4))),
    *(pipeline(schedule) for schedule in SCHEDULES),
    pipeline("1f1b", recompute="full"),
    Case("pp 2 x tp 2 x ZeRO-3 on 2", ALL, states(1 / 8, 1 / 8, 1 / 8, mean=True)),
)

# One device with each micro-batch, and nothing that saves memory.
BASELINES = {1: "micro-batch 1", 2: "one device", 4: "micro-batch 4"}


def baseline(case: Case) -> str:
    """The case of one device whose micro-batch is as large: what its peak is held against."""
    return BASELINES[Layout.parse(case.keys).micro_batch]


def with_baselines(names: Collection[str]) -> list[Case]:
    """Cases by name, with what they are held against, in their order; the first always, for claims."""
    wanted = {CASES[0].name, *names}
    wanted |= {baseline(case) for case in CASES if case.name in wanted}
    return [case for case in CASES if case.name in wanted]


# What must fall from each case to the next, whatever the sizes.
FALLING: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("peak", ("DDP on 4", "ZeRO-1 on 4", "ZeRO-2 on 4", "ZeRO-3 on 4")),
    ("peak", ("DDP on 2", "ZeRO-1 on 2", "ZeRO-2 on 2", "ZeRO-3 on 2", "ZeRO-3 on 4")),
    ("peak", ("ZeRO-3 on 2", "offload parameters")),
    ("peak", ("one device", "offload optimizer")),
    ("peak", ("one device", "tp 2", "tp 2, sp")),
    ("kept", ("one device", "cp 2, ring", "cp 4, ring")),
    ("peak", ("one device", "recompute selective", "recompute {budget: 0.5}", "recompute {budget: 0.25}")),
    ("peak", ("recompute {budget: 0.25}", "recompute full")),
    ("peak", ("one device", "recompute {every: 2}", "recompute full")),
    ("peak", ("one device", "offload activations")),
    ("peak", ("micro-batch 4", "one device", "micro-batch 1")),
    ("kept", ("one device", "recompute selective", "recompute {budget: 0.5}", "recompute {budget: 0.25}")),
    ("kept", ("recompute {budget: 0.25}", "recompute full", "offload activations")),
    # With equal micro-batches: half the weights, and at most two in flight through half the layers. Not
    # gpipe, which has all of them in flight.
    ("peak", ("micro-batch 1", "pp 2, 1f1b", "pp 2, 1f1b, recompute full")),
    ("peak", ("pp 2, gpipe", "pp 2, 1f1b")),
    ("activations", ("pp 2, gpipe", "pp 2, interleaved", "pp 2, 1f1b", "pp 2, 1f1b, recompute full")),
)


def falling(cases: dict[str, Found]) -> list[tuple[str, str, str, bool]]:
    """(kind, from, to, whether it fell) of neighbours that were measured; the worst rank counts."""
    found = []
    for kind, names in FALLING:
        for before, after in pairwise(name for name in names if name in cases):
            worst = [max(rank[kind] for rank in cases[name]) for name in (before, after)]
            found.append((kind, before, after, worst[1] < worst[0]))
    return found

"""Every technique that saves memory, as a layout, beside what its paper says that it saves.

    ZeRO        optimizer 1/N; from stage 2 gradients 1/N; in stage 3 parameters 1/N       Rajbhandari 2020 §5
    tensor      weights 1/t; activations by eq. 2, with sequence parallelism by eq. 4      Korthikanti 2022 §4
    pipeline    weights 1/p; activations x micro-batches in flight      Huang 2019, Narayanan 2021, Qi 2023
    context     activations 1/c; weights whole, or sharded over its ranks too              Liu 2023 §3
    experts     expert weights 1/e, and with ZeRO-3 over the ranks that share them          Lepikhin 2020 §3
    states      Adam's moments in 2 bytes or 1 a number, or one momentum alone             Dettmers 2022 §2
    recompute   a block keeps its input, or its products, or what a budget holds           Chen 2016
    offload     what is in host memory isn't on the device                                 Rhu 2016, Ren 2021

What exactly is claimed is in memory_claims.py. A peak is held against one device's with the same micro-batch:
a smaller one would be a saving of its own.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from harness.live_memory import Found, measure
from harness.memory_claims import (
    Claims,
    Setting,
    both,
    eight_bits,
    experts,
    in_flight,
    kept,
    one_momentum,
    outputs_twice,
    outside_blocks,
    share_of_blocks,
    states,
    states_of,
    times_kind,
)
from scalewright.spec.layout import Layout

MICROS = 8  # of a pipeline's step


@dataclass(frozen=True)
class Case:
    """A layout, and what is claimed of it."""

    name: str
    keys: dict[str, Any]
    claims: Claims
    optimizer: str = "adamw"
    mixture: bool = False

    def setting(self, of_all: Setting) -> Setting:
        """Its own: of a mixture, eight experts in the place of each MLP, of which a token has two."""
        if not self.mixture:
            return of_all
        width = of_all.model.intermediate_size // 4
        moe = {"num_experts": 8, "top_k": 2, "moe_intermediate_size": width}
        return Setting(of_all.model.replace(family="qwen3_moe", moe=moe), of_all.seq_len)

    def measure(self, of_all: Setting) -> Found:
        """Runs it."""
        own = self.setting(of_all)
        return measure(own.model, self.keys, own.seq_len, self.optimizer)


def mixture(name: str, claims: Claims, **keys: Any) -> Case:
    """A mixture of experts under a layout; weights whole on each rank, where `keys` has no other stage."""
    return Case(name, {**ONE, "zero_stage": 0, **keys}, claims, mixture=True)


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
    Case("adamw_bf16", ONE, states(1, 1, 4 / 8), "adamw_bf16"),
    Case("adamw_8bit", ONE, both(states(1, 1), states_of("a byte a moment", eight_bits)), "adamw_8bit"),
    Case("muon", ONE, both(states(1, 1), states_of("one momentum of matrices", one_momentum)), "muon"),
    mixture("mixture", both(experts(1), kept("sum over operators"))),
    mixture("mixture, ep 2", experts(1 / 2), devices=2, ep=2, global_batch=8),
    mixture("mixture, ep 4", experts(1 / 4), devices=4, ep=4, global_batch=16),
    mixture("mixture, etp 2", experts(1 / 2), devices=2, etp=2, global_batch=8),
    mixture("mixture, ep 2, ZeRO-3", experts(1 / 4, 1 / 4), devices=4, ep=2, zero_stage=3, global_batch=16),
)

# One device with each micro-batch, and nothing that saves memory.
BASELINES = {1: "micro-batch 1", 2: "one device", 4: "micro-batch 4"}
MIXTURE = "mixture"


def baseline(case: Case) -> str:
    """The case of one device whose micro-batch is as large: what its peak is held against."""
    if case.mixture:
        return MIXTURE
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
    ("peak", ("mixture", "mixture, ep 2", "mixture, ep 4")),
    ("peak", ("mixture, ep 2", "mixture, ep 2, ZeRO-3")),
    ("peak", ("mixture", "mixture, etp 2")),
    ("peak", ("one device", "muon")),
    ("peak", ("one device", "adamw_bf16", "adamw_8bit")),
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

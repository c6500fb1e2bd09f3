"""Whole training steps of a real shape: ours beside plain compiled loops and transformers' module, in turns.

    build -> first step (compiles) -> warm up alone, memory read -> rounds A B C, C B A, ...

Memory is a racer's own: its peak less what the others held before it was built. Step times are between events
on the device; tokens/s by the wall clock of whole segments stand beside them, since only those see work that
is put off. MFU counts model FLOPs (causal and full attention) against the published bf16 peak.
"""

from __future__ import annotations

import gc
import importlib.util
import math
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from harness.gpu.budget import Check, OutOfTime
from harness.gpu.clock import synchronize
from harness.gpu.kernels import attention_backends, attention_kernels, kernels_of, shares
from harness.gpu.racers import Ours, Race, Racer, hugging_face, plain, start_weights
from harness.models import TINY
from harness.statistics import in_turns, paired_ratio, spread
from scalewright.machine.local import find_cluster
from scalewright.spec.errors import UserError
from scalewright.spec.operators import flops_per_token
from scalewright.spec.presets import load_model_spec
from scalewright.spec.run import OptimizerSpec
from scalewright.spec.tensors import count

SAMPLES = 8
TOO_GOOD = 0.85  # an MFU above this is a mistake until it is explained
# The same start, samples and update: bf16 losses of the first steps differ by what each fuses and rounds.
AGREEMENT = 2e-2


def steps_of(name: str, *, whole: bool) -> Callable[[Check], None]:
    """The part for one model; `whole`: with the loop that compiles the model as one, which takes a minute."""
    return lambda check: steps(check, name, whole=whole)


def steps(check: Check, name: str, *, whole: bool) -> None:
    """Builds everyone that fits in memory and time, then races them."""
    race = make_race(check, name)
    check.note("model", race.model.dump())
    check.note("parameters", count(race.model).total)
    check.note("tokens_per_step", race.tokens)
    makers: dict[str, tuple[float, Callable[[], Racer]]] = {
        "scalewright": (30, lambda: Ours(race)),
        "plain, blocks compiled": (25, lambda: plain(race, whole=False)),
    }
    if importlib.util.find_spec("transformers"):
        makers["HF module, layers compiled"] = (35, lambda: hugging_face(race))
    else:
        check.note("HF module, layers compiled", {"skipped": "transformers is not installed"})
    if whole:
        makers["plain, whole model compiled"] = (75, lambda: plain(race, whole=True))
    racers: dict[str, Racer] = {}
    first: dict[str, list[float]] = {}
    for racer, (wanted, make) in makers.items():
        try:
            check.need(2.0 if check.quick else wanted, racer)
        except OutOfTime as error:
            check.note(racer, {"skipped": str(error)})
            continue
        with check.trying(racer):
            racers[racer], facts, first[racer] = introduce(check, make)
            check.note(racer, facts)
    check.note("largest_loss_difference", disagreement(first))
    if racers:
        compete(check, race, racers)
        look_inside(check, racers)
    racers.clear()
    gc.collect()
    if check.device.type == "cuda":
        torch.cuda.empty_cache()
        torch._dynamo.reset()


def make_race(check: Check, name: str) -> Race:
    """The model, random samples on the device, and everyone's first weights."""
    model = TINY if check.quick else load_model_spec(name)
    length = 64 if check.quick else 8192
    samples = []
    for _ in range(SAMPLES):
        ids = torch.randint(model.vocab_size, (1, length + 1), device=check.device)
        samples.append((ids[:, :-1].contiguous(), ids[:, 1:].contiguous()))
    backend = "aot_eager" if check.quick else "inductor"
    optimizer = OptimizerSpec(lr=1e-4)
    return Race(model, check.device, samples, backend, optimizer, start_weights(model, check.device))


def introduce(check: Check, make: Callable[[], Racer]) -> tuple[Racer, dict[str, Any], list[float]]:
    """Builds a racer, lets it compile and warm up alone, and reads its memory; and its first losses."""
    before = memory(check)
    started = time.perf_counter()
    racer = make()
    synchronize(check.device)
    built = time.perf_counter() - started
    started = time.perf_counter()
    losses = racer.steps(1, nothing)
    synchronize(check.device)
    compiled = time.perf_counter() - started
    losses += racer.steps(2 if check.quick else 10, nothing)
    synchronize(check.device)
    if not all(math.isfinite(loss) for loss in losses):
        raise ValueError(f"a loss is not finite: {losses}")
    facts: dict[str, Any] = {"build_s": built, "first_step_s": compiled, "first_losses": losses[:3]}
    if check.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(check.device)
        racer.steps(2, nothing)
        synchronize(check.device)
        facts["peak_allocated_gib"] = torch.cuda.max_memory_allocated(check.device) / 2**30 - before[0]
        facts["peak_reserved_gib"] = torch.cuda.max_memory_reserved(check.device) / 2**30 - before[1]
    return racer, facts, losses[:3]


def memory(check: Check) -> tuple[float, float]:
    """GiB allocated and reserved now, with the cache given back."""
    if check.device.type != "cuda":
        return 0.0, 0.0
    gc.collect()
    torch.cuda.empty_cache()
    return (
        torch.cuda.memory_allocated(check.device) / 2**30,
        torch.cuda.memory_reserved(check.device) / 2**30,
    )


def nothing() -> None:
    """Marks no time."""


def disagreement(first: dict[str, list[float]]) -> dict[str, Any]:
    """The largest relative difference of the first losses from ours, and whether it is small enough."""
    ours = first.get("scalewright")
    if ours is None:
        return {}
    found = {
        name: max(abs(a - b) / abs(b) for a, b in zip(losses, ours, strict=True))
        for name, losses in first.items()
    }
    return {**found, "agree": all(value <= AGREEMENT for value in found.values())}


def compete(check: Check, race: Race, racers: dict[str, Racer]) -> None:
    """Rounds of short segments, every second one in the opposite order."""
    count_, rounds = (2, 2) if check.quick else (5, 8)
    times: dict[str, list[float]] = {name: [] for name in racers}
    walls: dict[str, list[float]] = {name: [] for name in racers}
    hosts: dict[str, list[float]] = {name: [] for name in racers}

    def run(name: str, number: int) -> None:
        if number > 1:
            check.need(3.0, f"round {number + 1}")
        marks = Marks(check.device)
        synchronize(check.device)
        started = time.perf_counter()
        marks()
        racers[name].steps(count_, marks)
        synchronize(check.device)
        walls[name].append((time.perf_counter() - started) / count_)
        hosts[name].append((marks.last_launch - started) / count_)
        times[name] += marks.seconds()

    try:
        in_turns(list(racers), rounds, run)
    except OutOfTime as error:
        check.note("rounds_cut", str(error))
    least = min(len(each) for each in walls.values())
    peak = bf16_peak(check)
    check.note("peak", peak)
    for name in racers:
        check.part[name] |= speeds(check, race, times[name], walls[name], hosts[name], peak["flops"])
        ratio = (
            paired_ratio(walls[name][:least], walls["scalewright"][:least])
            if "scalewright" in walls
            else None
        )
        check.part[name]["ours_is_faster_by"] = ratio.dump() if ratio else None
        check.result.write()


class Marks:
    """The end of every step: an event on a GPU, the clock on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.found, self.last_launch = device, list[Any](), 0.0

    def __call__(self) -> None:
        """Marks now."""
        self.last_launch = time.perf_counter()
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self.found.append(event)
        else:
            self.found.append(self.last_launch)

    def seconds(self) -> list[float]:
        """Between the marks; on a GPU after a synchronization."""
        pairs = pairwise(self.found)
        if self.device.type == "cuda":
            return [a.elapsed_time(b) / 1e3 for a, b in pairs]
        return [b - a for a, b in pairs]


def speeds(
    check: Check,
    race: Race,
    times: list[float],
    walls: list[float],
    hosts: list[float],
    peak: float | None,
) -> dict[str, Any]:
    """Step time, tokens/s, MFU, and how long the host was busy launching."""
    step = spread(times)
    tokens_per_s = race.tokens / spread(walls).median
    length = race.samples[0][0].shape[1]
    causal, full = (flops_per_token(race.model, length, causal) for causal in (True, False))
    mfu = tokens_per_s * causal / peak if peak else None
    matmul = check.result.data["ceilings"]["start"]["matmul_bf16_tflops"]["per_s"] * 1e12
    return {
        "step_s": step.dump(),
        "wall_s_per_step": spread(walls).dump(),
        "host_launch_s_per_step": spread(hosts).dump(),
        "tokens_per_s": tokens_per_s,
        "mfu_causal": mfu,
        "share_of_measured_matmul_rate": tokens_per_s * causal / matmul,
        "mfu_full_attention": tokens_per_s * full / peak if peak else None,
        "flops_per_token_causal": causal,
        "suspicious": bool(mfu and mfu > TOO_GOOD),
    }


def bf16_peak(check: Check) -> dict[str, Any]:
    """What MFU is measured against, and where that is from; None on a CPU."""
    if check.device.type != "cuda":
        return {"flops": None, "source": "none: a CPU in a plumbing test", "device": "cpu"}
    try:
        device = find_cluster("local").device
    except UserError as error:
        return {"flops": None, "source": str(error), "device": torch.cuda.get_device_name(check.device)}
    return {"flops": device.peak("bf16"), "source": device.peak_source, "device": device.name}


def look_inside(check: Check, racers: dict[str, Racer]) -> None:
    """The kernels of one step of everyone: which attention ran, and where the time went."""
    for name, racer in racers.items():

        def one(racer: Racer = racer) -> object:
            return racer.steps(1, nothing)

        with check.trying(f"{name}: kernels"):
            kernels = kernels_of(one, check.device)
            check.part[name] |= {
                "attention_launched": attention_backends(kernels),
                "attention_kernels": attention_kernels(kernels),
                "kernels": shares(kernels),
            }
            check.result.write()

"""Whole training steps of a real shape: ours beside plain compiled loops and transformers' module, in turns.

    ours -> first step (compiles) -> warm-up, memory read ─┐
    rival -> the same ──────────────────────────────────────┴─► rounds A B, B A, ... ──► the rival is freed

Two that don't fit beside each other run one after the other. Memory is a racer's own: its peak less what the
other held before it was built. The planner's step time and peak stand beside the measured ones.
Step times are between events on the device; tokens/s are by the wall clock of whole segments, since only
those see work that is put off. MFU counts model FLOPs (causal and full attention) against the published peak.
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

from harness.gpu.budget import Check
from harness.gpu.clock import synchronize
from harness.gpu.kernels import attention_backends, attention_kernels, kernels_of, shares
from harness.gpu.racers import Ours, Race, Racer, hugging_face, plain
from harness.models import TINY
from harness.statistics import in_turns, paired_ratio, spread
from scalewright.machine.local import find_cluster
from scalewright.spec.errors import UserError
from scalewright.spec.flops import flops_per_token
from scalewright.spec.model import ModelSpec
from scalewright.spec.presets import load_model_spec
from scalewright.spec.run import OptimizerSpec
from scalewright.spec.tensors import count

SAMPLES = 8
TOO_GOOD = 0.85  # an MFU above this is a mistake until it is explained
# The same start, samples and update: bf16 losses of the first steps differ by what each fuses and rounds.
AGREEMENT = 2e-2
OURS = "scalewright"
BLOCKS, WHOLE = "plain, blocks compiled", "plain, whole model compiled"
HF, LIGER = "HF module, layers compiled", "HF module with Liger, eager"
WANTED_S = {OURS: 30.0, BLOCKS: 35.0, WHOLE: 85.0, HF: 45.0, LIGER: 25.0}  # build, compile and race
USABLE = 0.92  # of a device's memory, for shapes that are cut to fit
STATES, SMALL_STATES = (18.0, 12.0)  # bytes a parameter: master 4, copy 2, gradient 4, states 8; of adamw_8bit 2
KEPT = 30.0  # bytes a token, layer and hidden unit that blocks keep for the backward: 25 of a Llama, and room


def steps_1b(check: Check) -> None:
    """Everyone."""
    steps(check, "llama-3.2-1b", (BLOCKS, HF, LIGER, WHOLE))


def steps_half_b(check: Check) -> None:
    """All but the model that is compiled as one."""
    steps(check, "qwen2.5-0.5b", (BLOCKS, HF, LIGER))


def steps_3b(check: Check) -> None:
    """Beside the plain loop; then alone with 8 bytes of state a parameter: master, copy, bytes of moments."""
    steps(check, "llama-3.2-3b", (BLOCKS,), small_states=True)


def steps_8b(check: Check) -> None:
    """The same, with as many layers as fit the device."""
    steps(check, "llama-3.1-8b", (BLOCKS,), small_states=True)


def steps(check: Check, name: str, rivals: tuple[str, ...], small_states: bool = False) -> None:
    """Ours beside each rival in turn, then ours with small states."""
    race = make_race(check, name, STATES)
    check.note("model", race.model.dump())
    check.note("parameters", count(race.model).total)
    check.note("tokens_per_step", race.tokens)
    ours: Entrant | None = None
    for rival in rivals:
        if not check.want(rival, 2.0 if check.quick else WANTED_S[rival] + (WANTED_S[OURS] if ours is None else 0.0)):
            continue
        with check.trying(rival):
            needed = {HF: "transformers", LIGER: "liger_kernel"}.get(rival)
            if needed and importlib.util.find_spec(needed) is None:
                check.note(rival, {"skipped": f"{needed} isn't installed"})
                continue
            if rival == LIGER and check.device.type == "cpu":
                check.note(rival, {"skipped": "Liger's kernels need a GPU"})
                continue
            ours = ours or Entrant(OURS, check, race)
            check.note(rival, pair(check, race, ours, rival))
    if ours is not None:
        ours.free()
    if small_states and check.want("8 bytes of state", 2.0 if check.quick else 40.0):
        with check.trying("8 bytes of state"):
            race = make_race(check, name, SMALL_STATES, "adamw_8bit")
            alone = Entrant(OURS, check, race)
            check.note(
                "8 bytes of state", {"layers": race.model.num_hidden_layers, **compete(check, race, [alone])[OURS]}
            )
            alone.free()


class Entrant:
    """A racer that can be freed and built again, with what is known of it."""

    def __init__(self, name: str, check: Check, race: Race) -> None:
        self.name, self.check, self.race = name, check, race
        self.racer: Racer | None = None
        self.facts: dict[str, Any] = {}
        self.losses: list[float] = []

    def ready(self) -> Racer:
        """The racer, built, compiled and warm."""
        if self.racer is None:
            makers: dict[str, Callable[[], Racer]] = {
                OURS: lambda: Ours(self.race), BLOCKS: lambda: plain(self.race, whole=False),
                WHOLE: lambda: plain(self.race, whole=True), HF: lambda: hugging_face(self.race),
                LIGER: lambda: hugging_face(self.race, liger=True),
            }  # fmt: skip
            self.racer, self.facts, self.losses = introduce(self.check, makers[self.name])
        return self.racer

    def free(self) -> None:
        """Gives its memory back."""
        self.racer = None
        memory(self.check)


def pair(check: Check, race: Race, ours: Entrant, rival: str) -> dict[str, Any]:
    """Both in turns where both fit, else one after the other; what is measured of each, and the ratio."""
    other = Entrant(rival, check, race)
    ours.ready()
    together = fit_together(check, race, ours.facts)
    if together:
        other.ready()
        found = compete(check, race, [ours, other])
    else:
        found = compete(check, race, [ours])
        ours.free()
        found |= compete(check, race, [other])
    other.free()
    first = disagreement({OURS: ours.losses, rival: other.losses})
    walls = {name: entry.pop("walls") for name, entry in found.items()}
    least = min(len(wall) for wall in walls.values())
    ratio = paired_ratio(walls[rival][:least], walls[OURS][:least])
    return {**found, "in_turns": together, "ours_is_faster_by": ratio.dump(), "losses": first}


def fit_together(check: Check, race: Race, facts: dict[str, Any]) -> bool:
    """Whether a second one like ours fits beside it."""
    if check.device.type != "cuda":
        return True
    total = torch.cuda.get_device_properties(check.device).total_memory / 2**30
    return bool(2 * STATES * count(race.model).total / 2**30 + facts["peak_allocated_gib"] * 0.5 < USABLE * total)


def make_race(check: Check, name: str, bytes_each: float, optimizer: str = "adamw") -> Race:
    """The model, with the layers that fit, and random samples on the device."""
    model = TINY if check.quick else cut(load_model_spec(name), check.device, bytes_each)
    length = 64 if check.quick else 8192
    samples = []
    for _ in range(SAMPLES):
        ids = torch.randint(model.vocab_size, (1, length + 1), device=check.device)
        samples.append((ids[:, :-1].contiguous(), ids[:, 1:].contiguous()))
    backend = "aot_eager" if check.quick else "inductor"
    return Race(model, check.device, samples, backend, OptimizerSpec.parse({"name": optimizer, "lr": 1e-4}))


def cut(model: ModelSpec, device: torch.device, bytes_each: float, length: int = 8192) -> ModelSpec:
    """The model with as many of its layers as fit the device, at most all; said by its name."""
    total = torch.cuda.get_device_properties(device).total_memory * USABLE if device.type == "cuda" else 0.0
    for layers in range(model.num_hidden_layers, 0, -2):
        shorter = model.replace(num_hidden_layers=layers)
        kept = KEPT * length * model.hidden_size * layers
        logits = 6.0 * length * model.vocab_size
        if bytes_each * count(shorter).total + kept + logits < total:
            name = (
                model.name
                if layers == model.num_hidden_layers
                else f"{model.name}, {layers} of {model.num_hidden_layers} layers"
            )
            return shorter.replace(name=name)
    raise ValueError(f"not even two layers of {model.name} fit")


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
    return (torch.cuda.memory_allocated(check.device) / 2**30, torch.cuda.memory_reserved(check.device) / 2**30)


def nothing() -> None:
    """Marks no time."""


def disagreement(first: dict[str, list[float]]) -> dict[str, Any]:
    """The largest relative difference of the first losses from ours, and whether it is small enough."""
    ours = first.get("scalewright")
    if ours is None:
        return {}
    found = {
        name: max(abs(a - b) / abs(b) for a, b in zip(losses, ours, strict=True)) for name, losses in first.items()
    }
    return {**found, "agree": all(value <= AGREEMENT for value in found.values())}


def compete(check: Check, race: Race, entrants: list[Entrant]) -> dict[str, dict[str, Any]]:
    """Rounds of short segments, every second one in the opposite order; what was measured of each."""
    steps_each, rounds = (2, 2) if check.quick else (5, 8)
    racers = {entrant.name: entrant.ready() for entrant in entrants}
    times: dict[str, list[float]] = {name: [] for name in racers}
    walls: dict[str, list[float]] = {name: [] for name in racers}
    hosts: dict[str, list[float]] = {name: [] for name in racers}

    def run(name: str, number: int) -> None:
        if number > 1 and check.left < 3.0:
            return
        marks = Marks(check.device)
        synchronize(check.device)
        started = time.perf_counter()
        marks()
        racers[name].steps(steps_each, marks)
        synchronize(check.device)
        walls[name].append((time.perf_counter() - started) / steps_each)
        hosts[name].append((marks.last_launch - started) / steps_each)
        times[name] += marks.seconds()

    in_turns(list(racers), rounds, run)
    peak = bf16_peak(check)
    check.part["peak"] = peak
    found: dict[str, dict[str, Any]] = {}
    for entrant in entrants:
        name = entrant.name
        found[name] = {**entrant.facts, **speeds(check, race, times[name], walls[name], hosts[name], peak["flops"])}
        found[name] |= {"walls": walls[name], **look_inside(check, racers[name])}
        if name == OURS:
            found[name]["predicted"] = predicted(check, race)
    return found


def predicted(check: Check, race: Race) -> dict[str, Any]:
    """The planner's step time and peak for the same shape and batch; on a CPU, of an H100."""
    import scalewright as sw

    place = "local" if check.device.type == "cuda" else "dgx-h100"
    layout = {"devices": 1, "micro_batch": 1, "global_batch": 1, "precision": "bf16"}
    length = race.samples[0][0].shape[1]
    answer = sw.predict(race.model.dump(), place, layout, seq_len=length, optimizer=race.optimizer.name)
    return {
        "step_time_s": answer["step_time_s"],
        "memory_gib": answer["memory_gib"]["peak"],
        "mfu": answer["mfu"],
        "on": place,
    }


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
    check: Check, race: Race, times: list[float], walls: list[float], hosts: list[float], peak: float | None
) -> dict[str, Any]:
    """Step time, tokens/s, MFU, and how long the host was busy launching."""
    step = spread(times)
    tokens_per_s = race.tokens / spread(walls).median
    length = race.samples[0][0].shape[1]
    causal, full = (flops_per_token(race.model, length, causal) for causal in (True, False))
    mfu = tokens_per_s * causal / peak if peak else None
    return {
        "step_s": step.dump(),
        "wall_s_per_step": spread(walls).dump(),
        "host_launch_s_per_step": spread(hosts).dump(),
        "tokens_per_s": tokens_per_s,
        "mfu_causal": mfu,
        "share_of_measured_matmul_rate": tokens_per_s * causal / check.matmul_flops,
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


def look_inside(check: Check, racer: Racer) -> dict[str, Any]:
    """The kernels of one step: which attention ran, and where the time went."""
    kernels = kernels_of(lambda: racer.steps(1, nothing), check.device)
    return {
        "attention_launched": attention_backends(kernels),
        "attention_kernels": attention_kernels(kernels),
        "kernels": shares(kernels),
    }

"""`train --dry-run`: what every rank would hold, send and compute, without the devices; and whether that fits them.

    resolve the run --> groups of like ranks (equal_ranks.py) --> rehearse one of each (rehearse.py)
                    --> per group: FLOPs, memory by kind, collectives
                    --> peak of the fullest rank <= usable <= memory        fits
                                           usable < peak <= memory          unlikely: the driver, channels and
                                                            memory < peak   no        fragments need some

It is the trainer's own program that runs, so that a plan can be held against it. No data are read. A CPU's memory is
shared by all ranks that are on it: there their peaks are summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from scalewright.dry_run.equal_ranks import EqualRanks, equal_ranks
from scalewright.dry_run.rehearse import Played, rehearse
from scalewright.dry_run.replay import RankStep, Traffic
from scalewright.machine.processor import read_processor
from scalewright.model.python import build_python_model
from scalewright.model.torch_private import NEEDS_VALUES
from scalewright.plan.chips import chip_of
from scalewright.plan.explain import smallest_fix
from scalewright.plan.frameworks import OURS, find_framework
from scalewright.plan.predict import price, together
from scalewright.plan.records import Fix
from scalewright.spec.common.formatting import gib
from scalewright.spec.errors import UserError
from scalewright.spec.grid import Grid, make_grid
from scalewright.spec.groups import GroupCost, cost, plan_groups, used_axes
from scalewright.spec.hardware.cluster import LOCAL, load_cluster
from scalewright.spec.memory import offloads_parameters
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import Placement, place, place_plain
from scalewright.spec.question import Question
from scalewright.spec.run import DataSpec, PythonRef, RunSpec
from scalewright.spec.step_parts import RISK_TERMS
from scalewright.train.network import describe
from scalewright.train.precision import choose_precision
from scalewright.train.resolve import Resolved, device_kind, read_run, resolve

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "etp")
GIB = float(2**30)


@dataclass(frozen=True)
class Group:
    """Ranks that do the same, and what each of them does in a step."""

    ranks: tuple[int, ...]
    coords: dict[str, int]  # of the first of them
    params_local: int
    step: RankStep

    def dump(self) -> dict[str, object]:
        """Plain data. Each kind of memory is given at its own highest; `peak` is that of their sum."""
        return {
            "ranks": list(self.ranks),
            "coords": self.coords,
            "flops": self.step.flops,
            "params_local": self.params_local,
            "memory_bytes": {**self.step.most, "peak": self.step.peak},
            "memory_at_peak_bytes": self.step.at_peak,
            "collectives": _collectives(self.step.traffic),
            **({"outer_collectives": _collectives(self.step.outer)} if self.step.outer else {}),
        }


@dataclass(frozen=True)
class DryRun:
    """A whole world's step."""

    run: RunSpec  # resolved
    groups: tuple[Group, ...]
    notes: tuple[str, ...]  # what was taken for granted
    verdict: MemoryVerdict  # whether it fits the devices of the run's cluster
    process_groups: GroupCost  # what joining its ranks takes

    def dump(self) -> dict[str, object]:
        """Plain data, as `--json` prints it."""
        return {
            "layout": self.run.layout.dump(),
            "world": self.run.layout.devices,
            **({"diloco": self.run.diloco.dump()} if self.run.diloco is not None else {}),
            "groups": [group.dump() for group in self.groups],
            "notes": list(self.notes),
            "verdict": self.verdict.dump(),
            "process_groups": dict(vars(self.process_groups)),
        }


def _collectives(traffic: Traffic) -> list[dict[str, object]]:
    return [
        {"axis": axis, "kind": kind, "group_size": size, "count": count, "bytes": sent}
        for (axis, kind, size), (count, sent) in sorted(traffic.items())
        if count
    ]


def dry_run(run: str | Path | dict[str, object] | RunSpec, overrides: Sequence[str] = ()) -> DryRun:
    """One step of every rank of a run, in this process, without its devices or data; raises UserError."""
    spec = read_run(run, overrides)
    if spec.engine != "scalewright":
        problem = f"a dry run rehearses this tool's own engine, and the run has engine: {spec.engine}"
        raise UserError(problem, "engine", f"plan it with --framework {spec.engine}, or use engine=scalewright")
    resolved = resolve(spec, read_data=False)
    spec, notes = _plan(resolved)
    model = spec.model if isinstance(spec.model, ModelSpec) else None
    grid = make_grid(spec.layout, model.kv_heads if model else None, islands=spec.diloco is not None)
    played: dict[Any, Played] = {}  # by program
    groups = []
    for like in equal_ranks(_placements(spec), grid, spec.layout, model):
        if like.program not in played:
            played[like.program] = _rehearse(spec, grid, like, resolved.seq_len)
        step, coords = played[like.program](like.pp), grid.coords(like.ranks[0])
        groups.append(Group(like.ranks, {axis: coords[axis] for axis in AXES}, like.params_local, step))
    verdict = judge(spec, resolved.seq_len, [(len(group.ranks), group.step.peak) for group in groups])
    # the groups that `train` makes on the run's devices (`train/build.py`)
    gpu, axes = _on_gpus(spec), used_axes(spec.layout, model, islands=spec.diloco is not None)
    joined = plan_groups(grid, axes, gpu=gpu, host_sums=offloads_parameters(spec.layout))
    return DryRun(spec, tuple(groups), tuple(notes), verdict, cost(grid, joined, gpu=gpu))


def _rehearse(run: RunSpec, grid: Grid, like: EqualRanks, seq_len: int) -> Played:
    try:
        return rehearse(run, grid, like.ranks[0], seq_len, bf16=run.layout.precision == "bf16", on_gpu=_on_gpus(run))
    except NEEDS_VALUES as error:
        what = f"a part of your own looks at numbers ({error.func}), and a dry run has none"
        how = "use operators whose shapes and course don't depend on values, or the built-in part"
        raise UserError(what, "loss or optimizer", how) from error


def _plan(resolved: Resolved) -> tuple[RunSpec, list[str]]:
    """The run as it is rehearsed, and notes on what was assumed for it."""
    run, notes = resolved.run, []
    precision: str = run.layout.precision
    if precision == "auto":
        precision = _precision(run)
        notes.append(f"precision auto was taken for {precision}")
    if run.train.compile is True or (run.train.compile == "auto" and _on_gpus(run)):
        notes.append("compile was left out: memory is that of the uncompiled blocks")
    run = run.replace(train={**run.train.dump(), "compile": False})
    data = run.data
    if isinstance(data, DataSpec):
        if missing := data.missing():
            notes.append(f"there are no data at {', '.join(missing)} yet; none were needed")
        if data.masked:
            notes.append("every row was taken to hold several documents, with an attention mask")
    if isinstance(run.model, PythonRef):
        notes.append("your own model was run with real numbers: its memory was really taken")
    return run.replace(layout={**run.layout.dump(), "precision": precision}), notes


def _precision(run: RunSpec) -> str:
    """What `auto` will be on the run's devices: a named cluster's, this machine's, or GPUs elsewhere."""
    if run.cluster != "local":
        return load_cluster(run.cluster).device.half
    if run.device == "cuda" and not torch.cuda.is_available():
        return "bf16"
    if run.device == "mps":
        return "fp32"
    return choose_precision("auto", torch.device(device_kind(run)[0]))


def _on_gpus(run: RunSpec) -> bool:
    """Whether the run's devices are GPUs: a named cluster's, those it asks for, or this machine's."""
    if run.device != "auto":
        return run.device == "cuda"
    if run.cluster != "local":
        return load_cluster(run.cluster).device.kind == "gpu"
    return device_kind(run)[0] == "cuda"


def _placements(run: RunSpec) -> tuple[Placement, ...]:
    if isinstance(run.model, ModelSpec):
        return place(run.model, run.layout)
    if not isinstance(run.model, PythonRef):
        raise ValueError("resolve the run first: its model is still a name")
    return place_plain(describe(build_python_model(run.model.python, run.model.arguments, run.seed)), run.layout)


@dataclass(frozen=True)
class MemoryVerdict:
    """How a dry run's peak compares with a cluster's devices, in GiB."""

    cluster: str
    device: str
    fits: bool
    risk: str  # fits, unlikely or no; unknown where there is no device to compare with
    peak_gib: float
    usable_gib: float  # what a run can allocate of the device
    memory_gib: float
    over_gib: float  # beyond what is usable; below 0: left
    smallest_fix: Fix | None
    words: str

    def dump(self) -> dict[str, object]:
        """Plain data."""
        return asdict(self)


def judge(run: RunSpec, seq_len: int, peaks: Sequence[tuple[int, int]]) -> MemoryVerdict:
    """The verdict on (ranks, peak bytes of each) of a resolved run."""
    usable, peak = find_framework(OURS).usable, max(size for _, size in peaks) / GIB
    if run.cluster == LOCAL:
        return _local(run, peak, sum(ranks * size for ranks, size in peaks) / GIB, usable)
    cluster = load_cluster(run.cluster)
    chip = chip_of(cluster)
    memory = chip.capacity / GIB
    fix = _fix(run, seq_len, peak) if peak > memory * usable else None
    return _verdict(run, cluster.name, chip.name, peak, memory, usable, fix)


def _local(run: RunSpec, peak: float, total: float, usable: float) -> MemoryVerdict:
    """The verdict on each GPU here, or on the memory that CPU processes share; of no device `fits` is false."""
    try:
        kind, _ = device_kind(run)
    except UserError:
        words = f"no {run.device} device is here to compare with: name the cluster that the run is for"
        return MemoryVerdict(LOCAL, str(run.device), False, "unknown", peak, 0.0, 0.0, 0.0, None, words)
    if kind == "cuda":
        memory = min(torch.cuda.get_device_properties(n).total_memory for n in range(torch.cuda.device_count()))
        return _verdict(run, LOCAL, "a GPU here", peak, memory / GIB, usable, None)
    memory = read_processor().usable_memory_bytes
    return _verdict(run, LOCAL, "this machine's memory", total, memory / GIB, usable, None)


def _verdict(
    run: RunSpec, cluster: str, device: str, peak: float, memory: float, share: float, fix: Fix | None
) -> MemoryVerdict:
    usable = memory * share
    risk = "fits" if peak <= usable else "unlikely" if peak <= memory else "no"
    ranks = "its ranks together need" if cluster == LOCAL and run.layout.devices > 1 else "its fullest rank needs"
    words = f"{RISK_TERMS[risk]} {cluster}: {ranks} {gib(peak)} of the {gib(usable)} that {device} gives a run"
    if peak > usable:
        words += f" ({memory:.1f} in all), {peak - usable:.1f} too many"
        if fix is not None:
            enough = "with" if fix["fits"] else "not even enough alone:"
            words += f"; {enough} {fix['change']} it should need {fix['peak_gib']:.1f}"
        if cluster == LOCAL:
            words += "; set cluster: NAME to compare with another machine's devices"
    return MemoryVerdict(cluster, device, peak <= usable, risk, peak, usable, memory, peak - usable, fix, words)


def _fix(run: RunSpec, seq_len: int, peak_gib: float) -> Fix | None:
    """The smallest change that makes it fit, by the planner's memory scaled to what was counted."""
    if not isinstance(run.model, ModelSpec):
        return None
    try:
        prediction = price(Question(run, load_cluster(run.cluster), length=seq_len))
    except UserError:  # a cluster of fewer devices, or without this precision
        return None
    return together([smallest_fix(prediction, peak_gib)])[0]

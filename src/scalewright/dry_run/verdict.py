"""Whether what a dry run counted fits the run's cluster; if not, by how much, and what would help.

    peak of the fullest rank <= usable <= memory        fits
                       usable < peak <= memory          unlikely: the driver, channels and fragments need some
                                        memory < peak   no

A CPU's memory is shared by all ranks that are on it: there their peaks are summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from scalewright.machine.processor import read_processor
from scalewright.plan.chips import chip_of
from scalewright.plan.explain import smallest_fix
from scalewright.plan.frameworks import OURS, find_framework
from scalewright.plan.predict import price
from scalewright.plan.terms import RISK_TERMS
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import LOCAL, load_cluster
from scalewright.spec.model import ModelSpec
from scalewright.spec.question import Question
from scalewright.spec.run import RunSpec
from scalewright.train.resolve import device_kind

GIB = float(2**30)


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
    smallest_fix: dict[str, object] | None
    words: str

    def dump(self) -> dict[str, object]:
        """Plain data."""
        return asdict(self)


def judge(run: RunSpec, seq_len: int, peaks: Sequence[tuple[int, int]]) -> MemoryVerdict:
    """The verdict on (ranks, peak bytes of each) of a resolved run."""
    usable = find_framework(OURS).usable
    if run.cluster == LOCAL:
        return _local(run, peaks, usable)
    cluster = load_cluster(run.cluster)
    chip = chip_of(cluster)
    peak, memory = max(size for _, size in peaks) / GIB, chip.capacity / GIB
    fix = _fix(run, seq_len, peak) if peak > memory * usable else None
    return _verdict(run, cluster.name, chip.name, peak, memory, usable, fix)


def _local(run: RunSpec, peaks: Sequence[tuple[int, int]], usable: float) -> MemoryVerdict:
    """The verdict on this machine: on each GPU, or on the memory that CPU processes share.

    Of a device that isn't here the size and the risk are unknown; `fits` is false then.
    """
    try:
        kind, _ = device_kind(run)
    except UserError:
        words = f"no {run.device} device is here to compare with: name the cluster that the run is for"
        return MemoryVerdict(
            LOCAL, str(run.device), False, "unknown", max(size for _, size in peaks) / GIB, 0.0, 0.0, 0.0, None, words
        )
    if kind == "cuda":
        import torch

        memory = min(torch.cuda.get_device_properties(n).total_memory for n in range(torch.cuda.device_count()))
        return _verdict(run, LOCAL, "a GPU here", max(size for _, size in peaks) / GIB, memory / GIB, usable, None)
    peak = sum(ranks * size for ranks, size in peaks) / GIB
    memory = read_processor().usable_memory_bytes
    return _verdict(run, LOCAL, "this machine's memory", peak, memory / GIB, usable, None)


def _verdict(
    run: RunSpec, cluster: str, device: str, peak: float, memory: float, share: float, fix: dict[str, object] | None
) -> MemoryVerdict:
    usable = memory * share
    risk = "fits" if peak <= usable else "unlikely" if peak <= memory else "no"
    ranks = "its ranks together need" if cluster == LOCAL and run.layout.devices > 1 else "its fullest rank needs"
    words = f"{RISK_TERMS[risk]} {cluster}: {ranks} {peak:.1f} GiB"
    words += f" of the {usable:.1f} that {device} gives a run"
    if peak > usable:
        words += f" ({memory:.1f} in all), {peak - usable:.1f} too many"
        if fix is not None:
            enough = "with" if fix["fits"] else "not even enough alone:"
            words += f"; {enough} {fix['change']} it should need {fix['peak_gib']:.1f}"
        if cluster == LOCAL:
            words += "; set cluster: NAME to compare with another machine's devices"
    return MemoryVerdict(cluster, device, peak <= usable, risk, peak, usable, memory, peak - usable, fix, words)


def _fix(run: RunSpec, seq_len: int, peak_gib: float) -> dict[str, object] | None:
    """The smallest change that makes it fit, by the planner's memory scaled to what was counted."""
    if not isinstance(run.model, ModelSpec):
        return None
    try:
        prediction = price(Question(run, load_cluster(run.cluster), length=seq_len))
    except UserError:  # a cluster of fewer devices, or without this precision
        return None
    return smallest_fix(prediction, peak_gib=peak_gib)

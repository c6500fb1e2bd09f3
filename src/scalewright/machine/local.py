"""`local`: this machine as a cluster of one node: published figures of its devices, or else measured ones.

    CUDA or ROCm GPU   its name is in the table       published peaks, memory as the driver reports it
                       its name isn't                 measured matmul rates, peak_source: measured
    Apple GPU          nobody publishes               measured
    CPU                nobody publishes               timed (timings.py); n processes are n devices

`find_cluster` is what commands call: it takes `local` and all that `spec.cluster.load_cluster` takes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scalewright.machine.probe import copy_rate, load_torch, matmul_rate, synchronize, time_runs
from scalewright.machine.processor import read_processor
from scalewright.machine.timings import cpu_timings
from scalewright.spec.common.formatting import counted
from scalewright.spec.errors import UserError
from scalewright.spec.hardware import cluster as named
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.hardware.devices import DeviceSpec, match_gpu
from scalewright.spec.hardware.timings import Timings
from scalewright.spec.hardware.topology import LATENCY, Measured

GPU_PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
CPU_VENDORS = ("Intel", "AMD", "Apple", "ARM", "Ampere", "AWS")
PROBE_S = 0.3  # bounds each measurement


def find_cluster(source: str | Path | dict[str, object] | ClusterSpec, devices: int = 1) -> ClusterSpec:
    """The cluster of a name, a path or a dict, `local` included; raises UserError.

    `devices` is how many processes share this machine's CPU when `local` has no GPU. Its kernels and messages
    are timed then, in seconds, and remembered: a CPU's prices are made of nothing else.
    """
    return named.load_cluster(source, local=lambda: _local(devices))


def _local(devices: int) -> ClusterSpec:
    torch = load_torch()
    if torch is not None and torch.cuda.is_available():
        return _gpu_cluster(torch)
    if torch is not None and torch.backends.mps.is_available():
        return _one_node(_apple_device(torch), 1)
    return timed_cluster(devices)


def timed_cluster(devices: int, timings: Timings | None = None) -> ClusterSpec:
    """This machine's CPU, shared by so many processes, with rates read off `timings` (null: probed, or remembered)."""
    timings = timings or cpu_timings(devices)
    device = _cpu_device(devices, _timed_rates(timings))
    how, link = f"{timings.how} {timings.when}".strip() or "timed", _best_rate(timings, "send")
    levels = [_level("device", "memory", 1, device.memory_bytes_per_s, how)]
    if devices > 1:
        rate = min(link or device.memory_bytes_per_s, device.memory_bytes_per_s)
        levels.append(_level("node", "loopback", devices, rate, f"{how}: a message between two processes"))
    measured = Measured(timings=timings, when=timings.when or None, how=timings.how)
    keys = {"name": "local", "device": device, "devices_per_node": devices, "nodes": 1, "levels": levels}
    return ClusterSpec.parse({**keys, "measured": measured.dump()})


def _best_rate(timings: Timings, what: str, precision: str | None = None) -> float | None:
    """The most units a second of a forward, over the sizes that were timed; None when it wasn't."""
    curves = [c for c in timings.curves if (c.what, c.phase, c.precision) == (what, "forward", precision)]
    rates = (size / s for curve in curves for size, s in zip(curve.sizes, curve.seconds, strict=True))
    return max(rates, default=None)


def _timed_rates(timings: Timings) -> dict[str, object]:
    """A device's rates as its curves have them: the fastest product, and sums of numbers beyond any cache."""
    peaks = {name: _best_rate(timings, "linear", name) for name in timings.precisions}
    if (add := next((curve for curve in timings.curves if curve.what == "add"), None)) is None:
        raise UserError("these timings lack sums of numbers (add)", "local", "probe this machine again")
    where = f"each of {counted(timings.processes, 'processes')} of {counted(timings.threads, 'threads')} at once"
    sources = [f"measured: fastest product and largest sum, {where}; {timings.how} {timings.when}".strip()]
    rate = 12.0 * add.sizes[-1] / add.seconds[-1]  # a sum in place reads two numbers of 4 bytes and writes one
    peaks = {name: peak for name, peak in peaks.items() if peak}
    measured = {"peaks": peaks, "peak_source": "measured", "memory_bytes_per_s": rate}
    return {"kind": "cpu", **measured, "sources": sources}


load_cluster = find_cluster  # its name in the Python API


def _one_node(device: DeviceSpec, count: int) -> ClusterSpec:
    alone = device.replace(network_bytes_per_s=None)
    return ClusterSpec.parse({"name": "local", "device": alone, "devices_per_node": count, "nodes": 1})


def _level(name: str, kind: str, size: int, rate: float, source: str) -> dict[str, object]:
    sizes = {"size": size, "bytes_per_s": rate, "latency_s": LATENCY[kind][0]}
    return {"name": name, "kind": kind, **sizes, "source": source}


def _measured_device(kind: str, where: str, precisions: tuple[str, ...]) -> dict[str, object]:
    """The peaks, bandwidth and sources of a device that nobody publishes."""
    rates = {name: rate for name in precisions if (rate := matmul_rate(name, where, PROBE_S)) is not None}
    copy = copy_rate(where, PROBE_S / 2)
    peaks = {precision: rate.per_s for precision, rate in rates.items()}
    sources = [f"measured: {rate.what}, {rate.how}" for rate in (*rates.values(), copy)]
    measured = {"peaks": peaks, "peak_source": "measured", "memory_bytes_per_s": copy.per_s}
    return {"kind": kind, **measured, "sources": sources}


def _cpu_device(devices: int, rates: dict[str, object]) -> DeviceSpec:
    """This CPU, or the share of it that each of `devices` processes has, with rates as measured."""
    processor = read_processor()
    model, usable = processor.model, processor.usable_cores
    flags = ", ".join(processor.flags) or "none that matter here"
    keys = {
        "id": "cpu",
        "name": model,
        "vendor": next((name for name in CPU_VENDORS if name.lower() in model.lower()), "unknown"),
        "memory_bytes": processor.usable_memory_bytes / devices,
        "multiprocessors": max(1, usable // devices),
        "notes": [f"{usable} of {counted(processor.logical_cores, 'cores')} usable", f"instruction sets: {flags}"],
    }
    return DeviceSpec.parse(keys | rates, "local")


def _apple_device(torch: Any) -> DeviceSpec:
    """Apple's GPU, which shares the machine's memory."""
    processor = read_processor()
    keys = {
        "id": "apple-gpu",
        "name": f"{processor.model} GPU",
        "vendor": "Apple",
        "family": "apple",
        "memory_bytes": processor.memory_bytes,
        "memory_bytes_reported": int(torch.mps.recommended_max_memory()) or None,
    }
    return DeviceSpec.parse(keys | _measured_device("mps", "mps", ("fp32", "bf16", "fp16")), "local")


def _gpu_cluster(torch: Any) -> ClusterSpec:
    """The GPUs that torch sees; they must be of one kind."""
    count = torch.cuda.device_count()
    names = {torch.cuda.get_device_name(index) for index in range(count)}
    if len(names) > 1:
        how = "show one kind to the run, such as CUDA_VISIBLE_DEVICES=0"
        raise UserError("this machine's GPUs are of several kinds: " + ", ".join(sorted(names)), "local", how)
    facts = torch.cuda.get_device_properties(0)
    if (known := match_gpu(facts.name, facts.total_memory)) is not None:
        return _one_node(known.replace(memory_bytes_reported=facts.total_memory), count)
    return _one_node(_unknown_gpu(torch, facts), count)


def _unknown_gpu(torch: Any, facts: Any) -> DeviceSpec:
    """A GPU that the table doesn't hold, or a slice of one: everything measured."""
    letters = "".join(letter if letter.isalnum() else "-" for letter in facts.name.lower())
    keys = {
        "id": "-".join(part for part in letters.split("-") if part) or "gpu",
        "name": facts.name,
        "vendor": "AMD" if torch.version.hip else "NVIDIA",
        "memory_bytes": facts.total_memory,
        "memory_bytes_reported": facts.total_memory,
        "host_bytes_per_s": _host_rate(torch),
        "multiprocessors": facts.multi_processor_count,
    }
    return DeviceSpec.parse(keys | _measured_device("gpu", "cuda:0", GPU_PRECISIONS), "local")


def _host_rate(torch: Any, size: int = 1 << 27) -> float:
    """Bytes/s from pinned host memory to the GPU, one way."""
    source = torch.ones(size // 4).pin_memory()
    target = torch.empty(size // 4, device="cuda:0")

    def run() -> None:
        target.copy_(source, non_blocking=True)
        synchronize(torch, "cuda:0")

    return size / min(time_runs(run, 0.1))

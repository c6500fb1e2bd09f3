"""`local`: this machine as a cluster of one node: published figures of its devices, or else measured ones.

    CUDA or ROCm GPU   its name is in the table       published peaks, memory as the driver reports it
                       its name isn't                 measured matmul rates, peak_source: measured
    Apple GPU          nobody publishes               measured
    CPU                nobody publishes               measured; n processes are n devices, each a share of it

`find_cluster` is what commands call: it takes `local` and all that `spec.cluster.load_cluster` takes.
"""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Any

from scalewright.machine.names import match_gpu
from scalewright.machine.probe import copy_rate, load_torch, matmul_rate, synchronize, time_runs
from scalewright.machine.processor import Processor, read_processor
from scalewright.machine.timings import cpu_timings
from scalewright.spec.errors import UserError
from scalewright.spec.hardware import cluster as named
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.hardware.devices import DeviceSpec
from scalewright.spec.hardware.timings import Timings
from scalewright.spec.hardware.topology import LATENCY, Measured

GPU_PRECISIONS = ("fp32", "tf32", "bf16", "fp16")


def find_cluster(source: str | Path | dict[str, Any] | ClusterSpec, devices: int = 1) -> ClusterSpec:
    """The cluster of a name, a path or a dict, `local` included; raises UserError.

    `devices` is how many processes share this machine's CPU when `local` has no GPU. Its kernels and messages
    are timed then, in seconds, and remembered: a CPU's prices are made of nothing else.
    """
    return named.load_cluster(source, local=lambda: _local(devices))


def _local(devices: int) -> ClusterSpec:
    torch = load_torch()
    gpu = torch is not None and (torch.cuda.is_available() or torch.backends.mps.is_available())
    return local_cluster(devices) if gpu else timed_cluster(devices)


def timed_cluster(devices: int, timings: Timings | None = None) -> ClusterSpec:
    """This machine's CPU, shared by so many processes, with what its kernels and messages take.

    `timings`: as given, or probed (or remembered). Peak, memory and link rates are read off them.
    """
    timings = timings or cpu_timings(devices)
    device = _cpu_device(devices, _timed_rates(timings))
    how, link = f"{timings.how} {timings.when}".strip(), _best_rate(timings, "send")
    levels = [_level("device", "memory", 1, device.memory_bytes_per_s, how)]
    if devices > 1:
        rate = min(link or device.memory_bytes_per_s, device.memory_bytes_per_s)
        levels.append(_level("node", "loopback", devices, rate, f"{how}: a message between two processes"))
    measured = Measured(timings=timings, when=timings.when, how=timings.how)
    keys = {"name": "local", "device": device, "devices_per_node": devices, "nodes": 1, "levels": levels}
    return ClusterSpec.parse({**keys, "measured": measured.dump()})


def _best_rate(timings: Timings, what: str, precision: str | None = None) -> float | None:
    """The most units a second of a forward, over the sizes that were timed; None when it wasn't."""
    curves = [c for c in timings.curves if (c.what, c.phase, c.precision) == (what, "forward", precision)]
    rates = (size / s for curve in curves for size, s in zip(curve.sizes, curve.seconds, strict=True))
    return max(rates, default=None)


def _timed_rates(timings: Timings) -> dict[str, Any]:
    """A device's rates as its curves have them: the fastest product, and sums of numbers beyond any cache."""
    peaks = {name: _best_rate(timings, "linear", name) for name in timings.precisions}
    add = next((curve for curve in timings.curves if curve.what == "add"), None)
    # a sum in place reads two numbers of 4 bytes and writes one
    memory = 12.0 * add.sizes[-1] / add.seconds[-1] if add else None
    if memory is None:
        raise UserError("these timings lack sums of numbers (add)", "local", "probe this machine again")
    where = f"each of {timings.processes} processes of {timings.threads} threads at once"
    return {
        "kind": "cpu",
        "peaks": {name: rate for name, rate in peaks.items() if rate},
        "peak_source": "measured",
        "memory_bytes_per_s": memory,
        "sources": [
            f"measured: fastest product and largest sum, {where}; {timings.how} {timings.when}".strip()
        ],
    }


load_cluster = find_cluster  # its name in the Python API


def local_cluster(devices: int = 1, device: str = "auto", seconds: float = 0.3) -> ClusterSpec:
    """This machine. `device`: auto, cpu, cuda or mps; `seconds` bounds each measurement.

    On a CPU, `devices` processes are as many devices: each has an equal share of cores, rate and memory.
    """
    torch = load_torch()
    cuda = torch is not None and torch.cuda.is_available()
    mps = torch is not None and torch.backends.mps.is_available()
    if (device == "cuda" and not cuda) or (device == "mps" and not mps):
        raise UserError(
            f"this machine has no {device} device that torch can use", "device", "use device: auto, or cpu"
        )
    if cuda and device in ("auto", "cuda"):
        return _gpu_cluster(torch, seconds)
    if mps and device in ("auto", "mps"):
        return _one_node(_apple_device(torch, seconds), 1)
    cores = read_processor().usable_cores / devices
    rates = _measured_device("cpu", seconds, "cpu", ("fp32", "bf16"), cores)
    return _one_node(_cpu_device(devices, rates), devices)


def _one_node(device: DeviceSpec, count: int) -> ClusterSpec:
    """A node of `count` devices and no network."""
    alone = device.replace(network_bytes_per_s=None)
    if device.kind != "cpu":
        return ClusterSpec.parse({"name": "local", "device": alone, "devices_per_node": count, "nodes": 1})
    levels: list[dict[str, Any]] = [
        _level("device", "memory", 1, alone.memory_bytes_per_s, "measured: a large copy")
    ]
    if count > 1:
        how = "measured: one TCP stream over the loopback interface, as Gloo uses it"
        levels.append(_level("node", "loopback", count, min(loopback_rate(), alone.memory_bytes_per_s), how))
    keys = {"name": "local", "device": alone, "devices_per_node": count, "nodes": 1, "levels": levels}
    return ClusterSpec.parse(keys)


def _level(name: str, kind: str, size: int, rate: float, source: str) -> dict[str, Any]:
    return {
        "name": name,
        "kind": kind,
        "size": size,
        "bytes_per_s": rate,
        "latency_s": LATENCY[kind][0],
        "source": source,
    }


def _measured_device(
    kind: str, seconds: float, where: str, precisions: tuple[str, ...], cores: float | None = None
) -> dict[str, Any]:
    """The peaks, bandwidth and sources of a device that nobody publishes.

    `cores`: a CPU device has that many; what more threads measured is cut to its share.
    """
    rates = {name: rate for name in precisions if (rate := matmul_rate(name, where, seconds)) is not None}
    copy = copy_rate(where, seconds / 2)
    threads = next((rate.threads for rate in rates.values() if rate.threads), None)
    share = min(1.0, cores / threads) if cores and threads else 1.0
    part = f"; {share:.3g} of it for each process" if share < 1 else ""
    return {
        "kind": kind,
        "peaks": {precision: rate.per_s * share for precision, rate in rates.items()},
        "peak_source": "measured",
        "memory_bytes_per_s": copy.per_s * share,
        "sources": [f"measured: {rate.what}, {rate.how}{part}" for rate in (*rates.values(), copy)],
    }


def _cpu_device(devices: int, rates: dict[str, Any]) -> DeviceSpec:
    """This CPU, or the share of it that each of `devices` processes has, with rates as measured."""
    processor = read_processor()
    return DeviceSpec.parse(
        {
            "id": "cpu",
            "name": processor.model,
            "vendor": _cpu_vendor(processor),
            "memory_bytes": processor.usable_memory_bytes / devices,
            "multiprocessors": max(1, processor.usable_cores // devices),
            "notes": [
                f"{processor.usable_cores} of {processor.logical_cores} cores usable",
                "instruction sets: " + (", ".join(processor.flags) or "none that matter here"),
            ],
            **rates,
        },
        "local",
    )


def _cpu_vendor(processor: Processor) -> str:
    known = ("Intel", "AMD", "Apple", "ARM", "Ampere", "AWS")
    return next((vendor for vendor in known if vendor.lower() in processor.model.lower()), "unknown")


def _apple_device(torch: Any, seconds: float) -> DeviceSpec:
    """Apple's GPU, which shares the machine's memory."""
    processor = read_processor()
    return DeviceSpec.parse(
        {
            "id": "apple-gpu",
            "name": f"{processor.model} GPU",
            "vendor": "Apple",
            "family": "apple",
            "memory_bytes": processor.memory_bytes,
            "memory_bytes_reported": int(torch.mps.recommended_max_memory()) or None,
            **_measured_device("mps", seconds, "mps", ("fp32", "bf16", "fp16")),
        },
        "local",
    )


def _gpu_cluster(torch: Any, seconds: float) -> ClusterSpec:
    """The GPUs that torch sees; they must be of one kind."""
    count = torch.cuda.device_count()
    names = {torch.cuda.get_device_name(index) for index in range(count)}
    if len(names) > 1:
        how = "show one kind to the run, such as CUDA_VISIBLE_DEVICES=0"
        raise UserError("this machine's GPUs are of several kinds: " + ", ".join(sorted(names)), "local", how)
    facts = torch.cuda.get_device_properties(0)
    known = match_gpu(facts.name, facts.total_memory)
    if known is not None:
        return _one_node(known.replace(memory_bytes_reported=facts.total_memory), count)
    return _one_node(_unknown_gpu(torch, facts, seconds), count)


def _unknown_gpu(torch: Any, facts: Any, seconds: float) -> DeviceSpec:
    """A GPU that the table doesn't hold, or a slice of one: everything measured."""
    letters = "".join(letter if letter.isalnum() else "-" for letter in facts.name.lower())
    return DeviceSpec.parse(
        {
            "id": "-".join(part for part in letters.split("-") if part) or "gpu",
            "name": facts.name,
            "vendor": "AMD" if torch.version.hip else "NVIDIA",
            "memory_bytes": facts.total_memory,
            "memory_bytes_reported": facts.total_memory,
            "host_bytes_per_s": _host_rate(torch),
            "multiprocessors": facts.multi_processor_count,
            **_measured_device("gpu", seconds, "cuda:0", GPU_PRECISIONS),
        },
        "local",
    )


def _host_rate(torch: Any, size: int = 1 << 27) -> float:
    """Bytes/s from pinned host memory to the GPU, one way."""
    source = torch.ones(size // 4).pin_memory()
    target = torch.empty(size // 4, device="cuda:0")

    def run() -> None:
        target.copy_(source, non_blocking=True)
        synchronize(torch, "cuda:0")

    return size / min(time_runs(run, 0.1))


def loopback_rate(size: int = 1 << 26) -> float:
    """Bytes/s of one TCP stream over 127.0.0.1; raises OSError where no port can be opened."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(2)
        sender = threading.Thread(target=_send, args=(server.getsockname(), size), daemon=True)
        sender.start()
        connection, _ = server.accept()
        buffer, received, start = bytearray(1 << 20), 0, time.perf_counter()
        with connection:
            connection.settimeout(2)
            while received < size and (count := connection.recv_into(buffer)):
                received += count
        elapsed = time.perf_counter() - start
        sender.join(2)
    return received / elapsed


def _send(address: tuple[str, int], size: int) -> None:
    block = bytes(1 << 20)
    with socket.create_connection(address, timeout=2) as connection:
        for _ in range(size // len(block)):
            connection.sendall(block)

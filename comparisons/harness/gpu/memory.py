"""Memory rates: read, write, copy, the optimizer's passes, the link to the host; and the host's launches."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from harness.gpu.budget import Check
from harness.gpu.clock import random_of, rate, synchronize, time_call


def memory(check: Check) -> None:
    """GB/s (10^9 bytes) of each kind of pass."""
    seconds = 0.02 if check.quick else 0.4
    for part in (passes, optimizer, link, host):
        if check.want(f"{part.__name__} done"):
            with check.trying(f"{part.__name__} done"):
                part(check, seconds)
                check.note(f"{part.__name__} done", True)


def host(check: Check, seconds: float) -> None:
    """Launches a second of an operator that does next to nothing, and copies within the host's memory."""
    small = torch.zeros(8, device=check.device)
    count = 200

    def launches() -> None:
        for _ in range(count):
            small.add_(1.0)

    launches()
    synchronize(check.device)
    started, done = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        launches()
        done += count
    check.note("launches_per_s", {"per_s": done / (time.perf_counter() - started)})
    synchronize(check.device)
    source = torch.ones(1 << (20 if check.quick else 28), dtype=torch.uint8)
    target = torch.empty_like(source)
    times = time_call([lambda: target.copy_(source)], torch.device("cpu"), seconds, least=5)
    check.note("host_copy_gb", rate(2.0 * source.numel(), times, 1e9))


def passes(check: Check, seconds: float) -> None:
    """Over 4 GiB of fp32."""
    elements = 1 << 16 if check.quick else 1 << 30
    source = random_of(check.device, elements, dtype=torch.float32)
    target = torch.empty_like(source)
    runs: dict[str, tuple[float, Callable[[], object]]] = {
        "read_gb": (4.0, source.sum),
        "write_gb": (4.0, lambda: target.fill_(1.5)),
        "copy_gb": (8.0, lambda: target.copy_(source)),
    }
    for name, (bytes_each, run) in runs.items():
        check.note(name, rate(bytes_each * elements, time_call([run], check.device, seconds), 1e9))


def optimizer(check: Check, seconds: float) -> None:
    """Fused AdamW in fp32 (reads w, g, m, v, writes w, m, v: 28 bytes a parameter), norm, and bf16 copies."""
    parameters = 1 << 16 if check.quick else 1 << 28
    parts = [torch.nn.Parameter(random_of(check.device, parameters // 16, dtype=torch.float32)) for _ in range(16)]
    for part in parts:
        part.grad = torch.randn_like(part)
    adamw = torch.optim.AdamW(parts, lr=1e-4, fused=True)
    check.note("fused_adamw_gb", rate(28.0 * parameters, time_call([adamw.step], check.device, seconds), 1e9))
    grads = [part.grad for part in parts if part.grad is not None]
    norm = time_call([lambda: torch._foreach_norm(grads)], check.device, seconds)
    check.note("foreach_norm_gb", rate(4.0 * parameters, norm, 1e9))
    copies = [torch.empty_like(part, dtype=torch.bfloat16) for part in parts]
    masters = [part.detach() for part in parts]
    publish = time_call([lambda: torch._foreach_copy_(copies, masters)], check.device, seconds)
    check.note("fp32_to_bf16_copies_gb", rate(6.0 * parameters, publish, 1e9))


def link(check: Check, seconds: float) -> None:
    """Pinned memory to the device, back, and both at once."""
    if check.device.type != "cuda":
        check.note("link", {"skipped": "a CPU has no link to itself"})
        return
    size = 1 << 28
    host = [torch.empty(size, dtype=torch.uint8, pin_memory=True).random_() for _ in range(2)]
    there = [torch.empty(size, dtype=torch.uint8, device=check.device) for _ in range(2)]
    to, back = torch.cuda.Stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def up() -> None:
        there[0].copy_(host[0], non_blocking=True)

    def down() -> None:
        host[1].copy_(there[1], non_blocking=True)

    def both() -> None:
        here = torch.cuda.current_stream()
        for stream, run in ((to, up), (back, down)):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                run()
            here.wait_stream(stream)

    for name, run, amount in (("to_device_gb", up, 1), ("to_host_gb", down, 1), ("both_ways_gb", both, 2)):
        times = time_call([run], check.device, seconds, least=5)
        check.note(name, rate(float(amount * size), times, 1e9))
    synchronize(check.device)

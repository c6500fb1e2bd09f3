"""One of the processes of a probe: times kernels beside its neighbours, then messages between them.

    python -m scalewright.machine.ranks RANK PROCESSES THREADS STORE SECONDS PRECISION...

All processes time the same kernels at the same time, since they share caches and memory as training ranks do.
Rank 0 prints the curves as one line of JSON. Messages go over Gloo, on this machine's loopback interface.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from scalewright.machine.kernels import Curve, Point, curve, numpy_timings, torch_timings
from scalewright.machine.probe import load_torch
from scalewright.spec.hardware.topology import LATENCY

SIZES = (1 << 8, 1 << 14, 1 << 18, 1 << 20, 1 << 22)  # numbers of 4 bytes
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "send")


def main(arguments: list[str]) -> None:
    rank, world, threads = (int(word) for word in arguments[:3])
    store, seconds, precisions = arguments[3], float(arguments[4]), arguments[5:]
    torch = load_torch()
    if torch is None:
        curves = [*numpy_timings(seconds), *(_streams() if world > 1 and rank == 0 else ())]
    else:
        torch.set_num_threads(threads)
        warnings.simplefilter("ignore")  # torch renames collectives from one release to the next
        curves = list(_curves(torch, rank, world, store, seconds, precisions))
    if rank == 0:
        print(json.dumps(curves), flush=True)


def _curves(torch: Any, rank: int, world: int, store: str, seconds: float, precisions: list[str]) -> Iterator[Curve]:
    if world > 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
        method = f"file://{store}" if sys.platform != "win32" else f"file:///{store}"
        torch.distributed.init_process_group("gloo", init_method=method, rank=rank, world_size=world)
        torch.distributed.barrier()
    meet = torch.distributed.barrier if world > 1 else lambda: None
    for precision in precisions:
        try:
            yield from torch_timings(torch, precision, seconds, meet)
        except (RuntimeError, NotImplementedError):  # no such kernels here
            if precision == "fp32":
                raise
    if world > 1:
        yield from _messages(torch, rank, world, seconds)
        torch.distributed.destroy_process_group()


def _streams() -> Iterator[Curve]:
    """Messages where there is no Gloo to time: a start and a TCP stream, whose bytes a collective halves."""
    rate, start = loopback_rate(1 << 24), LATENCY["loopback"][0]
    for kind in KINDS:
        share = 0.5 if kind in ("all_gather", "reduce_scatter") else 1.0
        yield curve(kind, [(4.0 * size, 4 * start + share * 4.0 * size / rate) for size in SIZES])


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


def _messages(torch: Any, rank: int, world: int, seconds: float) -> Iterator[Curve]:
    """Curves over the bytes of the whole tensor, copies in and out of flat buffers included."""
    curves: dict[str, list[Point]] = {kind: [] for kind in KINDS}
    for size in SIZES:
        for kind, run in _exchanges(torch, rank, world, size).items():
            curves[kind].append((4.0 * size, _together(torch, run, seconds)))
    for kind, points in curves.items():
        yield curve(kind, points)


def _exchanges(torch: Any, rank: int, world: int, size: int) -> dict[str, Callable[[], Any]]:
    distributed = torch.distributed
    whole, part = torch.ones(size), torch.ones(size // world)
    flat = torch.empty(size // world * world)
    gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
    scatter = getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor
    there = 1 - rank  # of ranks 0 and 1

    def all_gather() -> None:
        gather(flat, part.clone())
        whole[: flat.numel()].copy_(flat)

    def reduce_scatter() -> None:
        flat.copy_(whole[: flat.numel()])
        scatter(part, flat)

    def send() -> None:  # there and back: two messages of half the size
        half = whole[: max(1, size // 2)]
        if rank == 0:
            distributed.send(half, there)
            distributed.recv(half, there)
        elif rank == 1:
            distributed.recv(half, there)
            distributed.send(half, there)

    runs = {"all_gather": all_gather, "reduce_scatter": reduce_scatter, "send": send}
    return {"all_reduce": lambda: distributed.all_reduce(whole), **runs}


def _together(torch: Any, run: Callable[[], Any], seconds: float) -> float:
    """Seconds of one call, among work as in a step: whoever computes has to be woken for a message.

    Every process makes as many calls: rank 0 decides how many.
    """
    work = torch.ones(192, 192)

    def once() -> float:
        torch.mm(work, work)
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    once()
    torch.distributed.barrier()
    many = torch.tensor([seconds / max(once(), 1e-6)])
    torch.distributed.broadcast(many, 0)
    times = sorted(once() for _ in range(min(40, max(6, int(many.item())))))
    return times[len(times) // 2]


if __name__ == "__main__":
    main(sys.argv[1:])

"""A network of several hosts on one machine: namespaces, and a switch between them with a rate and a delay.

    namespace host-1   eth0 (TUN) ─┐             ┌─ eth0   namespace host-2
    namespace host-3   eth0 ───────┤   switch    ├─ eth0   namespace host-4
                                   └─────────────┘
    leaves = max(now, uplink free) + bytes / rate        arrives = leaves + delay

A host's uplink sends one packet after the other; each arrives a delay later. The switch is a process that
reads packets from one TUN device and writes them to another: no traffic control of the kernel is needed, and
segmentation offload makes packets of up to 64 KiB, so that Python keeps up with about a gigabit.

    python comparisons/harness/fabric.py RATE DELAY NAME...    the switch itself: bytes/s, seconds, namespaces
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import platform
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

NETWORK, PORT = "10.88.0", 29531
ROOT = Path(__file__).resolve().parents[2]
HEADER = 10  # bytes of virtio's header before each packet
LARGEST = 65_536 + HEADER
BEHIND = 0.5  # seconds of queue on an uplink beyond which packets are dropped, as a switch would
CLONE_NEWNET = 0x40000000
# linux/if_tun.h: ioctls; the device's flags TUN | NO_PI | VNET_HDR; offloads of checksums, TCP over v4 and v6
TUNSETIFF, TUNSETOFFLOAD, TUNSETVNETHDRSZ = 0x400454CA, 0x400454D0, 0x400454D8
FLAGS, OFFLOADS = 0x0001 | 0x1000 | 0x4000, 0x01 | 0x02 | 0x04


@dataclass
class Switch:
    """Packets on their way: which leave when; `rate` in bytes/s of each uplink, `delay` in seconds."""

    rate: float
    delay: float
    free: dict[int, float] = field(default_factory=dict)
    waiting: list[tuple[float, int, int, bytes]] = field(default_factory=list)
    count: int = 0

    def take(self, source: int, target: int, packet: bytes, now: float) -> None:
        """A packet from host `source`; dropped where its uplink's queue is full."""
        start = max(now, self.free.get(source, 0.0))
        if start - now > BEHIND:
            return
        self.free[source] = start + (len(packet) - HEADER) / self.rate
        self.count += 1
        heapq.heappush(self.waiting, (self.free[source] + self.delay, self.count, target, packet))

    def due(self, now: float) -> Iterator[tuple[int, bytes]]:
        """Packets that have arrived, with their host."""
        while self.waiting and self.waiting[0][0] <= now:
            _, _, target, packet = heapq.heappop(self.waiting)
            yield target, packet

    def pause(self, now: float) -> float | None:
        """Seconds until the next one arrives; None without any."""
        return max(self.waiting[0][0] - now, 0.0) if self.waiting else None


def target_of(packet: bytes) -> int | None:
    """The number of the host that an IPv4 packet is for; None for anything else."""
    if len(packet) < HEADER + 20 or packet[HEADER] >> 4 != 4:
        return None
    return packet[HEADER + 19] - 1


# All hosts share this machine's processors. With slices of the usual length, 1.4 ms and more, a process whose
# message came waits so long for another host's to stop; a real host's own processor is free.
SLICE, SCHED_SETATTR = 100_000, {"x86_64": 314, "aarch64": 274}  # nanoseconds, the shortest; its number


def short_slices() -> bool:
    """Gives this process and those that it starts short slices; false on a kernel before 6.12."""
    number = SCHED_SETATTR.get(platform.machine())
    # sched_attr of linux/sched/types.h: size, policy, flags, nice, priority, runtime, deadline, period
    words = struct.pack("IIQiIQQQ", 48, 0, 0, 0, 0, SLICE, 0, 0)
    return number is not None and ctypes.CDLL(None).syscall(number, 0, words, 0) == 0


# TCP as it is tuned on links of a cluster's own. A connection that was idle for some round trips sends slowly
# at first. Cubic ends its slow start when a queue builds up, and then a step's messages, too few to widen the
# window, need more round trips than a benchmark's (a third more time at 100 Mbit/s); Reno goes on.
TUNED = {"tcp_slow_start_after_idle": "0", "tcp_congestion_control": "reno"}


@contextmanager
def hosts(count: int, rate: float, delay: float) -> Iterator[list[str]]:
    """Names of so many namespaces, joined by a switch; gone afterwards. Ends the script where it may not."""
    names = [f"host-{number + 1}-{os.getpid()}" for number in range(count)]
    switch = None
    short_slices()
    try:
        for name in names:
            ip("netns", "add", name)
        switch = subprocess.Popen(
            [sys.executable, __file__, str(rate), str(delay), *names], stdout=subprocess.PIPE, text=True
        )
        assert switch.stdout is not None
        if switch.stdout.readline().strip() != "ready":
            raise SystemExit("error: the switch between namespaces didn't start (/dev/net/tun is needed)")
        for number, name in enumerate(names):
            ip("-n", name, "addr", "add", f"{NETWORK}.{number + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
            for key, value in TUNED.items():
                ip("netns", "exec", name, "sh", "-c", f"echo {value} > /proc/sys/net/ipv4/{key}")
        yield names
    finally:
        if switch is not None:
            switch.kill()
            switch.wait()
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def everywhere(names: Sequence[str], each: int, python: Sequence[str], command: Sequence[str], patience: float) -> str:
    """torchrun in every namespace, `each` processes of a Python command; what the first one printed."""
    words = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(names)),
             "--nproc-per-node", str(each), "--master-addr", f"{NETWORK}.1", "--master-port", str(PORT),
             "--no-python"]  # fmt: skip
    started = [
        start(name, [*words, "--node-rank", str(rank), *python, *command], keep=rank == 0)
        for rank, name in enumerate(names)
    ]
    return finish(started, patience)


def start(name: str, command: Sequence[str], keep: bool = False) -> subprocess.Popen[str]:
    """A command in a namespace; what it prints is kept or thrown away."""
    sources = [str(ROOT / "src"), str(ROOT / "comparisons"), os.environ.get("PYTHONPATH")]
    path = os.pathsep.join(filter(None, sources))
    return subprocess.Popen(
        ["nsenter", f"--net=/var/run/netns/{name}", *command],  # `ip netns exec` would hide control groups
        env={**os.environ, "PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "eth0"},
        stdout=subprocess.PIPE if keep else subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip


def finish(started: Sequence[subprocess.Popen[str]], patience: float) -> str:
    """What the first one printed, once all have ended, in so many seconds; ends the script if one fails."""
    try:
        text = started[0].communicate(timeout=patience)[0] or ""
        codes = [process.wait(timeout=60) for process in started]
    finally:
        for process in started:
            process.kill()
    if any(codes):
        raise SystemExit(f"error: {started[0].args!r} ended with exit codes {codes}")
    return text


def ip(*words: str) -> None:
    """`ip ...`; ends the script where it may not or can't."""
    try:
        done = subprocess.run(["ip", *words], capture_output=True, text=True)
    except FileNotFoundError:
        raise SystemExit("error: `ip` isn't here (Linux, package iproute2)") from None
    if done.returncode:
        raise SystemExit(f"error: ip {' '.join(words)}: {done.stderr.strip()} (root is needed)")


def open_device(namespace: str) -> int:
    """A TUN device `eth0` inside a namespace, as a file descriptor that doesn't block."""
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/var/run/netns/{namespace}", os.O_RDONLY)
    try:
        if libc.setns(there, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"eth0", FLAGS))
        fcntl.ioctl(device, TUNSETVNETHDRSZ, struct.pack("i", HEADER))
        fcntl.ioctl(device, TUNSETOFFLOAD, OFFLOADS)
        return device
    finally:
        libc.setns(home, CLONE_NEWNET)
        os.close(home)
        os.close(there)


def serve(rate: float, delay: float, names: Sequence[str]) -> None:
    """Moves packets until it is killed."""
    with suppress(OSError, AttributeError):  # a real switch has a processor of its own
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    devices = [open_device(name) for name in names]
    place = {device: number for number, device in enumerate(devices)}
    switch = Switch(rate, delay)
    print("ready", flush=True)
    while True:
        pause = switch.pause(time.monotonic())
        readable, _, _ = select.select(devices, [], [], pause)
        for device in readable:
            for packet in _packets(device):
                target = target_of(packet)
                if target is not None and 0 <= target < len(devices):
                    switch.take(place[device], target, packet, time.monotonic())
        for target, packet in switch.due(time.monotonic()):
            with suppress(OSError):  # a full queue, or a device that is down, loses packets: TCP sends again
                os.write(devices[target], packet)


def _packets(device: int, most: int = 32) -> Iterator[bytes]:
    """Up to `most` packets that lie there."""
    for _ in range(most):
        try:
            yield os.read(device, LARGEST)
        except (BlockingIOError, OSError):
            return


if __name__ == "__main__":
    serve(float(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])

"""A data sheet's numbers from the parts that they are made of: units, clocks, widths and links.

    vector FLOP/s   units x clock x FLOPs a cycle (2 for a fused multiply-add)
    memory bytes/s  clock x bytes of the bus x transfers a cycle
    link bytes/s    links x rate of one

The devices themselves are in `spec/hardware/data`. Hertz, bytes, bytes/s one way.
"""

from __future__ import annotations


def vector_flops_per_s(units: int, clock: float, flops_per_cycle: float = 2.0) -> float:
    """FLOP/s of `units` arithmetic units; vendors count a fused multiply-add as two."""
    return units * clock * flops_per_cycle


def vector_clock(flops_per_s: float, units: int, flops_per_cycle: float = 2.0) -> float:
    """The clock, in Hz, at which so many units reach a printed rate."""
    return flops_per_s / (units * flops_per_cycle)


def memory_bytes_per_s(clock: float, bus_bytes: float, transfers: float = 2.0) -> float:
    """Bytes/s of a memory bus; `transfers` a cycle: 2 for double data rate."""
    return clock * bus_bytes * transfers


def link_bytes_per_s(links: int, bytes_per_s: float, devices: int = 1) -> float:
    """Bytes/s of all links of `devices` together (or of a switch's ports)."""
    return links * bytes_per_s * devices


def bits_to_bytes_per_s(bits_per_s: float, links: int = 1) -> float:
    """Network links are sold in bits per second."""
    return links * bits_per_s / 8

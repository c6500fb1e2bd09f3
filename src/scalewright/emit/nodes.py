"""Nodes for a launch line: 8 devices each, or all of them on one."""

from __future__ import annotations

USUAL = 8  # GPUs of a node


def nodes_of(devices: int) -> tuple[int, int]:
    """How many nodes, and how many devices of each."""
    if devices <= USUAL or devices % USUAL:
        return 1, devices
    return devices // USUAL, USUAL

"""Nodes for a launch line: 8 devices each, or all of them on one."""

from __future__ import annotations

USUAL = 8  # GPUs of a node


def nodes_of(devices: int) -> tuple[int, int]:
    """How many nodes, and how many devices of each."""
    if devices <= USUAL or devices % USUAL:
        return 1, devices
    return devices // USUAL, USUAL


def torchrun_by_variables(devices: int, program: str) -> str:
    """Every node's launch line, by NODE_RANK, MASTER_ADDR and MASTER_PORT; their defaults do for one node."""
    nodes, each = nodes_of(devices)
    return (
        f"torchrun --nnodes {nodes} --nproc-per-node {each} --node-rank ${{NODE_RANK:-0}} "
        f"--master-addr ${{MASTER_ADDR:-localhost}} --master-port ${{MASTER_PORT:-29500}} {program}"
    )

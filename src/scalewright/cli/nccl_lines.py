"""What a log of NCCL says, on the terminal: its size, what goes over what, what was set.

NCCL 2.21.5+cuda12.4: 16 ranks on 2 nodes, 24 channels
within a node   P2P/CUMEM/read 336
between nodes   NET/IB/GDRDMA 96; network IB, GPUDirect RDMA on
adapters        mlx5_0 (IB), mlx5_1 (IB)
set             NCCL_IB_HCA=mlx5
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from scalewright.spec.common.formatting import MISSING, counted, printable

COMMUNICATOR = ("communicator", "ranks", "hosts", "channels", "NVLS", "links over")
MOST_COMMUNICATORS, MOST_SETTINGS, MOST_LINKS = 12, 12, 3
ON_OFF = {True: "on", False: "off", None: "not stated"}
LABEL = 16  # columns before what a line says


def nccl_lines(nccl: Mapping[str, Any]) -> list[str]:
    """The lines of a run, as wide as the screen; those of which the log says nothing are left out."""
    ways = nccl["transports"]
    network = [f"network {ways['net']}"] if ways["net"] else []
    if ways["net"] not in (None, "Socket"):
        network.append(f"GPUDirect RDMA {ON_OFF[nccl['gdr']]}")
    plugin = [part for part in (nccl["plugin"], nccl["provider"] and f"provider {nccl['provider']}") if part]
    said = {
        "within a node": _links(ways["within"]),
        "between nodes" if nccl["nodes"] != 1 else "network": "; ".join(
            part for part in (_links(ways["between"]), ", ".join(network)) if part
        ),
        "adapters": _one_or_many(nccl["adapters"]),
        "interfaces": _one_or_many(nccl["interfaces"]),
        "plugin": ", ".join(plugin),
        "algorithms": _tuning(nccl["tuning"]),
        "set": ", ".join(f"{name}={value}" for name, value in [*nccl["environment"].items()][:MOST_SETTINGS]),
    }
    width = min(110, shutil.get_terminal_size((100, 24)).columns)
    lines = [_first(nccl)]
    for label, text in said.items():
        if text:
            lines += textwrap.wrap(
                printable(text), width, initial_indent=f"{label:<{LABEL}}", subsequent_indent=" " * LABEL
            )
    return lines


def communicator_rows(communicators: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """A row a communicator, the largest first; the rest is with --json."""
    largest = sorted(communicators, key=lambda some: -int(some["ranks"]))
    return [
        [
            group["id"][:24],
            f"{group['ranks']:,}"
            + (f" ({group['ranks_seen']:,} seen)" if group["ranks_seen"] < group["ranks"] else ""),
            f"{len(group['hosts']):,}",
            MISSING if group["channels"] is None else str(group["channels"]),
            {True: "yes", False: "no", None: MISSING}[group["nvls"]],
            _links(group["links"]) or MISSING,
        ]
        for group in largest[:MOST_COMMUNICATORS]
    ]


def _first(nccl: Mapping[str, Any]) -> str:
    version = (
        f"{nccl['library']} {nccl['version']}" if nccl["version"] else f"{nccl['library']}, version unknown"
    )
    size = []
    if nccl["ranks"] is not None:
        nodes = f" on {counted(nccl['nodes'], 'nodes')}" if nccl["nodes"] is not None else ""
        size.append(counted(nccl["ranks"], "ranks") + nodes.replace("1 nodes", "1 node"))
    if nccl["channels"] is not None:
        size.append(f"{nccl['channels']} channels")
    return printable(version + (": " + ", ".join(size) if size else ""))


def _links(counts: Mapping[str, int]) -> str:
    kinds = [f"{name} {count:,}" for name, count in counts.items()]
    more = len(kinds) - MOST_LINKS
    return ", ".join(kinds[:MOST_LINKS]) + (f" and {more} more" if more > 0 else "")


def _one_or_many(by_host: Mapping[str, Sequence[str]]) -> str:
    """What all hosts have; of hosts that differ the first's, and how many have something else."""
    if not by_host:
        return ""
    first = next(iter(by_host.values()))
    others = sum(settings != first for settings in by_host.values())
    return ", ".join(first) + (f"; {others} of {len(by_host)} hosts have others" if others else "")


def _tuning(rows: Sequence[Mapping[str, Any]]) -> str:
    kinds = [f"{row['collective']} {row['algorithm']}/{row['protocol']} {row['count']:,}" for row in rows]
    return ", ".join(kinds[: 2 * MOST_LINKS])

"""Logs in the form of NCCL's, made up: two nodes of two GPUs, connected well or as a test asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scalewright.diagnose.diagnose import diagnose


def says(host: str, gpu: int, text: str, level: str = "INFO") -> str:
    """A line of the GPU's process on a host."""
    place = "" if level == "INFO" else "transport/net.cc:88 "
    return f"{host}:{4000 + gpu}:{5000 + gpu} [{gpu}] {place}NCCL {level} {text}"


def started(host: str, gpu: int, rank: int, ranks: int, name: str = "0xfeed01", state: str = "COMPLETE") -> str:
    """A line of a communicator in the form of 2.20 and later."""
    return says(
        host,
        gpu,
        f"ncclCommInitRank comm 0xa{rank:03x} rank {rank} nranks {ranks} cudaDev {gpu} nvmlDev {gpu} "
        f"busId {gpu + 1}b000 commId {name} - Init {state}",
    )


def run(network: str = "IB", mark: str = "/GDRDMA", inside: str = "P2P/CUMEM/read", channels: int = 8) -> list[str]:
    """Two nodes of two GPUs that are connected well, or as told."""
    lines = [says("a", 0, "NCCL version 2.21.5+cuda12.4")]
    places = [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    for rank, (host, gpu) in enumerate(places):
        lines.append(says(host, gpu, "Bootstrap : Using ens1:10.7.0.1<0>"))
        if network == "IB":
            lines.append(says(host, gpu, "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ens1:10.7.0.1<0>"))
        lines.append(says(host, gpu, f"Using network {network}"))
        lines.append(started(host, gpu, rank, 4, state="START"))
    for rank, (host, gpu) in enumerate(places):
        after, before = (rank + 1) % 4, (rank - 1) % 4
        for channel in range(2):
            head = f"Channel {channel:02d}/0 : "
            if gpu == 0:
                lines.append(says(host, gpu, f"{head}{before}[1] -> {rank}[0] [receive] via NET/{network}/0{mark}"))
                lines.append(says(host, gpu, f"{head}{rank}[0] -> {after}[1] via {inside}"))
            else:
                lines.append(says(host, gpu, f"{head}{rank}[1] -> {after}[0] [send] via NET/{network}/1{mark}"))
        lines.append(
            says(host, gpu, f"{channels} coll channels, 0 nvls channels, 8 p2p channels, 2 p2p channels per peer")
        )
        lines.append(started(host, gpu, rank, 4))
    return lines


def answer(folder: Path, lines: list[str], end: str = "\n") -> dict[str, Any]:
    """What `diagnose` makes of a log of these lines."""
    (folder / "run.log").write_bytes(end.join([*lines, ""]).encode())
    return diagnose([folder / "run.log"])


def causes(folder: Path, lines: list[str]) -> list[str]:
    """The causes alone."""
    return [verdict["cause"] for verdict in answer(folder, lines)["verdicts"]]

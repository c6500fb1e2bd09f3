"""A cluster profile: what the benchmarks measured, as a cluster file that `plan --cluster FILE` takes.

    machine.local      device, levels, a CPU's curves of kernels and messages
    collectives        levels: bytes/s = the bus rate of all-reduce, latency = its start / messages on a ring
    squares, memory    a GPU's matmul_flops by precision, and memory_bytes_per_s, beside published figures
    software           versions, commit, host, command, load                  so that it can be made again

On a CPU the planner's prices are the curves, timed in every process at once; its levels are shown beside
them. The planner doesn't price a GPU's products by `matmul_flops` yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import ClusterSpec
from scalewright.spec.hardware.topology import Measured


def make_profile(
    cluster: ClusterSpec,
    *,
    messages: Mapping[str, Any] | None,
    products: Sequence[Mapping[str, Any]],
    memory: Sequence[Mapping[str, Any]],
    when: str,
    software: Mapping[str, str],
) -> ClusterSpec:
    """`cluster` with what was measured on it. A level is that of the link that joins the processes timed."""
    fit = next((fit for fit in (messages or {}).get("fits", ()) if fit["kind"] == "all_reduce"), None)
    levels: dict[str, dict[str, float]] = {}
    if messages and fit and fit["bytes_per_s"]:
        rates = {"bytes_per_s": fit["bytes_per_s"], "latency_s": fit["hop_s"]}
        levels[joining_level(cluster, messages["ranks"])] = rates
    before = cluster.measured or Measured()
    beyond = [row["best_bytes_per_s"] for row in memory if row["bytes"] == max(r["bytes"] for r in memory)]
    return cluster.replace(
        measured={
            **before.dump(),
            "matmul_flops": {row["precision"]: row["best_flops_per_s"] for row in products},
            "memory_bytes_per_s": max(beyond) if beyond else before.memory_bytes_per_s,
            "levels": levels,
            "when": when,
            "how": "scalewright bench all",
            "software": dict(software),
        }
    )


def joining_level(cluster: ClusterSpec, ranks: int) -> str:
    """The innermost level that joins so many devices; raises UserError when none does."""
    for level in cluster.levels:
        if level.size is None or level.size >= ranks:
            return level.name
    raise UserError(f"no level of {cluster.name} joins {ranks} devices", "bench", "time fewer processes")


def provenance(environment: Mapping[str, Any], load: float | None) -> dict[str, str]:
    """The facts of `track.environment` that a profile keeps, as text."""
    source = environment.get("source") or {}
    facts = {
        "host": environment["host"],
        "system": environment["system"],
        "command": environment["command"],
        "commit": f"{source['commit']}{' with changes' if source.get('dirty') else ''}" if source else "",
        "load": "" if load is None else f"{load:.2f}",
        **environment["versions"],
    }
    return {key: str(value) for key, value in facts.items() if value}

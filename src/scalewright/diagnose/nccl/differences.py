"""Hosts and ranks that do otherwise than the rest: they hang a run, or slow all of it down to themselves.

versions      2.18.5 on node1, 2.21.5 on node2          networks    Socket on node3, IB on the others
variables     NCCL_ALGO is Ring here and unset there    interfaces  eth0 here, ens5 there
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from scalewright.diagnose.nccl.log import names
from scalewright.diagnose.nccl.summary import Summary
from scalewright.diagnose.verdict import Verdict

# Variables that may differ: they name files, hosts or what is printed.
MAY_DIFFER = ("NCCL_DEBUG", "NCCL_TOPO", "NCCL_HOSTID", "NCCL_CONF_FILE", "NCCL_GRAPH")


def _versions(run: Summary) -> Verdict | None:
    full = {
        version: hosts
        for version, hosts in run.log.versions.items()
        if not any(other != version and other.startswith(f"{version}+") for other in run.log.versions)
    }
    if len(full) < 2:
        return None
    return Verdict(
        "versions of NCCL differ",
        [f"{version}" + (f" on {names(sorted(hosts))}" if hosts else "") for version, hosts in full.items()],
        "load one version everywhere: the same image, and no other libnccl in LD_LIBRARY_PATH",
        0.9,
    )


def _networks(run: Summary) -> Verdict | None:
    if len(run.log.networks) < 2:
        return None
    by_network = {name: sorted({s.host for s in users}) for name, users in run.log.networks.items()}
    counts = Counter({name: len(users) for name, users in run.log.networks.items()})
    return Verdict(
        "ranks use different networks",
        [f"{_gpus(counts[name])} use {name}: {names(by_network[name])}" for name, _ in counts.most_common()],
        f"look at why {names(by_network[counts.most_common()[-1][0]])} chose otherwise: its adapters, "
        "its image, its variables",
        0.85,
    )


def _mixed(run: Summary) -> Verdict | None:
    """P2P for some pairs of a node, something slower for others."""
    kinds = Counter[str]()
    for way, count in run.within.items():
        kinds[way.kind] += count
    if len(kinds) < 2 or "P2P" not in kinds:
        return None
    shares = ", ".join(f"{count:,} over {kind}" for kind, count in kinds.most_common())
    return Verdict(
        "mixed transports within a node",
        [f"links within a node: {shares}; a ring is as fast as its slowest link"],
        "see `nvidia-smi topo -m` for the pairs that aren't connected; half of the machine may be faster",
        0.6,
    )


def _interfaces(run: Summary) -> Verdict | None:
    first = {host: inside[0] for host, inside in run.log.bootstrap.items() if inside}
    return _odd(
        "hosts use different interfaces", "interface", first,
        "name the one that all nodes share: NCCL_SOCKET_IFNAME", 0.5,
    )  # fmt: skip


def _adapters(run: Summary) -> Verdict | None:
    listed = {host: ", ".join(sorted(name for name, _ in some.values())) for host, some in run.log.adapters.items()}
    return _odd(
        "hosts have different adapters", "adapters", listed,
        "check the links of the hosts that have fewer (`ibstat`), and NCCL_IB_HCA", 0.6,
    )  # fmt: skip


def _environment(run: Summary) -> Verdict | None:
    evidence = []
    for name, values in run.log.environment.items():
        where = [(value, names(sorted(hosts))) for value, hosts in values.items() if hosts]
        if len(where) > 1 and not name.startswith(MAY_DIFFER):
            evidence.append(f"{name} is " + ", ".join(f"{value} on {hosts}" for value, hosts in where))
    if not evidence:
        return None
    fix = "set NCCL's variables alike on all nodes: in the job, not in a host's profile"
    return Verdict("hosts have different variables", evidence, fix, 0.7)


def _channels(run: Summary) -> Verdict | None:
    counts = Counter(run.world.channels.values()) if run.world else Counter[int]()
    if len(counts) < 2 or run.world is None:
        return None
    ranks = {count: [str(rank) for rank, its in sorted(run.world.channels.items()) if its == count] for count in counts}
    evidence = [f"{count} channels on ranks {names(ranks[count])}" for count, _ in counts.most_common()]
    fix = "set NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS alike on all ranks, or unset them"
    return Verdict("ranks have different numbers of channels", evidence, fix, 0.6)


def _odd(cause: str, what: str, by_host: Mapping[str, str], fix: str, confidence: float) -> Verdict | None:
    counts = Counter(by_host.values())
    if len(counts) < 2:
        return None
    evidence = [f"{what} {value}: {names([h for h, v in by_host.items() if v == value])}"
                for value, _ in counts.most_common()]  # fmt: skip
    return Verdict(cause, evidence, fix, confidence)


def _gpus(count: int) -> str:
    return f"{count:,} {'GPU' if count == 1 else 'GPUs'}"


DIFFERENCES = (_versions, _networks, _mixed, _interfaces, _adapters, _environment, _channels)

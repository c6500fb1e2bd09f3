"""A log in figures: size, networks and links within and between nodes, each None where the log doesn't tell.

ranks      of the largest communicator
nodes      as NCCL printed them; else the hosts, if those that were seen can hold all ranks
net        the network that was chosen, whether or not anything went over it
intra      what most links between GPUs of one host go over, as printed
gdr        what the log states: marks at links first, then what NCCL says of rings, GPUs and adapters

Hosts and ranks that do otherwise than the rest: they hang a run, or slow all of it down to themselves.

versions      2.18.5 on node1, 2.21.5 on node2          networks    Socket on node3, IB on the others
variables     NCCL_ALGO is Ring here and unset there    interfaces  eth0 here, ens5 there
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from scalewright.diagnose.nccl.communicators import Communicator
from scalewright.diagnose.nccl.log import Log, names
from scalewright.diagnose.nccl.patterns import Ends, Via, ends, via
from scalewright.diagnose.verdict import Verdict

NETWORKED = ("NET", "COLLNET")  # kinds of links that leave a host


@dataclass(frozen=True)
class Summary:
    """The figures, and the links by what they go over (a count each)."""

    log: Log
    world: Communicator | None
    ranks: int | None
    nodes: int | None
    net: str | None
    intra: str | None
    gdr: bool | None
    channels: int | None
    within: Counter[Via]
    between: Counter[Via]
    used: dict[str, set[int]]  # by host, the adapters that links go over

    @property
    def many_nodes(self) -> bool:
        """Whether links between nodes matter: more than one, or an unknown number with some seen."""
        return self.nodes > 1 if self.nodes is not None else len(self.hosts) > 1 or bool(self.between)

    @property
    def hosts(self) -> list[str]:
        """Every host that printed something about its network or its ranks."""
        seen = [host for communicator in self.log.communicators.all for host in communicator.hosts]
        sources = [source.host for users in self.log.networks.values() for source in users]
        return [host for host in dict.fromkeys([*seen, *self.log.bootstrap, *sources]) if host]


def summary(log: Log) -> Summary:
    """The figures of a log; also gives each communicator its links."""
    world = max(log.communicators.all, key=lambda some: some.ranks, default=None)
    within, between, used = _links(log)
    channels = world.most_channels() if world else None
    if channels is None:
        pending = (communicator.most_channels() for communicator in log.communicators.waiting())
        channels = max((count for count in pending if count is not None), default=None)
    local = [way.name for way, _ in within.most_common() if way.kind not in NETWORKED]
    return Summary(
        log, world, world.ranks if world else None, _nodes(world), _net(log, between), local[0] if local else None,
        _gdr(log, [*within, *between]), channels, within, between, used,
    )  # fmt: skip


def _links(log: Log) -> tuple[Counter[Via], Counter[Via], dict[str, set[int]]]:
    within, between = Counter[Via](), Counter[Via]()
    used: dict[str, set[int]] = defaultdict(set)
    for link, count in log.links.items():
        if (where := ends(link.text)) is None:
            continue
        way = via(where.via)
        mine, other = (where.receiver, where.sender) if where.way == "receive" else (where.sender, where.receiver)
        place = link.place - 1 if log.communicators.started else link.place
        communicator = log.communicators.holding(link.source, place, mine, other)
        if communicator is not None:
            communicator.links[where.via] += count
        if way.adapter >= 0:
            used[link.source.host].add(way.adapter)
        (between if _crosses(way, where, communicator) else within)[way] += count
    return within, between, used


def _crosses(way: Via, where: Ends, communicator: Communicator | None) -> bool:
    """Whether a link leaves its host: the network's do unless both ends are known to be on one."""
    if way.kind not in NETWORKED:
        return False
    members = communicator.members if communicator else {}
    ends = [members[rank].host for rank in (where.sender, where.receiver) if rank in members]
    return len(ends) < 2 or ends[0] != ends[1]


def _nodes(world: Communicator | None) -> int | None:
    if world is None or world.nodes is not None:
        return world.nodes if world else None
    by_host = Counter(member.host for member in world.members.values())
    fullest = max(by_host.values(), default=0)
    return len(by_host) if len(by_host) * fullest >= world.ranks else None


def _net(log: Log, between: Counter[Via]) -> str | None:
    if log.networks:
        return max(log.networks, key=lambda name: len(log.networks[name]))
    if between:
        return between.most_common(1)[0][0].name
    return "OFI" if log.plugin else None


def _gdr(log: Log, ways: list[Via]) -> bool | None:
    """False where only some links have the mark: then the log shows that this version prints it."""
    marks = [way.gdr for way in ways if way.kind == "NET"]
    # Rings of one node have nothing to say about the network.
    rings = [ring for ring in log.communicators.all if (ring.nodes or len(ring.hosts)) > 1]
    stated = [ring.gdr for ring in rings if ring.gdr is not None]
    if any(marks):
        return all(marks)
    if stated:
        return all(stated)
    if log.gdr_gpus or log.gdr_distance:
        return not log.gdr_distance and not marks
    if log.gdr_adapters:
        return all(log.gdr_adapters.values()) and not marks
    return None


# Variables that may differ: they name files, hosts or what is printed.
MAY_DIFFER = ("NCCL_DEBUG", "NCCL_TOPO", "NCCL_HOSTID", "NCCL_CONF_FILE", "NCCL_GRAPH")


def _versions(run: Summary) -> Verdict | None:
    evidence = [
        version + (f" on {names(sorted(hosts))}" if hosts else "")
        for version, hosts in run.log.versions.items()
        if not any(other.startswith(f"{version}+") for other in run.log.versions)
    ]
    if len(evidence) < 2:
        return None
    fix = "load one version everywhere: the same image, and no other libnccl in LD_LIBRARY_PATH"
    return Verdict("versions of NCCL differ", evidence, fix, 0.9)


def _networks(run: Summary) -> Verdict | None:
    if len(run.log.networks) < 2:
        return None
    by_users = sorted(run.log.networks.items(), key=lambda item: -len(item[1]))
    hosts = {name: names(sorted({source.host for source in users})) for name, users in by_users}
    evidence = [
        f"{len(users):,} {'GPU' if len(users) == 1 else 'GPUs'} use {name}: {hosts[name]}" for name, users in by_users
    ]
    fix = f"look at why {hosts[by_users[-1][0]]} chose otherwise: its adapters, its image, its variables"
    return Verdict("ranks use different networks", evidence, fix, 0.85)


def _mixed(run: Summary) -> Verdict | None:
    """P2P for some pairs of a node, something slower for others."""
    kinds = Counter[str]()
    for way, count in run.within.items():
        kinds[way.kind] += count
    if len(kinds) < 2 or "P2P" not in kinds:
        return None
    shares = ", ".join(f"{count:,} over {kind}" for kind, count in kinds.most_common())
    line = f"links within a node: {shares}; a ring is as fast as its slowest link"
    fix = "see `nvidia-smi topo -m` for the pairs that aren't connected; half of the machine may be faster"
    return Verdict("mixed transports within a node", [line], fix, 0.6)


def _interfaces(run: Summary) -> Verdict | None:
    first = {host: inside[0] for host, inside in run.log.bootstrap.items() if inside}
    fix = "name the one that all nodes share: NCCL_SOCKET_IFNAME"
    return _odd("hosts use different interfaces", "interface", first, fix, 0.5)


def _adapters(run: Summary) -> Verdict | None:
    listed = {host: ", ".join(sorted(name for name, _ in some.values())) for host, some in run.log.adapters.items()}
    fix = "check the links of the hosts that have fewer (`ibstat`), and NCCL_IB_HCA"
    return _odd("hosts have different adapters", "adapters", listed, fix, 0.6)


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
    channels = dict(sorted(run.world.channels.items())) if run.world else {}
    counts = Counter(run.world.channels.values()) if run.world else Counter[int]()
    if len(counts) < 2:
        return None
    ranks = {count: [str(rank) for rank, of_rank in channels.items() if of_rank == count] for count in counts}
    evidence = [f"{count} channels on ranks {names(ranks[count])}" for count, _ in counts.most_common()]
    fix = "set NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS alike on all ranks, or unset them"
    return Verdict("ranks have different numbers of channels", evidence, fix, 0.6)


def _odd(cause: str, what: str, by_host: Mapping[str, str], fix: str, confidence: float) -> Verdict | None:
    counts = Counter(by_host.values())
    if len(counts) < 2:
        return None
    hosts = {value: [host for host, its in by_host.items() if its == value] for value in counts}
    evidence = [f"{what} {value}: {names(hosts[value])}" for value, _ in counts.most_common()]
    return Verdict(cause, evidence, fix, confidence)


DIFFERENCES = (_versions, _networks, _mixed, _interfaces, _adapters, _environment, _channels)

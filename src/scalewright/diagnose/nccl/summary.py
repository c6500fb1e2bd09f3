"""A log in figures: size, networks and links within and between nodes, each None where the log doesn't tell.

ranks      of the largest communicator
nodes      as NCCL printed them; else the hosts, if those that were seen can hold all ranks
net        the network that was chosen, whether or not anything went over it
intra      what most links between GPUs of one host go over, as printed
gdr        what the log states: marks at links first, then what NCCL says of rings, GPUs and adapters
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from scalewright.diagnose.nccl.communicators import Communicator
from scalewright.diagnose.nccl.log import Link, Log
from scalewright.diagnose.nccl.patterns import Ends, Via, ends, via


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
    nodes = _nodes(world)
    channels = world.most_channels() if world else None
    if channels is None:
        pending = [
            count for communicator in log.communicators.waiting() if (count := communicator.most_channels()) is not None
        ]
        channels = max(pending, default=None)
    return Summary(
        log, world, world.ranks if world else None, nodes, _net(log, between), _intra(within),
        _gdr(log, [*within, *between]), channels, within, between, used,
    )  # fmt: skip


def _links(log: Log) -> tuple[Counter[Via], Counter[Via], dict[str, set[int]]]:
    within: Counter[Via] = Counter()
    between: Counter[Via] = Counter()
    used: dict[str, set[int]] = {}
    for link, count in log.links.items():
        if (where := ends(link.text)) is None:
            continue
        way = via(where.via)
        communicator = _communicator(log, link, where)
        if communicator is not None:
            communicator.links[where.via] = communicator.links.get(where.via, 0) + count
        if way.adapter >= 0:
            used.setdefault(link.source.host, set()).add(way.adapter)
        (between if _crosses(way, where, communicator) else within)[way] += count
    return within, between, used


def _communicator(log: Log, link: Link, where: Ends) -> Communicator | None:
    mine, other = (where.receiver, where.sender) if where.way == "receive" else (where.sender, where.receiver)
    place = link.place - 1 if log.communicators.started else link.place
    return log.communicators.holding(link.source, place, mine, other)


def _crosses(way: Via, where: Ends, communicator: Communicator | None) -> bool:
    """Whether a link leaves its host: the network's do unless both ends are known to be on one."""
    if way.kind not in ("NET", "COLLNET"):
        return False
    members = communicator.members if communicator else {}
    ends = [members[rank].host for rank in (where.sender, where.receiver) if rank in members]
    return len(ends) < 2 or ends[0] != ends[1]


def _nodes(world: Communicator | None) -> int | None:
    if world is None:
        return None
    if world.nodes is not None:
        return world.nodes
    by_host = Counter(member.host for member in world.members.values())
    fullest = max(by_host.values(), default=0)
    return len(by_host) if len(by_host) * fullest >= world.ranks else None


def _net(log: Log, between: Counter[Via]) -> str | None:
    if log.networks:
        return max(log.networks, key=lambda name: len(log.networks[name]))
    if between:
        return between.most_common(1)[0][0].name
    return "OFI" if log.plugin else None


def _intra(within: Counter[Via]) -> str | None:
    local = [way for way in within if way.kind not in ("NET", "COLLNET")]
    return max(local, key=lambda way: within[way]).name if local else None


def _gdr(log: Log, ways: list[Via]) -> bool | None:
    """False where only some links have the mark: then the log shows that this version prints it."""
    marks = [way.gdr for way in ways if way.kind == "NET"]
    # Rings of one node have nothing to say about the network.
    rings = [
        communicator for communicator in log.communicators.all if (communicator.nodes or len(communicator.hosts)) > 1
    ]
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

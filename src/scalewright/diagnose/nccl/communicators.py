"""Whose line it is: the communicators of a run, put together from what each rank prints of its own.

    rank 0   comm 0x55aa rank 0 nranks 4 ... commId 0x7f - Init START      one id on all ranks, since 2.13
    rank 1   comm 0x77bb rank 1 nranks 4 ... commId 0x7f - Init START      (a pointer is a process' own)
    2.7      comm 0x55aa rank 0 nranks 4 cudaDev 0 busId 1000 - Init COMPLETE     no id, and no start

Without an id, a rank belongs to the oldest communicator of its size that lacks this rank, one on its host before the
others: groups of one size may change places, and nothing in such a log tells. Without a start, what a rank prints
before its `Init COMPLETE` (channels, links) belongs to the communicator of that line.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from scalewright.diagnose.nccl.lines import Source


@dataclass(frozen=True)
class Member:
    """A rank's place: its host, its GPU's number in CUDA and NVML, the bus id; None and "" if not printed."""

    rank: int
    host: str
    cuda_device: int | None
    nvml_device: int | None
    bus_id: str


@dataclass
class Communicator:
    """A group of ranks, as far as its ranks' lines are in the log; None for what isn't printed."""

    name: str
    ranks: int
    members: dict[int, Member] = field(default_factory=dict)
    complete: set[int] = field(default_factory=set)
    nodes: int | None = None
    channels: dict[int, int] = field(default_factory=dict)  # by rank
    rings: set[int] = field(default_factory=set)
    ring_channels: int | None = None
    trees: int = 0
    nvls: bool | None = None
    gdr: bool | None = None
    links: Counter[str] = field(default_factory=Counter)

    @property
    def hosts(self) -> list[str]:
        """The hosts of the ranks that were seen, in the ranks' order."""
        return list(dict.fromkeys(self.members[rank].host for rank in sorted(self.members)))

    def most_channels(self) -> int | None:
        """Channels of the rank that has most; all ranks print the same unless something is wrong."""
        return max(self.channels.values()) if self.channels else self.ring_channels


class Communicators:
    """All of a log's, in the order in which they came up."""

    def __init__(self) -> None:
        self.all: list[Communicator] = []
        self.started = False  # whether this NCCL prints a line when it begins with one
        self._by_id: dict[tuple[str, int], Communicator] = {}
        self._by_size: dict[int, list[Communicator]] = defaultdict(list)
        self._of: dict[Source, list[tuple[Communicator, int]]] = defaultdict(list)
        self._pointers: dict[tuple[Source, str], Communicator] = {}
        self._pending: dict[Source, Communicator] = {}

    def line(self, source: Source, pointer: str, rank: int, ranks: int, rest: Mapping[str, str]) -> None:
        """Takes in a communicator's line; `rest` are the pairs behind `nranks`."""
        begun = rest.get("Init") == "START"
        self.started |= begun
        if rest.keys() & {"Destroy", "Abort"}:
            self._pointers.pop((source, pointer), None)
            return
        known = self._pointers.get((source, pointer))
        if known is None or begun or known.ranks != ranks:
            known = self._join(source, rank, ranks, rest)
            self._pointers[source, pointer] = known
        if "nNodes" in rest:
            known.nodes = _number(rest["nNodes"])
        if rank not in known.members or "busId" in rest:
            known.members[rank] = Member(rank, source.host, _number(rest.get("cudaDev")),
                                         _number(rest.get("nvmlDev")), rest.get("busId", ""))  # fmt: skip
        if rest.get("Init") == "COMPLETE":
            known.complete.add(rank)

    def of(self, source: Source) -> tuple[Communicator, int]:
        """The communicator that a rank's line about channels belongs to, and the rank in it (-1: unknown)."""
        if self.started and (mine := self._of.get(source)):
            return mine[-1]
        return self._pending.setdefault(source, Communicator("", 0)), -1

    def count(self, source: Source) -> int:
        """How many communicators a rank has come into so far."""
        return len(self._of.get(source, ()))

    def waiting(self) -> list[Communicator]:
        """What ranks printed of communicators whose names are missing."""
        return [*self._pending.values()]

    def holding(self, source: Source, place: int, rank: int, other: int) -> Communicator | None:
        """The communicator in which a GPU is `rank`: its `place`-th if that fits, else the first."""
        mine = self._of.get(source, [])
        near = (group for group, number in [*mine[place : place + 1], *mine] if number == rank and other < group.ranks)
        return next(near, None)

    def _join(self, source: Source, rank: int, ranks: int, rest: Mapping[str, str]) -> Communicator:
        name = rest.get("commId") or ""
        if name.strip("0x") == "":
            name = f"split {rest['splitCount']} color {rest['color']}" if rest.keys() >= {"splitCount", "color"} else ""
        same = self._by_id.get((name, ranks)) if name else self._of_size(source, rank, ranks)
        if same is None or (rank in same.members and same.members[rank].host != source.host):
            same = Communicator(name or f"{len(self.all)}", ranks)
            self.all.append(same)
            self._by_size[ranks].append(same)
            self._by_id[name, ranks] = same
        if pending := self._pending.pop(source, None):
            _take_over(same, pending, rank)
        self._of[source].append((same, rank))
        return same

    def _of_size(self, source: Source, rank: int, ranks: int) -> Communicator | None:
        """A communicator without an id that lacks this rank; full ones are forgotten, which is quicker."""
        self._by_size[ranks] = [group for group in self._by_size[ranks] if len(group.members) < group.ranks]
        lacking = [group for group in self._by_size[ranks] if rank not in group.members]
        near = [group for group in lacking if any(member.host == source.host for member in group.members.values())]
        return next(iter(near or lacking), None)


def _take_over(communicator: Communicator, pending: Communicator, rank: int) -> None:
    """What a rank printed before its communicator had a name."""
    communicator.rings |= pending.rings
    communicator.trees = max(communicator.trees, pending.trees)
    if pending.channels:
        communicator.channels[rank] = max(pending.channels.values())
    for key in ("ring_channels", "gdr", "nvls"):
        if (value := getattr(pending, key)) is not None:
            setattr(communicator, key, value)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) < 10 else None

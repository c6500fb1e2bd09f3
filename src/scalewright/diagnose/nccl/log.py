"""All lines of a run's logs together: who printed what, by host, GPU and communicator.

    for every line ──► patterns.py: its kind ──► the method of that kind      nothing is judged here

One file of all ranks, one a rank (NCCL_DEBUG_FILE) or an excerpt: what isn't printed stays empty.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from scalewright.diagnose.nccl import patterns
from scalewright.diagnose.nccl.communicators import Communicators
from scalewright.diagnose.nccl.lines import Line, Lines, Source
from scalewright.diagnose.nccl.patterns import Fields
from scalewright.diagnose.nccl.problems import CAUSE, HINT, Problem, peer, problem

NUMBER = re.compile(r"0x[0-9a-f]+|\d+")  # warnings that differ only in them are one
LONGEST_NAME = 80  # characters
LONGEST_TEXT = 240  # characters of a message that are kept
MOST_RANKS = 1 << 24  # more are no communicator's but damage
MOST = 200  # different warnings, peers or values that are kept: a log may have no end of them
MOST_NAMES = 4


class Link(NamedTuple):
    """A link as one end prints it; `place`: how many communicators this GPU had come into before."""

    source: Source
    place: int
    text: str


@dataclass
class Message:
    """A warning or an error and how often it came; the first one's text and place."""

    problem: Problem
    text: str
    file: str
    line: int
    count: int = 0
    hosts: set[str] = field(default_factory=set)
    peers: set[str] = field(default_factory=set)


@dataclass
class Log:
    """What the lines say. Sets hold the hosts, or the GPUs, that said it."""

    library: str = "NCCL"
    versions: dict[str, set[str]] = field(default_factory=dict)
    plugin: str = ""
    provider: str = ""
    networks: dict[str, set[Source]] = field(default_factory=lambda: defaultdict(set))
    bootstrap: dict[str, list[str]] = field(default_factory=dict)  # a host's interfaces, in use
    sockets: dict[str, list[str]] = field(default_factory=dict)
    adapters: dict[str, dict[int, tuple[str, str]]] = field(default_factory=dict)
    gdr_adapters: dict[tuple[str, str], bool] = field(default_factory=dict)  # by host and adapter
    gdr_distance: dict[tuple[str, str, str], int] = field(default_factory=dict)  # host, GPU, adapter: too far
    gdr_gpus: int = 0  # that have an adapter near enough
    environment: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    messages: dict[str, Message] = field(default_factory=dict)
    graphs: Counter[tuple[str, str]] = field(default_factory=Counter)  # GPU to GPU, GPU to adapter
    tuning: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    links: Counter[Link] = field(default_factory=Counter)
    communicators: Communicators = field(default_factory=Communicators)
    notes: list[str] = field(default_factory=list)


def read_logs(paths: Iterable[Path]) -> Log:
    """The lines of all files; raises OSError where one can't be read."""
    reader = _Reader()
    for path in paths:
        lines, name = Lines(path), path.name
        for line in lines:
            reader.take(line, name)
        reader.log.notes += [f"{name}: {note}" for note in lines.notes]
    return reader.log


class _Reader:
    """A method for each kind of line."""

    def __init__(self) -> None:
        self.log = Log()
        self.kinds: dict[str, Callable[[Source, Fields], None]] = {
            form.kind: getattr(self, f"_{form.kind}") for form in patterns.FORMS
        }

    def take(self, line: Line, file: str) -> None:
        """Takes in a line."""
        _, source, level, text = line
        if link := patterns.repeated(text):
            self.log.links[Link(source, self.log.communicators.count(source), link)] += 1
            return
        matched = patterns.match(text)
        if matched is not None:
            self.kinds[matched[0]](source, matched[1])
        elif not level:  # without a head: a version in an exception, a variable set by a shell
            if " version" in text and (match := patterns.VERSION_WITHIN.search(text)):
                self._version(source, match.groupdict(""))
            for name, value in patterns.EXPORT.findall(text) if "export" in text or text.startswith("+") else ():
                self._environment(source, {"name": name, "value": value})
        row = None
        if level in ("WARN", "ERROR", "ABORT", "") or (matched is None and HINT.search(text)):
            row = problem(text)
        if row is None and level == "WARN":
            row = Problem(f"warning: {NUMBER.sub('#', text)[:LONGEST_NAME]}", CAUSE, ())
        if row is not None:
            self._message(row, line, file)

    def _message(self, row: Problem, line: Line, file: str) -> None:
        messages = self.log.messages
        if row.name not in messages:
            if len(messages) >= MOST:
                return
            messages[row.name] = Message(row, line.text[:LONGEST_TEXT], file, line.number)
        message = messages[row.name]
        message.count += 1
        if line.source.host:
            message.hosts.add(line.source.host)
        if len(message.peers) < MOST and (address := peer(line.text)):
            message.peers.add(address)

    def _ring(self, source: Source, fields: Fields) -> None:
        communicator, _ = self.log.communicators.of(source)
        communicator.rings.add(_small(fields["channel"]))
        communicator.ring_channels = _small(fields["of"])

    def _trees(self, source: Source, fields: Fields) -> None:
        communicator, _ = self.log.communicators.of(source)
        communicator.trees = max(communicator.trees, _small(fields["last"]) + 1)

    def _channels(self, source: Source, fields: Fields) -> None:
        communicator, rank = self.log.communicators.of(source)
        communicator.channels[rank] = _small(fields["channels"])
        if fields["nvls"]:
            communicator.nvls = _small(fields["nvls"]) > 0

    def _rings_connected(self, source: Source, fields: Fields) -> None:
        communicator, _ = self.log.communicators.of(source)
        communicator.gdr = fields["gdr"] == "1" and communicator.gdr is not False

    def _nvls(self, source: Source, fields: Fields) -> None:
        self.log.communicators.of(source)[0].nvls = True

    def _comm(self, source: Source, fields: Fields) -> None:
        rank, ranks = _small(fields["rank"]), _small(fields["ranks"])
        if rank < ranks <= MOST_RANKS:
            rest = dict(patterns.PAIR.findall(fields["rest"]))
            self.log.communicators.line(source, fields["pointer"], rank, ranks, rest)

    def _version(self, source: Source, fields: Fields) -> None:
        self.log.library = fields["library"]
        if len(self.log.versions) < MOST:
            version = patterns.plain_version(fields["version"])
            self.log.versions.setdefault(version, set()).update({source.host} - {""})

    def _environment(self, source: Source, fields: Fields) -> None:
        name, value = fields["name"], fields["value"].removesuffix(".")[:LONGEST_TEXT]
        if len(self.log.environment) < MOST or name in self.log.environment:
            values = self.log.environment.setdefault(name, {})
            if len(values) < MOST or value in values:
                values.setdefault(value, set()).update({source.host} - {""})

    def _bootstrap(self, source: Source, fields: Fields) -> None:
        self.log.bootstrap.setdefault(source.host, patterns.INTERFACE.findall(fields["interfaces"]))

    def _sockets(self, source: Source, fields: Fields) -> None:
        self.log.sockets.setdefault(source.host, patterns.INTERFACE.findall(fields["interfaces"]))

    def _adapters(self, source: Source, fields: Fields) -> None:
        for number, name, link in patterns.ADAPTER.findall(fields["adapters"]):
            self.log.adapters.setdefault(source.host, {})[int(number)] = name, link

    def _network(self, source: Source, fields: Fields) -> None:
        self.log.networks[patterns.network(fields["network"].strip())].add(source)

    def _plugin(self, source: Source, fields: Fields) -> None:
        self.log.plugin = f"{fields['plugin']} {fields['version']}"

    def _provider(self, source: Source, fields: Fields) -> None:
        self.log.provider = fields["provider"]

    def _gdr_of_gpu(self, source: Source, fields: Fields) -> None:
        if fields["state"].lower() == "enabled":
            self.log.gdr_gpus += 1
        else:
            self.log.gdr_distance[source.host, source.device, fields["adapter"]] = _small(fields["distance"])

    def _gdr_of_adapter(self, source: Source, fields: Fields) -> None:
        key = (source.host, fields["adapter"])
        # "(DMABUF) enabled" says what the driver could do; the plain form what NCCL made of it.
        if not fields["how"] or key not in self.log.gdr_adapters:
            self.log.gdr_adapters[key] = fields["state"].lower() == "enabled"

    def _graph(self, source: Source, fields: Fields) -> None:
        self.log.graphs[fields["inside"], fields["to_adapter"]] += 1

    def _tuning(self, source: Source, fields: Fields) -> None:
        algorithm = _named(fields["algorithm"], patterns.ALGORITHMS)
        protocol = _named(fields["protocol"], patterns.PROTOCOLS)
        self.log.tuning[fields["collective"] or "collective", algorithm, protocol] += 1


def _named(text: str, names: tuple[str, ...]) -> str:
    """A number as its name; a name in capitals."""
    return names[int(text)] if text.isdecimal() and len(text) < 3 and int(text) < len(names) else text.upper()


def _small(text: str) -> int:
    """A count as a number: NCCL's have at most a few digits, a stranger's file may have thousands."""
    return int(text[:9])


def names(some: Collection[str]) -> str:
    """`a, b, c, d and 3 more`.

    >>> names(["a", "b"]), names(list("abcdef"))
    ('a, b', 'a, b, c, d and 2 more')
    """
    first = [*some][:MOST_NAMES]
    rest = len(some) - len(first)
    return ", ".join(first) + (f" and {rest} more" if rest else "")


def setting(log: Log, name: str, *values: str) -> str:
    """`NCCL_IB_DISABLE is set to 1` where a variable has one of the values (or any, if none is given)."""
    here = [value for value in log.environment.get(name, ()) if not values or value in values]
    if not here:
        return ""
    hosts = sorted(set().union(*(log.environment[name][value] for value in here)))
    return f"{name} is set to {names(here)}" + (f" on {names(hosts)}" if hosts else "")


def printed(log: Log, name: str) -> str:
    """`line 5 of run.log: NET/IB : No device found.` where a problem of that name was printed."""
    message = log.messages.get(name)
    return f"line {message.line} of {message.file}: {message.text}" if message else ""

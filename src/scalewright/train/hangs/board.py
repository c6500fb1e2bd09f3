"""A side channel between the ranks' watchdogs, and who is behind, by the positions that all ranks post there.

    local workers          files beside the launcher's store, in its temporary folder
    torchrun, srun, ...    the TCP store that the ranks met at, over a connection of the watchdog's own

Neither needs a process group, so it works while every group is stuck. A store whose host is stopped answers nobody:
then each call raises BoardSilent within PATIENCE_S.

    rank 0   waits in all_reduce 12 of tp   ──► rank 1 has begun 11 of them ──► rank 1 waits in a receive
    rank 3   doesn't answer                                         from rank 3 ──► rank 3 is the one

An arrow goes from a rank that waits to each rank that has not begun the same collective. Whoever is at their end is
behind: it doesn't answer, or it is in code that waits for nobody. Ranks that began different collectives under one
number are looked for first, and told apart by the majority. Where arrows form a circle, ranks took other orders.
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlparse

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from scalewright.launch.rank import RankContext

PATIENCE_S = 3.0  # that a store which lives answers within, whatever its host is busy with
CONNECT_S = 60.0  # for a connection: name resolution may be slow, and all ranks connect at once


class BoardSilent(Exception):
    """The store doesn't answer."""


class Board(Protocol):
    """Posts are JSON values; nothing is ever taken down."""

    def post(self, key: str, value: Any) -> None:
        """Makes a value readable for every rank."""

    def read(self, key: str) -> Any | None:
        """The posted value; None when nothing was posted. Never waits for a post."""

    def claim(self, key: str) -> bool:
        """True for the first rank that claims the key."""


def open_board(context: RankContext) -> Board:
    """The board of this rank's world; to be called after `join_world`."""
    if not context.rendezvous.startswith("tcp://"):
        return FolderBoard(Path(f"{unquote(urlparse(context.rendezvous).path)}-{context.meeting}.board"))
    host, _, port = context.rendezvous.removeprefix("tcp://").rpartition(":")
    return StoreBoard(host, int(port), f"hangs-{context.meeting}")


class FolderBoard:
    """Files in a folder that all ranks see, each written whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def post(self, key: str, value: Any) -> None:
        partial = self.folder / f".{key}.{os.getpid()}"
        partial.write_text(json.dumps(value), encoding="utf-8")
        os.replace(partial, self.folder / key)

    def read(self, key: str) -> Any | None:
        with suppress(FileNotFoundError):
            return json.loads((self.folder / key).read_text(encoding="utf-8"))
        return None

    def claim(self, key: str) -> bool:
        with suppress(FileExistsError):
            os.close(os.open(self.folder / f"{key}.claim", os.O_CREAT | os.O_EXCL))
            return True
        return False


class StoreBoard:
    """Keys of a TCP store. Calls run in a thread, since a store whose host is stopped keeps its callers. The first call
    connects, and each later one tries again until one has: a slow connection costs reports alone."""

    def __init__(self, host: str, port: int, prefix: str) -> None:
        self._address, self._prefix = (host, port), prefix
        self._caller: threading.Thread | None = None
        self._store: Any = None

    def _connect(self) -> Any:
        if self._store is None:
            timeout = timedelta(seconds=CONNECT_S)
            store = TCPStore(*self._address, is_master=False, wait_for_workers=False, timeout=timeout)
            store.set_timeout(timedelta(seconds=PATIENCE_S))
            self._store = PrefixStore(self._prefix, store)
        return self._store

    def _ask(self, call: Callable[[Any], Any]) -> Any:
        answers: list[Any] = []

        def run() -> None:
            with suppress(Exception):  # torch has several for a connection; the caller raises BoardSilent
                answers.append(call(self._connect()))

        if self._caller is None or not self._caller.is_alive():
            caller = self._caller = threading.Thread(target=run, name="scalewright-board", daemon=True)
            caller.start()  # another thread may ask, too, and replace `_caller`
            caller.join(PATIENCE_S)
        if not answers:
            raise BoardSilent("the store doesn't answer")
        return answers[0]

    def post(self, key: str, value: Any) -> None:
        self._ask(lambda store: store.set(key, json.dumps(value)))

    def read(self, key: str) -> Any | None:
        data = self._ask(lambda store: store.get(key) if store.check([key]) else None)
        return None if data is None else json.loads(data)

    def claim(self, key: str) -> bool:
        return bool(self._ask(lambda store: store.add(f"{key}.claim", 1)) == 1)


@dataclass(frozen=True)
class Patience:
    """How long the watchdog waits before it asks, reports and gives up: seconds, and multiples of a usual step.

    in a step       max(step_s, usual x a usual step)               then ranks are asked
    in slow phases  max(other_s, share x the phase's timeout)       start, save, validation, compilation
    a stalled step  max(stalled_s, stalled_usual x a usual step)    then rank 0 reports it
    """

    tick_s: float = 0.5  # between two looks
    step_s: float = 5.0
    usual: float = 3.0
    other_s: float = 60.0  # also the time until ranks are asked again
    share: float = 0.25
    answer_s: float = 2.0  # that the others have to post their positions
    stalled_s: float = 10.0
    stalled_usual: float = 5.0
    grace_s: float = 15.0  # beyond the timeout, for the main thread to end by the groups' own
    silent: bool = True  # whether a rank whose process doesn't answer at all has until the timeout, too


# Of ranks that are started again by themselves: a process that is stopped, or holds Python's lock, costs seconds. Its
# thread answers while it computes, compiles or reads.
EAGER = Patience(tick_s=0.25, step_s=2.0, answer_s=1.25, silent=False)


UNEVEN = frozenset({"all_to_all", "gather", "scatter"})  # their sizes may differ from rank to rank
SILENT = "does not answer"
Begun = tuple[str, tuple[int, ...]]  # kind, elements of each input


@dataclass(frozen=True)
class Waiting:
    """A collective or message that a rank has begun and that has not ended."""

    group: str  # torch's name of the process group, the same on all its ranks
    axis: str
    kind: str  # all_reduce, all_gather, reduce_scatter, broadcast, barrier, send, receive ...
    number: int  # of the group's collectives, from 1; of a message: of this step's with that peer
    sizes: tuple[int, ...]  # elements of each input
    where: str  # path:line of ours or of the user's code
    members: tuple[int, ...]  # ranks of the group, or the two ends of a message

    def describe(self) -> str:
        """The collective in words."""
        return f"{self.kind} number {self.number} of {self.axis}"


@dataclass(frozen=True)
class Position:
    """Where one rank stands."""

    rank: int
    step: int  # the last step that it has done
    phase: str  # start, step, save, validate; compile while torch.compile is at it
    where: str  # path:line of the main thread, in our code or the user's
    waiting: Waiting | None
    counts: Mapping[str, int] = field(default_factory=dict)  # by group: collectives begun
    recent: Mapping[str, Mapping[int, Begun]] = field(default_factory=dict)  # by group: the last ones by number
    axes: Mapping[str, str] = field(default_factory=dict)  # of the groups in `recent`
    waited_s: float = 0.0  # without progress when it was asked

    def dump(self) -> dict[str, object]:
        """Plain data (JSON types)."""
        return asdict(self)

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Position:
        """The position that `dump` gave, after its way through JSON."""
        if (waiting := data["waiting"]) is not None:
            waiting = Waiting(**{**waiting, **{key: tuple(waiting[key]) for key in ("sizes", "members")}})
        recent = {
            group: {int(number): (kind, tuple(sizes)) for number, (kind, sizes) in entries.items()}
            for group, entries in data["recent"].items()
        }
        return cls(**{**data, "waiting": waiting, "recent": recent})


@dataclass(frozen=True)
class Process:
    """Where a rank runs."""

    host: str
    pid: int

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}"


@dataclass(frozen=True)
class HangVerdict:
    """Which rank is behind, and what the others wait in."""

    rank: int
    axis: str
    collective: str
    number: int
    where: str  # of the rank that is behind; empty when it doesn't answer
    text: str
    phase: str = "step"  # of the rank that is behind
    waited_s: float = 0.0  # of the rank that waits longest, when the ranks were asked
    host: str | None = None  # of the rank that is behind, where known
    pid: int | None = None

    def fields(self) -> dict[str, object]:
        """The fields of the event `hang`."""
        return {key: getattr(self, key) for key in ("rank", "host", "pid", "axis", "collective", "number", "where")}


Positions = Mapping[int, Position | None]  # by rank; None: it didn't answer
Calls = Mapping[int, Waiting]  # by rank that waits
Answered = Mapping[int, Position]


def judge(positions: Positions, process: Callable[[int], Process | None] = lambda rank: None) -> HangVerdict | None:
    """The rank that others wait for; None when nobody does. Position None: no answer; `process`: host and pid."""
    answered = {rank: position for rank, position in positions.items() if position is not None}
    waiting = {rank: position.waiting for rank, position in answered.items() if position.waiting}
    if not waiting:
        return None
    if (verdict := mismatch(answered) or _behind(positions, answered, waiting)) is None:
        return None
    phase = answered[verdict.rank].phase if verdict.rank in answered else verdict.phase
    longest = max(answered[rank].waited_s for rank in waiting if rank != verdict.rank or len(waiting) == 1)
    verdict = replace(verdict, phase=phase, waited_s=longest)
    if place := process(verdict.rank):
        text = verdict.text.replace(SILENT, f"({place}) {SILENT}")
        verdict = replace(verdict, host=place.host, pid=place.pid, text=text)
    return verdict


def _behind(positions: Positions, answered: Answered, waiting: Calls) -> HangVerdict | None:
    """The rank at the end of most arrows."""
    blockers = {rank: sorted(_blockers(rank, call, positions)) for rank, call in waiting.items()}
    if not (ends := Counter(end for rank in waiting for end in _ends(rank, blockers))):
        return _circle(answered, waiting, blockers)
    behind = max(ends, key=lambda rank: (positions[rank] is None, ends[rank], -rank))
    return _verdict(behind, positions[behind], waiting, blockers)


def _blockers(rank: int, call: Waiting, positions: Positions) -> Iterator[int]:
    """The ranks that have not come to what `rank` waits in."""
    message = call.kind in ("send", "receive")
    for other in call.members:
        position = positions.get(other)
        if other != rank and (position is None or message or position.counts.get(call.group, 0) < call.number):
            yield other


def _ends(rank: int, blockers: Mapping[int, list[int]]) -> set[int]:
    """The ranks at the end of the arrows from `rank`: they block others, and wait for nobody."""
    seen, ends, todo = {rank}, set(), [rank]
    while todo:
        current = todo.pop()
        following = blockers.get(current, [])
        if not following and current != rank:
            ends.add(current)
        todo += [other for other in following if other not in seen]
        seen.update(following)
    return ends


def mismatch(answered: Answered) -> HangVerdict | None:
    """A rank that began another collective than the rest of its group under the same number; the first."""
    entries: dict[tuple[str, int], dict[int, Begun]] = {}
    for rank, position in sorted(answered.items()):
        for group, begun in position.recent.items():
            for number, (kind, sizes) in begun.items():
                same = entries.setdefault((group, number), {})
                same[rank] = (kind, () if kind in UNEVEN else sizes)
    for (group, number), begun_by in sorted(entries.items(), key=lambda entry: entry[0]):
        if len(set(begun_by.values())) > 1:
            return _odd_one_out(group, number, begun_by, answered)
    return None


def _odd_one_out(group: str, number: int, begun: Mapping[int, Begun], answered: Answered) -> HangVerdict:
    """The rank that the majority contradicts; of two alike, not the lowest."""
    counts = Counter(begun.values())
    usual = max(counts, key=lambda call: (counts[call], -min(r for r, c in begun.items() if c == call)))
    odd = min(rank for rank, call in begun.items() if call != usual)
    rest = sorted(rank for rank, call in begun.items() if call == usual)

    def line(rank: int) -> str:
        call = answered[rank].waiting
        here = call is not None and (call.group, call.number) == (group, number)
        return call.where if call and here else answered[rank].where

    axis, (kind, sizes) = answered[odd].axes.get(group, "own"), begun[odd]
    text = f"rank {odd} began {kind} of {_elements(sizes)} as number {number} of {axis} ({line(odd)})"
    text += f" where {_ranks(rest)} began {usual[0]} of {_elements(usual[1])} ({line(rest[0])})"
    return HangVerdict(odd, axis, usual[0], number, line(odd), text)


def _circle(answered: Answered, waiting: Calls, blockers: Mapping[int, list[int]]) -> HangVerdict | None:
    """Every rank that waits does so for another that waits, too: one took another order."""
    if not (counts := Counter(other for others in blockers.values() for other in others)):
        return None
    behind = min(counts, key=lambda rank: (-counts[rank], -rank))  # of two alike, not rank 0
    others = sorted(rank for rank, blocking in blockers.items() if behind in blocking)
    call, its = waiting[others[0]], waiting[behind]
    text = f"{_ranks(others)} and rank {behind} wait for each other: rank {behind} in {its.describe()} ({its.where})"
    text += f", {_ranks(others)} in {call.describe()} ({call.where})"
    return HangVerdict(behind, call.axis, call.kind, call.number, its.where or answered[behind].where, text)


def _verdict(behind: int, position: Position | None, waiting: Calls, blockers: Mapping[int, list[int]]) -> HangVerdict:
    call = waiting[min(rank for rank, others in blockers.items() if behind in others)]
    what, where = f"{SILENT}: its process is stopped, or its machine is gone", ""
    if position is not None:
        where = position.where
        what = f"is at {where} (after step {position.step}, {position.phase})"
    wait = "waits" if len(waiting) == 1 else "wait"
    text = f"rank {behind} {what}; {_ranks(sorted(waiting))} {wait} in {call.describe()} ({call.where})"
    return HangVerdict(behind, call.axis, call.kind, call.number, where, text)


def _ranks(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 6:
        return f"{len(ranks)} ranks ({', '.join(map(str, ranks[:3]))} ...)"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _elements(sizes: tuple[int, ...]) -> str:
    return f"{sum(sizes):,} element{'' if sum(sizes) == 1 else 's'}"

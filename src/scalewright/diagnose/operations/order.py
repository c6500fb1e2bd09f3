"""The operations that each operation of a step waits for, read from the order in which it was recorded.

    stage 0   F0 F1 F2 ........ B0 F3 ...     computes: one after the other
                └send──┐        ▲ recv        a send: its compute     a compute: its receive
    stage 1         recv► F0 F1 ─┘            a receive: the compute before it, as it is posted then
    replicas  all-gather ► F0 ... reduce-scatter ► clip ► optimizer      after the last compute: a chain

Collectives, and a send with its receive, end when the last of them has come, and its transfer is done. The order is
that of the first step, which all steps and replicas share. Which compute a send or receive belongs to, and which send a
receive takes from:

    forward, micro-batch 3   place 0 ──send──► recv ── place 1 ──send──► recv ── place 2
    backward                 place 0 ◄─recv ── send ── place 1 ...       places: model chunks, in order

A stage's sends belong to its computes in order. The first place receives nothing forward and the last sends nothing:
tables lack those, or have them as operations that take no time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from scalewright.diagnose.operations.table import GATHERS, Operation, Table, kind_of
from scalewright.diagnose.traces.json_array import NotATrace

Transfer = tuple[int, int, int]  # direction, micro-batch, the sender's place


def transfers(
    operations: Sequence[Operation], rows: Sequence[int], computes: Sequence[int], last: int
) -> Iterator[tuple[int, int, Transfer | None]]:
    """For a stage's sends and receives: (its row, its compute's row, the transfer, None where there is none).

    `rows`, `computes`: of the stage, by their start. `last`: the model's last place.
    """
    for name in sorted({operations[row].name for row in rows}):
        kind = kind_of(name)
        if not kind.passes:
            continue
        end = last if kind.sends == (kind.direction > 0) else 0  # the place without anybody to send to, or receive from
        passing = [row for row in rows if operations[row].name == name]
        users = [row for row in computes if kind_of(operations[row].name).direction == kind.direction]
        needing = [row for row in users if operations[row].place != end]
        if len(passing) == len(needing):
            users = needing
        elif len(passing) > len(users):
            continue
        # Where those that pass nothing on are recorded, it is all but for the first ones.
        for row, compute in zip(passing, users[len(users) - len(passing) :], strict=True):
            user = operations[compute]
            sender = user.place if kind.sends else user.place - kind.direction
            yield row, compute, None if user.place == end else (kind.direction, user.micro_batch, sender)


SLACK = 5e-4  # seconds by which a clock may tell the end of one operation after the start of the next


@dataclass(frozen=True)
class Order:
    """`waits_for`: the operations before each. `groups`: those that end together; what is waited for comes first."""

    waits_for: list[list[int]]
    groups: list[list[int]]


def order(table: Table) -> Order:
    """The dependencies; raises NotATrace where they form a circle."""
    waits_for: list[set[int]] = [set() for _ in table.operations]
    ends: dict[Transfer, list[int]] = defaultdict(list)
    places = [operation.place for operation in table.operations if operation.place >= 0]
    for stage in table.stages:
        rows = [row for row, some in enumerate(table.operations) if some.stage == stage]
        rows.sort(key=lambda row: (table.start[row, 0, 0], row))
        computes = [row for row in rows if kind_of(table.operations[row].name).compute]
        _chains(table, rows, computes, waits_for)
        _gather(table, rows, computes, waits_for)
        for row, compute, transfer in transfers(table.operations, rows, computes, max(places, default=0)):
            if kind_of(table.operations[row].name).sends:
                waits_for[row].add(compute)
            else:
                waits_for[compute].add(row)
            if transfer is not None:
                ends[transfer].append(row)
    groups = _groups(table.operations, [rows for rows in ends.values() if len(rows) == 2])
    return Order([sorted(waits) for waits in waits_for], _sorted(waits_for, groups))


def _chains(table: Table, rows: list[int], computes: list[int], waits_for: list[set[int]]) -> None:
    """A stage's computes one after the other, its streams, and what follows the last compute."""
    for before, after in pairwise(computes):
        waits_for[after].add(before)
    done = np.array([table.end[row, 0, 0] for row in computes])
    last = float(table.start[computes[-1], 0, 0]) if computes else -np.inf
    streams: dict[str, int] = {}  # the last operation of each name
    chain: list[int] = []
    for row in rows:
        name, begun = table.operations[row].name, float(table.start[row, 0, 0])
        kind = kind_of(name)
        if kind.compute:
            continue
        if begun > last and not kind.passes:
            local = [some for other, some in streams.items() if not kind_of(other).passes]
            waits_for[row].update(chain[-1:] or computes[-1:] + local)
            chain.append(row)
            continue
        before = int(np.searchsorted(done, begun + SLACK, side="right")) - 1
        if before >= 0 and not kind.sends:
            waits_for[row].add(computes[before])
        if name in streams:
            waits_for[row].add(streams[name])
        streams[name] = row


def _gather(table: Table, rows: list[int], computes: list[int], waits_for: list[set[int]]) -> None:
    """Parameters are gathered before the first compute of their model chunk."""
    for row in (row for row in rows if table.operations[row].name == GATHERS):
        chunk = table.operations[row].chunk
        user = next((index for index in computes if table.operations[index].chunk == chunk), None)
        if user is not None:
            waits_for[user].add(row)


def _groups(operations: list[Operation], pairs: list[list[int]]) -> list[list[int]]:
    """Operations that end together: sends with receives, collectives of stages, each other one alone."""
    groups = list(pairs)
    over_stages: dict[tuple[str, int], list[int]] = defaultdict(list)
    paired = {row for rows in pairs for row in rows}
    for row, operation in enumerate(operations):
        if kind_of(operation.name).over_stages:
            over_stages[operation.name, operation.number].append(row)
        elif row not in paired:
            groups.append([row])
    return groups + list(over_stages.values())


def _sorted(waits_for: list[set[int]], groups: list[list[int]]) -> list[list[int]]:
    """The groups, each after those that it waits for (Kahn's algorithm)."""
    group = {row: index for index, rows in enumerate(groups) for row in rows}
    before = [{group[other] for row in rows for other in waits_for[row]} for rows in groups]
    after: list[list[int]] = [[] for _ in groups]
    for index, others in enumerate(before):
        for other in others:
            after[other].append(index)
    left = [len(others) for others in before]
    ready = [index for index, count in enumerate(left) if not count]
    for index in ready:
        for later in after[index]:
            left[later] -= 1
            if not left[later]:
                ready.append(later)
    if len(ready) < len(groups):
        raise NotATrace("its operations wait for each other in a circle")
    return [groups[index] for index in ready]

"""A rank that goes on when others have died: brought to one step with those that are left, its state is kept in host
memory, and a session is built anew from there, for the replicas that are left. No file is read.

    settle   step n   A  gradients ── report summed ── update      A has done step n; its report is all that B lacks,
                      B  gradients ── report ✂                     whose gradients were whole before A could have a sum
                      B  ◄── A's report ── update                  the same bits; what nobody has done is done again
             islands  an outer step's mean that one has applied, all have; else it is taken again, without the dead
    hold     weights, states, buffers ──► host memory              (checkpoint/snapshot.py); the old session goes
    share    a rank that is new  ◄── all of it ── the rank at its place in a replica beside it

That a step is done, and may be completed by whoever lost others in it, rests on its order (train/step.py): an update
comes after the last message that it needs.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from scalewright.checkpoint.snapshot import Snapshot
from scalewright.data.batch import sample_ids_hash
from scalewright.launch.regroup import Line
from scalewright.parallel.collectives import barrier, gather_json
from scalewright.parallel.connections import connections, cut
from scalewright.parallel.mesh import Mesh
from scalewright.spec.elastic import replicas
from scalewright.spec.errors import RunError
from scalewright.spec.run import RunSpec
from scalewright.train.batches import sample_ids
from scalewright.train.columns import OUTER
from scalewright.train.session import Session
from scalewright.train.state.live import LiveReader, Owed
from scalewright.train.step import Step


class Regrouping(Exception):
    """All ranks have left the loop at the end of a step, to take others in."""


@dataclass
class Past:
    """What a rank has of the run: the session that it lost others in or, later, its state in host memory."""

    line: Line
    joins: bool = False  # whether the run goes on from what ranks have; else it begins, or goes on from a file
    session: Session | None = None
    live: LiveReader | None = None
    lost_at: float = 0.0  # when the session ended, by perf_counter
    before: frozenset[int] = frozenset()  # connections that are none of the groups'

    def begins(self, *, joins: bool) -> None:
        """Before this rank meets others: until they have met, each new connection is one of the groups'."""
        self.joins, self.before = joins, connections()
        self.line.cut_by(lambda: cut(connections() - self.before))

    def met(self) -> None:
        """They have; others may connect to other places from now on."""
        self.line.cut_by(partial(cut, connections() - self.before))

    def ends(self, session: Session | None) -> None:
        """Others are lost, or new ones come."""
        self.lost_at = time.perf_counter()
        if session is not None:
            self.session, self.live = session, None


@dataclass(frozen=True)
class Standing:
    """Where a rank stands when it meets others."""

    done: int  # the last step whose update it has taken; -1: it is new
    broken: bool = False  # whether the next one's gradients are complete
    summed: bool = False  # and its island's report
    owes: int = 0  # after its last step: 2 its row and what comes then, 1 that alone
    applied: tuple[int, ...] = ()  # fragments, after its last step
    left: bool = True  # whether it got to the end of that step
    island: int = 0


def settled_step(standings: Sequence[Standing]) -> int:
    """The step that all can stand at: the newest that any has done."""
    return max(standing.done for standing in standings)


def sources(standings: Sequence[Standing], step: int) -> dict[int, int]:
    """By island, the rank whose summed report of `step` the others take; raises RunError where one is missing."""
    behind = {s.island for s in standings if 0 <= s.done < step}
    told = {}
    for island in behind:
        ranks = [r for r, s in enumerate(standings) if s.island == island and (s.done == step or s.summed)]
        stuck = [
            s for s in standings if s.island == island and 0 <= s.done < step and not (s.done == step - 1 and s.broken)
        ]
        if stuck or not ranks:
            raise RunError(f"ranks that are left stand at steps {sorted({s.done for s in standings if s.done >= 0})}")
        told[island] = ranks[0]
    return told


def copies(sets: Sequence[Sequence[int]], holding: Sequence[int]) -> list[tuple[int, int]]:
    """(from, to) for each rank that is new: from the same place in a whole replica, the load spread over these. Raises
    RunError where there is none."""
    whole = [ranks for ranks in sets if set(ranks) <= set(holding)]
    if not whole:
        raise RunError("no replica is whole: there is nothing to copy from")
    new = [ranks for ranks in sets if not set(ranks) <= set(holding)]
    pairs = [
        (source, target)
        for number, ranks in enumerate(new)
        for source, target in zip(whole[number % len(whole)], ranks, strict=True)
    ]
    return [(source, target) for source, target in pairs if target not in holding]


def meet(past: Past, run: RunSpec, mesh: Mesh) -> LiveReader:
    """The state that this rank goes on with, the same step on all. All ranks of the new world call it."""
    session = past.session
    told: list[Any] = gather_json(asdict(_standing(past, mesh)), mesh)
    standings = [Standing(**{**entry, "applied": tuple(entry["applied"])}) for entry in told]
    step = settled_step(standings)
    if step < 0:
        raise RunError("ranks died before the run had begun")
    owed = _settle(past, session, standings, step, mesh)
    barrier(mesh)  # whoever lets its session go, with the report that others lack, knows that they have had it
    if session is not None:
        past.live = _hold(session, step, owed, mesh)
        session = past.session = None
        gc.collect()  # before as much is built again
    holding = [rank for rank, standing in enumerate(standings) if standing.done >= 0]
    for source, target in copies(replicas(run.layout, islands=mesh.grid.islands), holding):
        if mesh.rank == source:
            assert past.live is not None
            _send(past.live, target, mesh.device)
        elif mesh.rank == target:
            past.live = _receive(run, source, mesh.device)
    assert past.live is not None
    return past.live


def _standing(past: Past, mesh: Mesh) -> Standing:
    island = mesh.index("dp_replicate") if mesh.grid.islands else 0
    if past.session is None:
        if past.live is None:
            return Standing(-1, island=island)
        owes = 0 if past.live.owed is None else 1 + past.live.owed.row
        return Standing(past.live.manifest.step, owes=owes, island=island)
    session, step = past.session, past.session.step
    assert isinstance(step, Step)
    islands = session.state.islands
    applied = tuple(islands.applied) if islands is not None else ()
    within = session.doing > session.done  # in a step
    if within and step.taken:
        reached = islands is not None and islands.step == session.doing
        return Standing(session.doing, owes=2, applied=applied if reached else (), left=False, island=island)
    broken = step.broken if within else None
    summed = broken is not None and broken.summed is not None
    return Standing(session.done, broken is not None, summed, session.owes, applied, island=island)


def _settle(past: Past, session: Session | None, standings: Sequence[Standing], step: int, mesh: Mesh) -> Owed | None:
    """Brings this rank's session to `step`; what is still owed after that."""
    reports = sources(standings, step)
    here = standings[mesh.rank]
    mine: list[float] | None = None
    if session is not None and mesh.rank in reports.values():
        assert isinstance(session.step, Step)
        summed = session.step.broken.summed if here.summed and session.step.broken else session.step.summed
        mine = summed.tolist() if summed is not None else None
    sums, outer = gather_json(mine, mesh) if reports else [], 0.0
    if session is not None:
        assert isinstance(session.step, Step)
        if 0 <= here.done < step:
            dtype = torch.float32
            session.step.complete(torch.tensor(sums[reports[here.island]], dtype=dtype, device=mesh.device))
        elif session.doing > here.done:
            session.step.undo()
        outer = _join_islands(session, standings, step, mesh)
    owes = max((2 if s.done < step else s.owes) for s in standings if s.done >= 0)
    if not owes:
        return None
    nothing: tuple[list[float], str] = ([], "")
    told = gather_json(_what_is_owed(past, session, step) if here.done == step else None, mesh)
    report, hash_ = next((entry for entry in told if entry is not None and entry[0]), nothing)
    if report and outer:
        report[OUTER] = outer
    seconds = past.lost_at - session.began if session is not None and session.owed is None else 0.0
    return Owed(owes == 2, report, max(seconds, 0.0), hash_)


def _join_islands(session: Session, standings: Sequence[Standing], step: int, mesh: Mesh) -> float:
    """The outer step after `step`, where it broke off, and its norm; else the islands that are left are noted."""
    islands = session.state.islands
    if islands is None:
        return 0.0
    members = [s for s in standings if s.done >= 0]
    if all(s.done == step and s.left for s in members):
        islands.count = mesh.size("dp_replicate")
        return 0.0
    applied = {number for s in members if s.done == step for number in s.applied}
    return float(islands.make_up(mesh, step, applied))


def _what_is_owed(past: Past, session: Session | None, step: int) -> tuple[list[float], str]:
    """The report of the newest step, as this rank has it, and the hash of its samples; empty where it hasn't."""
    owed = session.owed if session is not None else past.live.owed if past.live is not None else None
    if owed is not None:
        return owed.report, owed.hash
    if session is None or not isinstance(session.step, Step) or session.step.report is None:
        return [], ""
    samples = session.place.taken(step, session.run.layout.global_batch)
    hash_ = sample_ids_hash(sample_ids(session.dataset, samples))
    return [float(value) for value in session.step.report.tolist()], hash_


def _hold(session: Session, step: int, owed: Owed | None, mesh: Mesh) -> LiveReader:
    """The session's state in host memory, at `step`."""
    place, run_id, more = session.contents(step)
    chunks, state = session.state.whole(place, more)
    snapshot = Snapshot(mesh.device, apart=False)
    try:
        snapshot.prepare(chunks, mesh.rank)
    except OSError as error:
        raise RunError(f"no room in host memory for the state: {error.strerror}") from None
    snapshot.take(chunks)
    snapshot.is_copied(wait=True)
    shapes, tensors = {chunk.name: chunk.shape for chunk in chunks}, snapshot.tensors
    snapshot.close()  # its memory stays while tensors lie in it
    return LiveReader(session.run, run_id, json.loads(json.dumps(state)), tensors, shapes, owed)


def _send(live: LiveReader, target: int, device: torch.device) -> None:
    """All of it, to a rank that is new."""
    tensors = [
        [name, list(live.manifest.tensors[name].shape), str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
        for name, tensor in live.tensors.items()
    ]
    owed = asdict(live.owed) if live.owed is not None else None
    head = json.dumps({"run_id": live.manifest.run_id, "state": live.state, "owed": owed, "tensors": tensors})
    text = torch.frombuffer(bytearray(head.encode()), dtype=torch.uint8)
    dist.send(torch.tensor([len(text)], device=device), target)
    dist.send(text.to(device), target)
    for tensor in live.tensors.values():
        if tensor.numel():
            dist.send(tensor.contiguous().reshape(-1).view(torch.uint8).to(device), target)


def _receive(run: RunSpec, source: int, device: torch.device) -> LiveReader:
    """What `_send` sends."""
    size = torch.zeros(1, dtype=torch.int64, device=device)
    dist.recv(size, source)
    text = torch.empty(int(size.item()), dtype=torch.uint8, device=device)
    dist.recv(text, source)
    head: Mapping[str, Any] = json.loads(text.cpu().numpy().tobytes())
    tensors: dict[str, Tensor] = {}
    for name, _, dtype, shape in head["tensors"]:
        tensor = torch.empty(shape, dtype=getattr(torch, dtype))
        if tensor.numel():
            flat = torch.empty(tensor.numel() * tensor.element_size(), dtype=torch.uint8, device=device)
            dist.recv(flat, source)
            tensor.reshape(-1).view(torch.uint8).copy_(flat)
        tensors[name] = tensor
    shapes = {name: tuple(shape) for name, shape, _, _ in head["tensors"]}
    owed = Owed(**head["owed"]) if head["owed"] is not None else None
    return LiveReader(run, head["run_id"], head["state"], tensors, shapes, owed)

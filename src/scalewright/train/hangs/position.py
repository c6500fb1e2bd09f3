"""Where this rank is: the collective that it waits in, what it has begun before, and the line of source.

Collectives come from torch's flight recorder, a ring that c10d fills for Gloo and NCCL whoever calls (FSDP's
too, and a compiled graph's): nothing of ours stands in the hot path. It leaves out Gloo's messages between
pipeline ranks; those are read from the stack of the main thread, which waits in `parallel/messages.py`.
"""

from __future__ import annotations

import pickle
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from types import FrameType
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

import scalewright
from scalewright.model.torch_private import flight_dumps
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.messages import Messages
from scalewright.parallel.timers import reported_axis
from scalewright.train.hangs.board import Position, Waiting

OURS = Path(scalewright.__file__).parent
_PARALLEL = ("collectives", "functions", "messages", "timers", "shard", "wire")
HELPERS = {OURS / "parallel" / f"{name}.py" for name in _PARALLEL}  # which wait for their caller
COMPILER = "torch/_dynamo/convert_frame.py"  # on the stack while torch.compile traces and compiles
STANDARD = Path(threading.__file__).parent  # the standard library
RECENT = 32  # of a group's last collectives, which ranks compare
_KINDS = {
    **dict.fromkeys(("_all_gather_base", "_allgather_base", "all_gather_into_tensor_coalesced"), "all_gather"),
    **dict.fromkeys(("_reduce_scatter_base", "reduce_scatter_tensor_coalesced"), "reduce_scatter"),
}
_MESSAGES = {Messages.receive.__code__: "receive", Messages._free.__code__: "send"}


class Groups:
    """The process groups of a mesh by torch's name: their axis and their ranks."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.axes: dict[str, str] = {}
        self.members: dict[str, tuple[int, ...]] = {}
        self._groups: list[dist.ProcessGroup] = []
        for axis, group in [*mesh.groups.items(), ("world", dist.group.WORLD)]:
            if group is None:
                continue
            name = str(group.group_name)
            if name not in self.members:
                self._groups.append(group)
                self.members[name] = tuple(dist.get_process_group_ranks(group))
            if self.axes.get(name) in (None, "control"):  # of axes that share a group, what it carries most
                self.axes[name] = reported_axis(axis)

    def find(self, name: str) -> tuple[str, tuple[int, ...]] | None:
        """A group's axis and ranks; `own` for one that the user's code made, None for one that has gone."""
        if name not in self.members:
            try:
                group = distributed_c10d._resolve_process_group(name)  # type: ignore[attr-defined, arg-type]
                self.members[name] = tuple(dist.get_process_group_ranks(group))
            except (RuntimeError, ValueError):
                return None
        return self.axes.get(name, "own"), self.members[name]

    def begun(self) -> int:
        """Collectives begun on all groups so far; cheap enough to ask often."""
        numbers = (group._get_sequence_number_for_group() for group in self._groups)  # type: ignore[attr-defined]
        return sum(int(number) for number in numbers)


def flights(*, stacks: bool = False) -> list[dict[str, object]]:
    """The recorder's entries, oldest first; the pickle is this process's own. `stacks`: with the lines of source of
    each, for which torch may take seconds the first time."""
    dumps = (pickle.loads(dump(True, stacks, False)) for dump in flight_dumps())
    return [entry for content in dumps for entry in content.get("entries", [])]


def position(
    rank: int, step: int, phase: str, thread: int, groups: Groups | None, entries: Sequence[Mapping[str, Any]]
) -> Position:
    """This rank's position; `thread` is the main thread's number, `groups` None before the mesh is made."""
    frames = list(_outwards(sys._current_frames().get(thread)))
    where = source_line((frame.f_code.co_filename, frame.f_lineno) for frame in frames)
    if phase == "step" and any(Path(f.f_code.co_filename).as_posix().endswith(COMPILER) for f in frames):
        phase = "compile"
    if groups is None:
        return Position(rank, step, phase, where, None)
    recent: defaultdict[str, dict[int, tuple[str, tuple[int, ...]]]] = defaultdict(dict)
    counts: dict[str, int] = {}
    waiting: Waiting | None = None
    for entry in entries:
        name = str(entry["process_group"][0])
        group = groups.find(name)
        if group is None or entry.get("is_p2p"):
            continue
        number, kind = int(entry["collective_seq_id"]), kind_of(entry)
        sizes = tuple(prod(map(int, shape)) for shape in entry.get("input_sizes") or [])  # elements of each input
        recent[name][number] = (kind, sizes)
        counts[name] = max(counts.get(name, 0), number)
        ended = entry.get("retired") or entry.get("state") == "completed"
        if waiting is None and not ended:
            stack = ((frame["filename"], int(frame["line"])) for frame in entry.get("frames", []))
            waiting = Waiting(name, group[0], kind, number, sizes, source_line(stack) or where, group[1])
    waiting = waiting or _message(frames, where)
    last = {name: dict(sorted(calls.items())[-RECENT:]) for name, calls in recent.items()}
    axes = {name: groups.axes.get(name, "own") for name in last}
    return Position(rank, step, phase, where, waiting, counts, last, axes)


def _message(frames: Iterable[FrameType], where: str) -> Waiting | None:
    """The message that the main thread waits for, or waits for someone to take."""
    frame = next((frame for frame in frames if frame.f_code in _MESSAGES), None)
    post, peer = (frame.f_locals.get(name) if frame else None for name in ("self", "peer"))
    if frame is None or not isinstance(post, Messages) or peer is None:
        return None
    kind = _MESSAGES[frame.f_code]
    done = post._received if kind == "receive" else post._freed
    ends = (post._members[post.rank], post._members[peer])
    return Waiting("", "pp", kind, done[peer] + 1, (), where, ends)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def source_line(stack: Iterable[tuple[str, int]]) -> str:
    """The innermost line of ours or the user's, as path:line; of our own helpers only if nothing else is."""
    helper = ""
    for name, line in stack:
        path = Path(name)
        if path.is_relative_to(OURS):
            text = f"{path.relative_to(OURS.parent).as_posix()}:{line}"
            if path not in HELPERS:
                return text
            helper = helper or text
        elif not _is_library(path):
            return f"{path.name}:{line}"
    return helper


def _is_library(path: Path) -> bool:
    """Python's own files, installed packages, and code that has no file."""
    installed = "site-packages" in path.parts or "dist-packages" in path.parts
    return not path.is_absolute() or installed or path.is_relative_to(STANDARD)


def kind_of(entry: Mapping[str, Any]) -> str:
    name = str(entry.get("profiling_name", "")).rpartition(":")[2]
    return _KINDS.get(name, name)

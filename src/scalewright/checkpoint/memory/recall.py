"""The newest sound step in any node's memory, as a checkpoint in every node's: where a run goes on from.

    node 0 (new)   nothing                           step-00000120/   manifest, state, COMMIT; files as they are wanted
    node 1         its ranks', node 0's copies  ──►  step-00000120/   the same, and the files that it has (hard links)
    all            who has what, one list            each file is compared with its checksum where it is taken from:
                                                     its own node first, then the one with the copy

A step counts when every rank's part of it lies somewhere, sound; else the one before is taken, or the disk's. A rank
then reads the boxes that it wants (checkpoint/read.py): what its node lacks is fetched from the node that has it.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalewright.checkpoint.format import PARTIAL, StoredFile, step_folder
from scalewright.checkpoint.memory import PREFIX
from scalewright.checkpoint.memory.courier import fetch_file, part_name, reach
from scalewright.checkpoint.memory.tier import MemoryTier, make_private
from scalewright.checkpoint.verify import check_file, finite_entry
from scalewright.checkpoint.write import Written, commit
from scalewright.checkpoint.writer import receive, send
from scalewright.launch.settings import memory_folder
from scalewright.parallel.collectives import gather_json
from scalewright.spec.common.formatting import counted
from scalewright.spec.errors import RunError

OLD_S = 86_400.0  # of memory that a run left behind, and that a later one takes away
TICK_S = 0.05


@dataclass
class Kept:
    """A step as it lies in the nodes' memories."""

    step: int
    save: str
    world: int
    run_id: str
    holders: dict[int, list[tuple[bool, int, str]]] = field(default_factory=dict)  # by rank: (a copy, node, folder)


@dataclass(frozen=True)
class Recalled:
    """A step of memory as a checkpoint of this node."""

    folder: Path
    step: int
    fetch: Callable[[str], None]  # makes sure of a file by name
    line: str  # where it comes from, in words
    copies: int  # ranks whose part comes from another node than theirs


def recall(tier: MemoryTier, run_ids: Collection[str], after: int) -> Recalled | None:
    """The newest step beyond `after` (-1: any) of a run with one of these ids. All ranks call it, with the same."""
    if tier.nodes.is_first:
        _take_old_away(tier.root)
    steps = _steps(gather_json(_parts_here(tier.root) if tier.nodes.is_first else [], tier.mesh), tier)
    ours = (kept for kept in steps if kept.step > after and kept.run_id in run_ids)
    for kept in (kept for kept in ours if set(kept.holders) >= set(range(kept.world))):
        if (parts := _sound(kept, tier)) and (recalled := _make(kept, parts, tier)):
            return recalled
        tier.news.append(("fault", f"passed over step {kept.step} in the nodes' memory: it is damaged", {}))
    return None


def _take_old_away(root: Path) -> None:
    """What other runs left here long ago."""
    for left in memory_folder().glob(f"{PREFIX}-{os.getuid()}-*"):
        with suppress(OSError):
            if left != root and time.time() - max(p.stat().st_mtime for p in (left, *left.iterdir())) > OLD_S:
                shutil.rmtree(left)


def _parts_here(root: Path) -> list[list[Any]]:
    """[step, save, world, run id, rank, whether it is a copy, folder] of each part in this node's memory."""
    rows: list[list[Any]] = []
    if root.is_dir() and not root.is_symlink() and root.stat().st_uid == os.getuid():
        for path in root.glob("*/part-*.json"):
            if path.parent.suffix == PARTIAL:
                continue
            with suppress(OSError, ValueError, KeyError, TypeError):  # of a save that was cut off
                part = json.loads(path.read_text("utf-8"))
                about = [int(part["step"]), str(part["save"]), int(part["world"]), str(part["run_id"])]
                rows.append([*about, int(path.stem[5:]), "held" in part, path.parent.name])
    return rows


def _steps(answers: list[list[list[Any]]], tier: MemoryTier) -> list[Kept]:
    """All that lie anywhere, newest first."""
    steps: dict[tuple[int, str], Kept] = {}
    for rank, rows in enumerate(answers):
        for step, save, world, run_id, writer, held, folder in rows:
            kept = steps.setdefault((step, save), Kept(step, save, world, run_id))
            kept.holders.setdefault(writer, []).append((held, tier.nodes.of_rank[rank], folder))
    for kept in steps.values():
        kept.holders = {rank: sorted(kept.holders[rank]) for rank in sorted(kept.holders)}
    return [steps[key] for key in sorted(steps, reverse=True)]


def _sound(kept: Kept, tier: MemoryTier) -> dict[int, dict[str, Any]]:
    """Every rank's part of a step, its first sound holder now the first of `holders`; empty: one has none. Ranks of a
    node share the reading."""
    nodes, parts, left = tier.nodes, dict[int, dict[str, Any]](), list(kept.holders)
    while left:
        mine = [rank for rank in left if kept.holders[rank][0][1] == nodes.index]
        place = nodes.here.index(tier.mesh.rank)
        checked = {rank: _checked(tier.root, rank, kept) for rank in mine[place :: len(nodes.here)]}
        told: dict[int, dict[str, Any] | None] = {}
        for answer in gather_json([[rank, part] for rank, part in checked.items()], tier.mesh):
            told |= {int(rank): part for rank, part in answer}
        left = []
        for rank, part in told.items():
            if part is not None:
                parts[rank] = part
                continue
            kept.holders[rank].pop(0)
            left.append(rank)
        if any(not kept.holders[rank] for rank in left):
            return {}
    return parts


def _checked(root: Path, rank: int, kept: Kept) -> dict[str, Any] | None:
    """A rank's part as it lies here; None: a file of it is damaged."""
    folder = root / kept.holders[rank][0][2]
    with suppress(OSError, ValueError, KeyError, TypeError):
        part: dict[str, Any] = json.loads((folder / part_name(rank)).read_text("utf-8"))
        files = {name: StoredFile(entry["bytes"], entry["checksum"]) for name, entry in part["files"].items()}
        same = (part["step"], part["save"]) == (kept.step, kept.save)
        return part if same and not any(check_file(folder, name, file) for name, file in files.items()) else None
    return None


def _make(kept: Kept, parts: dict[int, dict[str, Any]], tier: MemoryTier) -> Recalled | None:
    """The checkpoint's folder on every node; None where a node couldn't make it, or the parts don't fit together."""
    nodes, problem = tier.nodes, ""
    nodes.serve()
    final = step_folder(tier.root, kept.step)
    if nodes.is_first:
        try:
            _write(kept, parts, final, nodes.index)
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = str(error) or type(error).__name__
    while nodes.busy(TICK_S):
        pass  # until its courier listens
    if any(gather_json(problem, tier.mesh)):
        return None
    if nodes.is_first:
        for folder in tier.root.iterdir():
            if folder != final:
                shutil.rmtree(folder, ignore_errors=True)
    copies = sum(holders[0][0] for holders in kept.holders.values())
    line = f"step {kept.step} was in the nodes' memory"
    if copies:
        line += f"; {counted(copies, 'ranks')} of {kept.world} from the copy on another node"
    return Recalled(final, kept.step, Fetch(tier, final, kept, parts), line, copies)


def _write(kept: Kept, parts: dict[int, dict[str, Any]], final: Path, node: int) -> None:
    """Makes the checkpoint of all parts, with the files that this node has, copies too: they outlive this start."""
    partial = final.with_name(final.name + PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    make_private(partial)
    for rank, part in parts.items():
        for folder in (folder for _, holder, folder in kept.holders[rank] if holder == node):
            for name in (*part["files"], part_name(rank)):
                if not (partial / name).exists():
                    os.link(final.parent / folder / name, partial / name)
    about = parts[0]["head"]
    nonfinite = finite_entry(about["finite"], (name for part in parts.values() for name in part["nonfinite"]))
    written = [Written(part["files"], part["nonfinite"]) for part in parts.values()]
    commit(partial, final, written, {**about["state"], **nonfinite}, **about["head"])


@dataclass(frozen=True)
class Fetch:
    """Makes sure of a recalled step's files on this node. A rank's reader calls it before it opens one."""

    tier: MemoryTier
    folder: Path
    kept: Kept
    parts: dict[int, dict[str, Any]]

    def __call__(self, name: str) -> None:
        """Raises RunError where a file can't be had."""
        rank = int(name.split("-")[1])
        entry, holders = self.parts[rank]["files"][name], self.kept.holders[rank]
        expected = StoredFile(entry["bytes"], entry["checksum"])
        if holders[0][1] == self.tier.nodes.index:  # compared already
            return
        try:
            with _alone(self.folder / f".{name}.lock"):
                if check_file(self.folder, name, expected) is not None:
                    self._get(name, expected, [node for _, node, _ in holders])
        except OSError as error:
            problem = f"cannot fetch {name} from another node's memory: {error.strerror or error}"
            raise RunError(problem) from None

    def _get(self, name: str, expected: StoredFile, holders: Sequence[int]) -> None:
        """Fetches a file from the first of these nodes that gives it."""
        nodes, partial, problem = self.tier.nodes, self.folder / f".{name}", ""
        for node in (node for node in holders if node != nodes.index):
            try:
                with reach(nodes.address(node), nodes.secret) as link:
                    send(link, {"folder": self.folder.name, "files": [name]})
                    receive(link)
                    fetch_file(link, partial, expected.bytes, expected.checksum)
                os.replace(partial, self.folder / name)
                return
            except OSError as error:
                problem = problem or f"{nodes.hosts[node]}: {error.strerror or error}"
        raise ConnectionError(problem or "no node has it")


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time."""
    import fcntl  # not on Windows

    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

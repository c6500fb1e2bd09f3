"""A save that is ended at any of its writes, flushes and renames leaves a checkpoint that a run goes on from.

What is there is a step's, bit by bit: the older one's or the new one's. The next save works and leaves nothing over.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch

from checkpoint.ranks import CPU, WORLD, Disk, assert_holds, save, saved_until
from scalewright.checkpoint.read import newest_verified
from scalewright.parallel.mesh import Mesh
from scalewright.spec.grid import make_grid
from scalewright.spec.layout import Layout

ALONE = Mesh(0, make_grid(Layout.parse({"devices": 1})), CPU, {})
# (steps that are there, the step that is saved, how many stay, whether it is written beside training): a new one that
# pushes an older out; one that replaces the only one, its second take
CASES = {
    "next": ([4], 8, 1, False),
    "again": ([8], 8, 2, False),
    "next, beside": ([4, 6], 8, 2, True),
    "again, beside": ([8], 8, 1, True),
}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and signals of Unix")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Threads of torch don't come along in a fork."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def before(root: Path, case: str) -> Path:
    """A folder with what was saved earlier."""
    made = root / f"{case}-made"
    if not made.exists():
        for step in CASES[case][0]:
            save(made, step)
    return made


def operations(root: Path, case: str, rank: int | None) -> list[str]:
    """What a save that isn't ended does, all ranks or one."""
    disk = Disk(0, rank)
    target = root / "counted"
    shutil.copytree(before(root, case), target)
    saved_until(target, disk, *CASES[case][1:])
    shutil.rmtree(target)
    return disk.done


def end_at(root: Path, case: str, rank: int | None, point: int) -> int:
    """A save that ends there; the take of what a run goes on from: 1 is the save's."""
    target = root / f"{case}-{rank}-{point}"
    older, *saved = CASES[case]
    shutil.copytree(before(root, case), target)
    saved_until(target, Disk(point, rank), *saved)
    folder, rejected = newest_verified(target, ALONE)
    assert folder is not None
    assert rejected == []  # nothing half-written is even looked at
    found = int(folder.name[5:])
    take = assert_holds(folder, found)
    assert found == (saved[0] if take else older[-1])
    save(target, 12, keep=1)
    assert_holds(target / "step-00000012", 12)
    assert [path.name for path in target.iterdir()] == ["step-00000012"]
    shutil.rmtree(target)
    return take


@pytest.mark.parametrize("case", ["next", "again, beside"])
def test_a_kill_at_some_points(tmp_path, case):
    """Every 80th, and all around the renames."""
    done = operations(tmp_path, case, None)
    assert {"open", "write", "fsync", "replace", "rename", "mkdir"} <= set(done)
    renames = [number + 1 for number, what in enumerate(done) if what == "rename"]
    points = {*range(7, len(done), 80), *renames, renames[0] + 1, len(done)}
    for point in sorted(points):
        end_at(tmp_path, case, None, point)
    assert end_at(tmp_path, case, 2, 4) == 0


@pytest.mark.slow
@pytest.mark.parametrize("rank", [None, *range(WORLD)])
@pytest.mark.parametrize("case", CASES)
def test_a_kill_at_every_point(tmp_path, case, rank):
    """Of all ranks together, and of one while the others go on."""
    done = operations(tmp_path, case, rank)
    takes = [end_at(tmp_path, case, rank, point) for point in range(1, len(done) + 1)]
    assert takes == sorted(takes)  # from one operation on it is the new one
    assert takes[0] == 0
    assert takes[-1] == (rank in (None, 0))  # which commits

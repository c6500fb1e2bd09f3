"""Steps in the nodes' memory: what a restart makes of them is the checkpoint that a save would have written."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from checkpoint.test_asynchronous import Training, contents
from scalewright.checkpoint.memory import nodes, root_of
from scalewright.checkpoint.memory.courier import Server, reach
from scalewright.checkpoint.memory.recall import Recalled, recall
from scalewright.checkpoint.memory.tier import MemoryTier
from scalewright.checkpoint.read import CheckpointReader
from scalewright.checkpoint.save import save
from scalewright.checkpoint.verify import verify
from scalewright.checkpoint.writer import receive, send
from scalewright.launch.settings import memory_folder
from scalewright.parallel.collectives import barrier
from scalewright.parallel.mesh import Mesh
from worlds import run_world

pytestmark = pytest.mark.skipif(not memory_folder().is_dir(), reason="keeps steps under /dev/shm")


@pytest.fixture(autouse=True)
def _taken_away(tmp_path: Path) -> Iterator[None]:
    yield
    shutil.rmtree(root_of(tmp_path), ignore_errors=True)


def tier(training: Training, folder: Path) -> MemoryTier:
    return MemoryTier(training.mesh, folder, apart=True, limit_s=20.0)


def newest(training: Training, folder: Path, run_id: str = "r") -> Path | None:
    """What a new start finds."""
    started = tier(training, folder)
    kept = recall(started, {run_id}, -1)
    started.close(clean=False)
    return None if kept is None else kept.folder


def test_a_step_is_the_checkpoint_of_that_step(tmp_path):
    """Two sets in turn, numbers that change as soon as a step is kept; then another life, which writes over them."""
    training = Training()
    first = tier(training, tmp_path)
    for step in (1, 2, 3):
        control = save(training.draft(tmp_path / "control", step), training.mesh)
        assert first.begin(training.draft(tmp_path, step)) == ""
        training.step()
    first.settle()
    first.close(clean=False)
    assert newest(training, tmp_path, "another run") is None
    kept = newest(training, tmp_path)
    assert kept is not None
    assert verify(kept) == []
    assert contents(control).items() <= contents(kept).items()
    assert newest(training, tmp_path) == kept  # a start that came to nothing
    second = tier(training, tmp_path)
    left = []
    for step in (4, 5):
        second.begin(training.draft(tmp_path, step))
        left.append(kept.exists())
    assert left == [True, False]  # it went once another step was whole
    second.forget()  # the run went back
    second.close(clean=False)
    assert newest(training, tmp_path) is None
    third = tier(training, tmp_path)
    third.begin(training.draft(tmp_path, 6))
    assert [folder.name for folder in third.root.iterdir()] == [f"{third.save}-0"]  # what others left went, too
    third.close(clean=True)
    assert not third.root.exists()


def test_a_part_that_is_missing_or_older_makes_no_checkpoint(tmp_path):
    training = Training()
    kept = tier(training, tmp_path)
    for step in (1, 2):
        kept.begin(training.draft(tmp_path, step))
    kept.settle()
    kept.close(clean=False)
    (kept.root / f"{kept.save}-1" / "part-00000.json").unlink()  # of step 2, not counted to its end
    found = newest(training, tmp_path)
    assert found is not None
    assert found.name == "step-00000001"


@pytest.mark.parametrize(("per_node", "buddy"), [((2, 2, 2, 2), None), ((2, 2, 2, 2), 6), ((1, 3, 2), 1), ((4, 4), 3)])
def test_each_rank_is_copied_once_and_not_on_its_own_node(monkeypatch, tmp_path, per_node, buddy):
    hosts = [f"host-{node}:/dev/shm" for node, ranks in enumerate(per_node) for _ in range(ranks)]
    monkeypatch.setattr(nodes, "from_rank_zero", lambda value, mesh: value)
    copied: dict[int, int] = {}
    for rank in range(len(hosts)):
        answers = iter([hosts, [[["127.0.0.1", 1]]] * len(hosts)])
        monkeypatch.setattr(nodes, "gather_json", lambda value, mesh, answers=answers: next(answers))
        place = nodes.Nodes(SimpleNamespace(rank=rank), tmp_path, buddy, 1.0)
        copied |= dict.fromkeys(place.sources(), rank)
        assert place.is_first == (hosts.index(hosts[rank]) == rank)
        place.close()
    assert sorted(copied) == list(range(len(hosts)))
    assert all(hosts[rank] != hosts[by] for rank, by in copied.items())
    assert len({(hosts[rank], hosts[by]) for rank, by in copied.items()}) == len(per_node)  # one buddy a node


def two_nodes(mesh: Mesh, _: object, shelves: str, lost: int) -> Any:
    """Each rank is a node. They keep two steps, one loses its memory (the other's newest file is damaged on its own
    node if `lost` is 2), and all start again: (step, whose parts came from a copy, wrong or missing tensors)."""
    shelf = Path(shelves, str(mesh.rank))
    shelf.mkdir()
    os.environ |= {"SCALEWRIGHT_MEMORY": str(shelf), "GLOO_SOCKET_IFNAME": "lo"}
    torch.manual_seed(0)
    training, run = Training(mesh, ("dp_replicate",)), Path(shelves, "run")
    first = tier(training, run)
    assert first.nodes.sources() == [1 - mesh.rank]
    for step in (1, 2):
        first.begin(training.draft(run, step))
        first.settle()
        assert first.nodes.trouble == ""
        training.step()
    told = lag_and_lose_the_way(first, training, run)
    control = save(training.draft(run / "control", 6), mesh)
    first.close(clean=False)
    barrier(mesh)
    if lost == mesh.rank:
        shutil.rmtree(shelf)
        shelf.mkdir()
    if lost == 2 and mesh.rank == 0:
        file = first.root / f"{first.save}-1" / "model-00000-000.safetensors"
        content = bytearray(file.read_bytes())
        content[-3] ^= 1
        file.write_bytes(content)
    barrier(mesh)
    second = tier(training, run)
    kept = recall(second, {"r"}, -1)
    assert isinstance(kept, Recalled)
    reader, wanted = CheckpointReader(kept.folder, verify_files=False, fetch=kept.fetch), CheckpointReader(control)
    wrong = [n for n in wanted.manifest.tensors if reader.read(n).ne(wanted.read(n)).any()]
    problems = verify(kept.folder)
    barrier(mesh)
    second.begin(training.draft(run, 7))  # a node that lost its memory keeps steps, and copies, as before
    second.settle()
    third = [second.nodes.trouble, sorted(path.name for path in second.root.glob("*-0/part-*"))]
    barrier(mesh)
    second.close(clean=True)
    return [kept.folder.name, kept.copies, wrong, problems, third, told]


def lag_and_lose_the_way(kept: MemoryTier, training: Training, run: Path) -> list[str]:
    """Rank 1's copy lags for two steps, which both leave out; then it doesn't find the way. What both are told."""
    ours, late = kept.nodes, training.mesh.rank == 1
    busy, addresses = ours.busy, ours._addresses
    if late:
        ours.busy = lambda wait_s=0.0: True  # type: ignore[method-assign]
    for step in (3, 4):
        kept.begin(training.draft(run, step))
    ours.busy = busy  # type: ignore[method-assign]
    assert kept._newest == 2
    ours._addresses = [[["127.0.0.1", 1]]] * 2 if late else addresses
    kept.begin(training.draft(run, 5))
    kept.settle()
    assert ("nobody answers" in ours.trouble) == late
    ours._addresses = addresses
    kept.begin(training.draft(run, 6))
    kept.settle()
    assert ours.trouble == ""
    return [f"{kind}: {message}" for kind, message, _ in kept.news]


@pytest.mark.parametrize("lost", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_node_that_is_lost_costs_nothing_that_was_copied(tmp_path, lost):
    """Its parts come from the node that copied them, over the network; so does a damaged file."""
    both = ["", ["part-00000.json", "part-00001.json"]]
    lags = "lags: step 3: copying steps to another node takes longer than checkpoint.memory_every: some are left out"
    lost_way = f"({socket.gethostname()}: rank 0: nobody answers at 127.0.0.1:1)"
    told = [lags, f"fault: the step in memory before 6 isn't on every node that should have it {lost_way}"]
    answers = run_world(two_nodes, {"devices": 2, "dp_replicate": 2, "global_batch": 2}, str(tmp_path), lost)
    assert answers == [["step-00000006", 1, [], [], both, told]] * 2


def test_only_who_knows_the_secret_is_served_and_only_with_files_of_steps(tmp_path):
    (tmp_path / "0123456789ab-0").mkdir()
    (tmp_path / "0123456789ab-0" / "model-00000-000.safetensors").write_bytes(b"weights")
    (tmp_path / "private").write_text("no")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        Server(listener, tmp_path, "secret")
        at = [["127.0.0.1", listener.getsockname()[1]]]
        with pytest.raises(ConnectionError, match="nobody answers at"):
            reach(at, "another")
        with reach(at, "secret") as link:
            send(link, {"folder": "0123456789ab-0", "files": ["model-00000-000.safetensors"]})
            assert receive(link) == ({}, [])
            assert link.recv(100) == b"weights"
        for ask in ({"folder": "..", "files": ["private"]}, {"folder": "0123456789ab-0", "files": ["../private"]}):
            with reach(at, "secret") as link:
                send(link, ask)
                assert receive(link) is None
    assert threading.active_count() < 20

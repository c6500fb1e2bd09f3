"""The mesh on forked worlds: coordinates, groups, and collectives over them."""

from __future__ import annotations

import inspect
import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore, distributed_c10d

from scalewright.launch.local import run_local
from scalewright.launch.rank import RankContext
from scalewright.parallel.collectives import all_sum, barrier, copy_from_rank_zero, from_rank_zero, gather_json
from scalewright.parallel.mesh import (
    Mesh,
    _agree,
    _meeting_point,
    backend_for,
    join_world,
    leave_world,
    make_mesh,
    set_timeout,
)
from scalewright.spec.grid import make_grid
from scalewright.spec.groups import cost, files, plan_groups
from scalewright.spec.layout import Layout
from scalewright.train.run import PRELOAD
from worlds import CPU, one_rank, run_world


def look(mesh: Mesh, layout: Layout) -> dict[str, Any]:
    """The ranks of each group, and the result of each collective."""
    axes = ["world", "pp_down", "dp_replicate", "tp", "fsdp", "loss", "gradient", "kv"]
    groups = {axis: mesh.group(axis) for axis in axes}
    barrier(mesh)
    tensor = torch.tensor([float(mesh.rank), 1.0])
    return {
        "coords": mesh.coords,
        "groups": {axis: dist.get_process_group_ranks(group) if group else None for axis, group in groups.items()},
        "sums": {axis: all_sum(tensor.clone(), mesh, axis).tolist() for axis in axes},
        "from zero": from_rank_zero({"rank": mesh.rank, "text": "ä" * 3}, mesh),
        "copied": copy_from_rank_zero(tensor.clone(), mesh).tolist(),
        "gathered": gather_json("x" * mesh.rank, mesh),
        "groups made": dist.get_pg_count(),
    }


@pytest.mark.parametrize(
    "layout",
    [
        {"devices": 2, "zero_stage": 3},
        {"devices": 4, "zero_stage": 3},
        {"devices": 4, "tp": 2, "zero_stage": 3},
        {"devices": 4, "dp_replicate": 2, "zero_stage": 3},
    ],
    ids=["2", "4", "tp2", "hsdp"],
)
def test_groups_join_the_ranks_of_the_grid(layout):
    parsed = Layout.parse(layout)
    grid = make_grid(parsed)
    results = run_world(look, layout)
    assert len(results) == layout["devices"]
    for rank, seen in enumerate(results):
        assert seen["coords"] == grid.coords(rank)
        for axis, ranks in seen["groups"].items():
            (expected,) = [group for group in grid.groups(axis) if rank in group]
            assert ranks == (list(expected) if len(expected) > 1 else None), axis
            assert seen["sums"][axis] == [float(sum(expected)), float(len(expected))], axis
        assert seen["from zero"] == {"rank": 0, "text": "äää"}
        assert seen["copied"] == [0.0, 1.0]
        assert seen["gathered"] == ["x" * other for other in range(layout["devices"])]


def test_axes_of_the_same_ranks_share_a_group():
    """world, loss, gradient and fsdp are one group of 2; control is its own (Gloo beside NCCL)."""
    groups = run_world(look, {"devices": 2, "zero_stage": 3})[0]["groups made"]
    assert groups == 2


def count(mesh: Mesh, layout: Layout) -> dict[str, Any]:
    """The groups of a mesh, and the sockets that they cost this rank."""
    import psutil

    barrier(mesh)
    pairs = [c for c in psutil.Process().net_connections() if c.status == psutil.CONN_ESTABLISHED]
    groups = {id(group): group for group in mesh.groups.values()}
    groups[id(dist.group.WORLD)] = dist.group.WORLD
    try:
        mesh.group("ep" if mesh.size("ep") > 1 else "pp")
        unused = ""
    except ValueError as error:
        unused = str(error)
    return {
        "sockets": len(pairs),
        "groups": len(groups),
        "expected": sum(group.size() - 1 for group in groups.values()),
        "descriptions": sorted({str(group.group_desc) for group in groups.values()}),
        "unused": unused,
    }


def test_only_groups_that_are_used_are_made():
    """Each costs a socket for every other member; a collective over one that was not made is an error."""
    results = run_world(count, {"devices": 4, "pp": 2, "tp": 2})
    for seen in results:
        # world, control, both ways of the pipeline, and tp: not pp, the tie of an untied model's ends ...
        assert seen["descriptions"] == ["control", "default_pg", "pp_down", "pp_up", "tie", "tp"]
        assert seen["groups"] == 6
        assert seen["sockets"] <= seen["expected"] + 2  # and the pipe to the launcher is no socket
        assert "no group was made for axis 'pp'" in seen["unused"]


def open_files(mesh: Mesh, layout: Layout) -> list[int]:
    """File descriptors that a second mesh opens in this rank, and those of its plan."""
    before = len(os.listdir("/proc/self/fd"))
    again = make_mesh(mesh.grid, mesh.rank, CPU, share=False, row=2)
    barrier(again)
    after = len(os.listdir("/proc/self/fd"))
    plan = plan_groups(mesh.grid, gpu=False, share=False, row=2)
    groups = [ranks for made in plan for ranks in made.ranks if mesh.rank in ranks]
    return [after - before, sum(files(len(ranks)) for ranks in groups)]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counted by Linux's list of open files")
def test_gloo_opens_the_sockets_that_are_counted():
    """Groups of two and of four ranks, and control in two rows with their heads."""
    layout = {"devices": 4, "pp": 2, "tp": 2}
    opened = run_world(open_files, layout)
    assert all(seen == counted for seen, counted in opened)
    grid = make_grid(Layout.parse(layout))
    plan = plan_groups(grid, gpu=False, share=False, row=2)
    assert cost(grid, plan, gpu=False).sockets == max(seen for seen, _ in opened) + files(4)


def in_rows(mesh: Mesh, layout: Layout) -> dict[str, Any]:
    """The collectives of control over rows of two ranks."""
    mesh = make_mesh(mesh.grid, mesh.rank, CPU, row=2)
    store = distributed_c10d._get_default_store()
    arrived = []
    for time_round in range(5):
        store.add(f"here {time_round}", 1)
        barrier(mesh)
        arrived.append(store.add(f"here {time_round}", 0))
    return {
        "arrived": arrived,
        "from zero": from_rank_zero([mesh.rank, "zero"], mesh),
        "copied": copy_from_rank_zero(torch.tensor([float(mesh.rank + 7)]), mesh).tolist(),
        "gathered": gather_json({"rank": mesh.rank, "text": "x" * mesh.rank}, mesh),
    }


@pytest.mark.parametrize("world", [3, 4])
def test_control_over_a_tree_of_ranks(world):
    """As a large world has it; of three ranks the last one is a row by itself."""
    for seen in run_world(in_rows, {"devices": world}):
        assert seen["arrived"] == [world] * 5, "a barrier let a rank through before all were there"
        assert seen["from zero"] == [0, "zero"]
        assert seen["copied"] == [7.0]
        assert seen["gathered"] == [{"rank": rank, "text": "x" * rank} for rank in range(world)]


@pytest.fixture
def fake_ranks():
    """A world of 16 ranks that don't exist; this process plays the seventh, bound to a GPU."""
    dist.init_process_group("fake", rank=6, world_size=16)
    try:
        yield 6
    finally:
        dist.destroy_process_group()


def test_nccl_makes_all_groups_of_an_axis_by_one_split(fake_ranks, monkeypatch):
    """Stand-ins for torch's two calls; what they make is a group of this rank alone among fakes."""
    layout = Layout.parse({"devices": 16, "tp": 2, "pp": 4, "zero_stage": 3, "offload": "parameters"})
    grid, made = make_grid(layout, 1), []
    real, signature = dist.new_group, inspect.signature(dist.split_group)

    def split_group(**keys: Any) -> Any:
        signature.bind(**keys)  # as torch of today takes it
        made.append(("split", keys["group_desc"], [tuple(ranks) for ranks in keys["split_ranks"]]))
        own = [ranks for ranks in keys["split_ranks"] if fake_ranks in ranks]
        return real(own[0], use_local_synchronization=True) if own else None

    def new_group(ranks: list[int], timeout: Any, backend: str | None, group_desc: str) -> Any:
        made.append((backend, group_desc, [tuple(ranks)]))
        return real(ranks, use_local_synchronization=True)

    monkeypatch.setattr(dist, "split_group", split_group)
    monkeypatch.setattr(dist, "new_group", new_group)
    monkeypatch.setattr("scalewright.parallel.mesh._bound_to_a_device", lambda: True)
    mesh = make_mesh(grid, fake_ranks, torch.device("cuda", 0), host_sums=True)
    plan = plan_groups(grid, gpu=True, host_sums=True)
    splits = [call for call in made if call[0] == "split"]
    assert len(splits) == cost(grid, plan, gpu=True).splits
    for _, axis, groups in splits:
        if axis != "tie":
            assert sorted(rank for ranks in groups for rank in ranks) == list(range(16)), axis
    # the members of a split agree on its name while all ranks are in as many groups: tie, in which this one
    # has no part, comes after the others, and Gloo's after that
    assert [axis for _, axis, _ in splits][-1] == "tie"
    assert "tie" not in mesh.groups
    gloo = made[len(splits) :]
    assert {backend for backend, _, _ in gloo} == {"gloo"}
    assert {axis for _, axis, _ in gloo} == {"control", "tp_host", "tie_host"}
    assert mesh.group("tp") is not mesh.group("tp", CPU)
    assert mesh.group("tp", CPU) is mesh.groups["tp_host"]
    assert mesh.group("kv", CPU) is mesh.groups["tp_host"]  # the same two ranks
    with pytest.raises(ValueError, match="in host memory was made for axis 'fsdp'"):
        mesh.group("fsdp", CPU)
    assert {axis: tuple(groups) for _, axis, groups in splits}["pp_down_1"] == grid.groups("pp")


def test_which_backend_a_device_has():
    assert backend_for(torch.device("cuda", 0)) == "nccl"
    assert backend_for(CPU) == "gloo"


def wait_alone(context: RankContext) -> dict[str, float]:
    """Rank 0 waits for a message that never comes, with a timeout set after the group was made."""
    join_world(context.rank, context.world, context.rendezvous, CPU, timeout=timedelta(seconds=60))
    mesh = make_mesh(make_grid(Layout.parse({"devices": 2, "zero_stage": 3})), context.rank, CPU)
    barrier(mesh)
    set_timeout(mesh, 0.5)
    start = time.perf_counter()
    if context.rank == 0:
        with pytest.raises(RuntimeError, match="Timed out waiting 500ms"):
            all_sum(torch.ones(1), mesh, "loss")
    waited = time.perf_counter() - start
    barrier(mesh)  # control still has its 60 s, and its connections
    return {"waited": waited}


def test_a_timeout_is_set_for_all_groups_but_control():
    assert 0.4 < run_local(wait_alone, (), 2, preload=PRELOAD)["waited"] < 30


def test_a_rank_alone_needs_no_group():
    mesh, _ = one_rank()
    tensor = torch.ones(3)
    assert all_sum(tensor, mesh, "world") is tensor
    assert copy_from_rank_zero(tensor, mesh) is tensor
    assert from_rank_zero([1], mesh) == [1]
    assert gather_json([1], mesh) == [[1]]
    barrier(mesh)
    assert mesh.group("loss") is None


def meet_again(context: RankContext, times: int) -> int:
    """Joins, meets and leaves one world after another, as fast as it goes."""
    for attempt in range(times):
        join_world(context.rank, context.world, context.rendezvous, CPU, attempt=attempt)
        dist.barrier()
        leave_world()
    return times


def test_worlds_that_follow_each_other_find_each_other():
    """A world's last rank deletes its file while a faster one is in the next already (`_meeting_point`)."""
    assert run_local(meet_again, (100,), 2, preload=PRELOAD) == 100


def test_a_rank_that_failed_does_not_wait_for_nccls_teardown(tmp_path, monkeypatch):
    """NCCL's teardown waits for the others, who wait for this rank; Gloo's doesn't."""
    backends = "cpu:gloo,cuda:nccl"
    join_world(0, 1, (tmp_path / "store").as_uri(), CPU)
    with monkeypatch.context() as patch:
        patch.setattr(dist, "get_backend_config", lambda: backends)
        leave_world(together=False)
        assert dist.is_initialized()
        leave_world()
        assert not dist.is_initialized()
    join_world(0, 1, (tmp_path / "store").as_uri(), CPU, attempt=1)
    leave_world(together=False)
    assert not dist.is_initialized()


def test_an_attempt_has_a_file_of_its_own(tmp_path):
    uri = (tmp_path / "a store").as_uri()
    first, second = (_meeting_point(0, 1, uri, attempt, False)[0] for attempt in (0, 1))
    first.set("address", "old")
    assert not second.check(["address"])
    del first
    second.set("address", "new")
    assert second.get("address") == b"new"


def test_ranks_agree_on_a_start_whose_store_outlives_them():
    """Ten starts in one store, one of them given up by its rank 0: all ranks of each have the same new name."""
    limit = timedelta(seconds=20)
    store = HashStore()  # threads of one process
    store.set("start", "of a rank 0 that died")
    names = set()
    for _ in range(10):
        with ThreadPoolExecutor(4) as ranks:
            answers = list(ranks.map(partial(_agree, store, world=4, timeout=limit), (1, 2, 0, 3)))
        assert len(set(answers)) == 1
        names.add(answers[0])
    assert len(names) == 10

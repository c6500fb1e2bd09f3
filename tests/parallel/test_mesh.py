"""The mesh on forked worlds: coordinates, groups, and collectives over them."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from scalewright.launch.local import run_local
from scalewright.launch.rank import RankContext
from scalewright.parallel.collectives import (
    all_sum,
    barrier,
    copy_from_rank_zero,
    from_rank_zero,
    gather_json,
)
from scalewright.parallel.mesh import (
    EXPERTS,
    LANES,
    USED,
    Mesh,
    _meeting_point,
    axes_of,
    backend_for,
    join_world,
    leave_world,
    make_mesh,
    set_timeout,
)
from scalewright.spec.grid import make_grid
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.train.run import PRELOAD
from worlds import CPU, one_rank, run_world


def small_spec(**keys: Any) -> ModelSpec:
    """The smallest model of all, with other keys."""
    sizes = {"vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    return ModelSpec.parse({**sizes, "intermediate_size": 8, **keys})


def look(mesh: Mesh, layout: Layout) -> dict[str, Any]:
    """The ranks of each group, and the result of each collective."""
    axes = ["world", "pp_down", "dp_replicate", "tp", "fsdp", "loss", "gradient", "kv"]
    groups = {axis: mesh.group(axis) for axis in axes}
    barrier(mesh)
    tensor = torch.tensor([float(mesh.rank), 1.0])
    return {
        "coords": mesh.coords,
        "groups": {
            axis: dist.get_process_group_ranks(group) if group else None for axis, group in groups.items()
        },
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
    groups = {id(group): group for group in mesh.groups.values() if group is not None}
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


def test_the_tie_is_for_models_whose_embedding_and_head_are_one():
    """For a user's own module, whose weights the mesh doesn't look into, there is none either."""
    tied, untied = (small_spec(tie_word_embeddings=tie) for tie in (True, False))
    dense = tuple(axis for axis in USED if axis not in EXPERTS)
    assert axes_of(tied) == dense
    assert axes_of(untied) == tuple(axis for axis in dense if axis != "tie")
    experts = {"num_experts": 4, "top_k": 2, "moe_intermediate_size": 8}
    assert axes_of(small_spec(tie_word_embeddings=True, moe=experts)) == USED
    assert axes_of(torch.nn.Linear(1, 1)) == axes_of(untied)


def test_which_backends_a_group_has():
    """Gloo's full mesh of sockets for control alone, and where gradients are summed in host memory."""
    gpu = torch.device("cuda", 0)
    axes = [*USED, *LANES]
    assert {axis: backend_for(gpu, axis) for axis in axes} == {
        axis: "gloo" if axis == "control" else "nccl" for axis in axes
    }
    mixed = [axis for axis in axes if ":" in backend_for(gpu, axis, host_sums=True)]
    assert mixed == ["tp", "kv", "tie"]
    assert {backend_for(CPU, axis) for axis in axes} == {"gloo"}


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
    first, second = (_meeting_point(0, 1, uri, attempt, False) for attempt in (0, 1))
    first.set("address", "old")
    assert not second.check(["address"])
    del first
    second.set("address", "new")
    assert second.get("address") == b"new"

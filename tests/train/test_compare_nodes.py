"""Ranks that stand for nodes report to each other over Gloo, and all come to the same answer."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runs import run_data
from scalewright import __version__
from scalewright.launch.local import run_local
from scalewright.launch.rank import RankContext
from scalewright.parallel.mesh import join_world, leave_world, make_mesh
from scalewright.spec.errors import Finding, UserError
from scalewright.spec.grid import make_grid
from scalewright.spec.run import RunSpec
from scalewright.train import compare_nodes
from scalewright.train.compare_nodes import MARK, code_digest, look_together, run_digest
from scalewright.train.run import PRELOAD
from worlds import CPU

DATA = {"layout": {"devices": 3, "zero_stage": 3, "global_batch": 3}, "checkpoint": {"at_end": True}}
FOUND = Finding("variables", "nccl-debug", "warn", "NCCL_DEBUG=INFO is for debugging", "unset it", where="environment")


def nodes(folder: Path, changes: dict[int, dict[str, Any]] | None = None, **launch: Any) -> list[Any]:
    """Three processes as three nodes, each with its changes: what each rank has to say, or its error."""
    run = run_data(folder, **DATA, launch=launch)
    found: list[Any] = run_local(as_node, (run, changes or {}), 3, preload=PRELOAD, threads=1)
    return found


def as_node(context: RankContext, data: dict[str, Any], changes: dict[int, dict[str, Any]]) -> Any:
    join_world(context.rank, context.world, context.rendezvous, CPU)
    change = changes.get(context.rank, {})
    run = RunSpec.parse({**data, **change.get("run", {})})
    os.environ |= change.get("environ", {})
    for name, value in change.get("says", {}).items():
        setattr(compare_nodes, name, lambda *arguments, value=value: value)
    if (offset := change.get("clock")) is not None:
        clock = time.time
        time.time = lambda: clock() + offset
    if change.get("broken"):
        compare_nodes.start_facts = None  # type: ignore[assignment]
    try:
        mesh = make_mesh(make_grid(run.layout), context.rank, CPU)
        node = replace(context, starter="by hand", local_rank=0)
        found = (FOUND,) if change.get("found") else ()
        try:
            lines = [finding.line for finding in look_together(run, node, mesh, found)]
        except UserError as error:
            lines = [f"error: {error}"]
        return compare_nodes.gather_json(lines, mesh)
    finally:
        leave_world(together=True)


def test_alike_nodes_have_nothing_to_say(tmp_path: Path) -> None:
    assert nodes(tmp_path) == [[], [], []]
    assert not list((tmp_path / "out").glob(f"{MARK}*"))


def test_what_differs_is_said_by_rank_zero(tmp_path: Path) -> None:
    changes = {
        1: {"environ": {"NCCL_IB_TIMEOUT": "22"}, "clock": 60.0, "found": True},
        2: {"says": {"_mtu": 9000}, "found": True},
    }
    lines, *others = nodes(tmp_path, changes)
    assert others == [[], []]
    host = socket.gethostname()
    assert f"(environment on {host}, {host})" in lines[0]
    assert f"NCCL_IB_TIMEOUT is 22 on {host}, and unset on {host}, {host}" in lines[1]
    assert f"MTU is 9000 on {host}" in lines[2]
    assert f"the clock of {host} is +60 s off" in lines[3]
    assert len(lines) == 4


def test_what_would_fail_ends_all_ranks_alike(tmp_path: Path) -> None:
    changes = {1: {"run": {"seed": 4}}, 2: {"says": {"code_digest": "77ac01", "_sees": False}}}
    answers = nodes(tmp_path, changes)
    assert len({tuple(lines) for lines in answers}) == 1
    (line,) = answers[0]
    assert line.startswith(f"error: 3 things to mend: scalewright is {__version__} 77ac01 on")
    lines, *_ = nodes(tmp_path, changes, preflight="warn")
    assert lines[0].startswith("scalewright is")
    assert any("doesn't see what" in line for line in lines)
    assert any("the run's digest is" in line for line in lines)
    assert nodes(tmp_path, changes, preflight="off") == [[], [], []]


def test_a_node_that_cannot_look_keeps_nobody_waiting(tmp_path: Path) -> None:
    lines, *_ = nodes(tmp_path, {1: {"broken": True}})
    assert "can't be looked at (TypeError" in lines[0]


def test_digests(tmp_path: Path) -> None:
    run = RunSpec.parse(run_data(tmp_path))
    assert run_digest(run) == run_digest(run.replace(launch={"nodes": 4}))
    assert run_digest(run) != run_digest(run.replace(seed=9))
    (tmp_path / "a.py").write_text("1")
    before = code_digest(tmp_path)
    assert before == code_digest(tmp_path)
    (tmp_path / "a.py").write_text("12")
    assert code_digest(tmp_path) != before


@pytest.mark.parametrize("starter", ["none", "local"])
def test_local_ranks_were_looked_at_before(tmp_path: Path, starter: str) -> None:
    run = RunSpec.parse(run_data(tmp_path))
    context = RankContext(starter=starter)
    assert look_together(run, context, None, (FOUND,)) == (FOUND,)  # type: ignore[arg-type]

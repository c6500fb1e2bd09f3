"""A job from a run file, a site's profile and --nodes: who wins, and how ranks are split over nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scalewright.launch.job import LaunchJob, make_job
from scalewright.spec.errors import UserError
from scalewright.spec.run import RunSpec


def job_of(devices: int = 16, profile: Path | None = None, nodes: int | None = None, **launch: Any) -> LaunchJob:
    data = {"model": "llama-3.2-1b", "data": "data/text", "layout": {"devices": devices}, "name": "tiny"}
    return make_job(RunSpec.parse({**data, "launch": launch}), "run.yaml", ["layout.tp=8"], profile, nodes)


@pytest.mark.parametrize(
    ("devices", "launch", "split"),
    [
        (1, {}, (1, 1)), (4, {}, (1, 4)), (16, {}, (2, 8)), (16, {"nodes": 4}, (4, 4)),
        (16, {"per_node": 4}, (4, 4)), (6, {"hosts": ["a", "b"]}, (2, 3)),
        (8, {"nodes": 2, "per_node": 4}, (2, 4)),
    ],
)  # fmt: skip
def test_ranks_over_nodes(devices: int, launch: dict[str, Any], split: tuple[int, int]) -> None:
    job = job_of(devices, **launch)
    assert (job.nodes, job.per_node) == split
    assert job.world == devices


@pytest.mark.parametrize(
    ("devices", "launch", "words"),
    [
        (12, {}, "2 nodes of 8 ranks aren't the 12 of layout.devices (launch): set layout.devices=16"),
        (16, {"nodes": 3}, "3 nodes of 6 ranks aren't the 16"),
        (16, {"nodes": 2, "per_node": 4}, "2 nodes of 4 ranks aren't the 16"),
    ],
)
def test_ranks_that_do_not_fit(devices: int, launch: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        job_of(devices, **launch)
    assert words in str(caught.value)


def of_cluster(cluster: Any, devices: int, device: str = "auto", nodes: int | None = None, **launch: Any) -> LaunchJob:
    data = {"model": "llama-3.2-1b", "data": "data/text", "layout": {"devices": devices}, "name": "tiny"}
    run = RunSpec.parse({**data, "cluster": cluster, "device": device, "launch": launch})
    return make_job(run, "run.yaml", [], None, nodes)


@pytest.mark.parametrize(
    ("cluster", "devices", "split"),
    [("dgx-h100", 64, (8, 8)), ("gb200-nvl72", 64, (16, 4)), ("dgx-2", 64, (4, 16)), ("dgx-h100", 4, (1, 4)),
     ({"like": "dgx-h100", "devices_per_node": 2}, 6, (3, 2)), ("local", 64, (8, 8))],
)  # fmt: skip
def test_a_named_cluster_has_its_own_number_of_devices_a_node(
    cluster: object, devices: int, split: tuple[int, int]
) -> None:
    job = of_cluster(cluster, devices)
    assert (job.nodes, job.per_node) == split


@pytest.mark.parametrize(
    ("cluster", "devices", "nodes", "launch", "need"),
    [("dgx-h100", 512, 4, {}, 64), ("dgx-h100", 16, None, {"hosts": ["a"]}, 2), ("gb200-nvl72", 64, 8, {}, 16),
     ("dgx-h100", 24, 1, {}, 3), ({"like": "dgx-h100", "devices_per_node": 2}, 8, 2, {}, 4)],
)  # fmt: skip
def test_more_ranks_than_devices_of_a_node_are_refused(
    cluster: object, devices: int, nodes: int | None, launch: dict[str, Any], need: int
) -> None:
    with pytest.raises(UserError, match=f"ranks a node: a node of cluster .* name {need}, or set launch.per_node"):
        of_cluster(cluster, devices, nodes=nodes, **launch)
    assert of_cluster(cluster, devices, nodes=need).nodes == need
    assert of_cluster(cluster, devices, device="cpu", nodes=nodes, **launch).per_node == devices // (nodes or 1)
    more = {**launch, "per_node": devices // (nodes or 1)}
    assert of_cluster(cluster, devices, nodes=nodes, **more).world == devices  # who sets it has such nodes


def test_the_runs_own_keys_win_over_the_profile(tmp_path: Path) -> None:
    profile = tmp_path / "site.yaml"
    profile.write_text("launch: {account: abc, partition: gpu, nodes: 4, time_limit: '24:00:00'}\n")
    job = job_of(profile=profile, partition="debug", nodes=None)
    assert (job.site.account, job.site.partition, job.nodes) == ("abc", "debug", 4)
    assert job_of(profile=profile, nodes=2).nodes == 2
    # ranks read the run file, and not the profile
    assert job.arguments[-2:] == ("layout.tp=8", "launch.time_limit=24:00:00")
    assert job_of(profile=profile, time_limit="60").arguments[-1] == "layout.tp=8"


def test_a_profile_with_a_wrong_key_is_named(tmp_path: Path) -> None:
    profile = tmp_path / "site.yaml"
    profile.write_text("acount: abc\n")
    with pytest.raises(UserError, match=r"unknown key 'acount' .*site.yaml.*did you mean 'account'"):
        job_of(profile=profile)
    profile.write_text("- account\n")
    with pytest.raises(UserError, match="expected keys and values"):
        job_of(profile=profile)


def test_where_the_run_is() -> None:
    job = job_of()
    assert (job.folder, job.device) == ("runs/tiny", "cuda")
    assert LaunchJob("x", 1, 1, job.site, "run.yaml").folder == "runs/x"

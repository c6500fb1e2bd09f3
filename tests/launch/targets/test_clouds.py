"""Tasks for SkyPilot and dstack, requests for RunPod: every key is the service's own. Nothing is sent.

SkyPilot   its own JSON Schema, vendored (tests/launch/schemas/skypilot.json)
dstack     a table of its keys below; its own models too, where the package is installed (slow)
RunPod     a table of its keys below
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.launch.targets.crd import SCHEMAS
from tests.launch.targets.sites import full_job, job

from scalewright.launch.job import LaunchJob, Written
from scalewright.launch.targets import find_target
from scalewright.spec.errors import UserError

GOLDEN = Path(__file__).parent / "golden"
CLOUDS = ("skypilot", "dstack", "runpod")
GPU = {"skypilot": "H100", "dstack": "H100", "runpod": "NVIDIA H100 80GB HBM3"}
SETTINGS: list[dict[str, Any]] = [
    {},
    {"max_restarts": 3, "time_limit": "24:00:00", "claims": {"data": "/data"}, "workdir": "/data/run"},
    {"memory": "1T", "cpus_per_rank": 12, "env": {"A": "1"}},
    {"setup": ("source venv/bin/activate",), "interface": "eth1", "port": 12345},
]


def written(cloud: str, a_job: LaunchJob) -> Written:
    """What the target writes of a job."""
    return find_target(cloud)(a_job)


def body(cloud: str, a_job: LaunchJob) -> Any:
    """The task or request, read back."""
    (text,) = written(cloud, a_job).files.values()
    return yaml.safe_load(text)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_the_file_is_the_expected_one(cloud):
    options = {"mounts": ()} if cloud == "runpod" else {}
    (text,) = written(cloud, full_job(gpu=GPU[cloud], **options)).files.values()
    (golden,) = GOLDEN.glob(f"{cloud}.*")
    assert text == golden.read_text(encoding="utf-8")


# -- SkyPilot ------------------------------------------------------------------------------------------


def sky_errors(task: Any) -> list[str]:
    """What SkyPilot's schemas refuse of a task."""
    from jsonschema import Draft202012Validator

    schemas = json.loads((SCHEMAS / "skypilot.json").read_text(encoding="utf-8"))
    checks = [(schemas["task"], task), (schemas["resources"], task.get("resources", {}))]
    checks += [(schemas["storage"], mount) for mount in task.get("file_mounts", {}).values()]
    return [error.message for schema, part in checks for error in Draft202012Validator(schema).iter_errors(part)]


@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize("site", [*SETTINGS, {"claims": {"s3://bucket/run": "/data"}}], ids=str)
def test_skypilot_takes_the_task(nodes, site):
    assert sky_errors(body("skypilot", job(nodes, gpu="H100", **site))) == []


@pytest.mark.parametrize(
    "option", ["resources.accelerator=H100", "nodes=2", "resources.job_recovery.recover_on_exit_codes=300"]
)
def test_skypilot_s_schema_refuses_what_it_has_no_word_for(option):
    assert sky_errors(body("skypilot", job(gpu="H100", options=(option,))))


def test_skypilot_starts_again_after_75_alone():
    recovery = body("skypilot", job(gpu="H100", max_restarts=2))["resources"]["job_recovery"]
    assert recovery == {"max_restarts_on_errors": 2, "recover_on_exit_codes": [75]}


def test_skypilot_s_nodes_meet_at_the_first_address():
    run = body("skypilot", job(gpu="H100", python="echo"))["run"]
    variables = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NODE_RANK": "1", "PATH": "/usr/bin:/bin"}
    out = subprocess.run(["bash", "-c", run], env=variables, capture_output=True, text=True, check=True).stdout
    words = shlex.split(out)
    assert words[words.index("--master-addr") + 1] == "10.0.0.1"
    assert words[words.index("--node-rank") + 1] == "1"


# -- dstack --------------------------------------------------------------------------------------------

# Keys of a task, of its `resources` and of `retry`: dstack 0.22.5's models (core/models/configurations.py,
# profiles.py, resources.py of dstackai/dstack), read in November 2026.
DSTACK = {
    "": (
        "type name image user privileged entrypoint working_dir registry_auth python nvcc single_branch env "
        "shell resources priority volumes docker repos files setup ports commands nodes backends regions "
        "availability_zones instance_types reservation spot_policy retry max_duration stop_duration "
        "max_price creation_policy idle_duration utilization_policy startup_order stop_criteria schedule "
        "fleets tags"
    ),
    "resources": "cpu memory shm_size gpu disk",
    "retry": "on_events duration",
}
DSTACK_WORDS = {"on_events": {"no-capacity", "interruption", "error"}, "type": {"task"}}


def dstack_errors(task: Any) -> list[str]:
    """Keys and words of a task that dstack doesn't have."""
    found = []
    for path, known in DSTACK.items():
        part = task.get(path, {}) if path else task
        found += [f"{path}.{key}" for key in part if key not in known.split()]
        for key, words in DSTACK_WORDS.items():
            values = part.get(key, [])
            found += [v for v in (values if isinstance(values, list) else [values]) if v not in words]
    return found


@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize("site", SETTINGS, ids=str)
def test_dstack_takes_the_task(nodes, site):
    task = body("dstack", job(nodes, gpu="H100", **site))
    assert dstack_errors(task) == []
    assert dstack_errors({**task, "num_nodes": 2, "retry": {"on_events": ["crash"]}}) == [".num_nodes", "crash"]


@pytest.mark.slow
@pytest.mark.parametrize("site", SETTINGS, ids=str)
def test_dstack_s_own_models_take_the_task(site):
    configurations = pytest.importorskip("dstack._internal.core.models.configurations", reason="dstack isn't installed")
    parsed = configurations.parse_run_configuration(body("dstack", job(4, gpu="H100", **site)))
    assert parsed.nodes == 4
    assert parsed.resources.gpu.count.min == 8


def test_dstack_restarts_errors_where_restarts_are_allowed():
    assert body("dstack", job(gpu="H100", max_restarts=1))["retry"]["on_events"][-1] == "error"
    once = written("dstack", job(gpu="H100"))
    assert "error" not in yaml.safe_load(next(iter(once.files.values())))["retry"]["on_events"]
    assert any("75" in note for note in once.notes)


# -- RunPod --------------------------------------------------------------------------------------------

# Keys of the two requests, and those that are needed: RunPod's OpenAPI of its REST API v2 (runpod/docs
# 081392f, api-reference-v2/openapi.json: CreateClusterRequest, ClusterCompute, CreatePodRequest, Mounts),
# read in November 2026.
RUNPOD: dict[str, dict[str, tuple[str, ...]]] = {
    "clusters": {
        "known": ("name type compute image args disk env ports dataCenterIds mounts startJupyter startSsh",),
        "needed": ("name", "type", "compute"),
    },
    "pods": {
        "known": (
            "name gpu cpu cloud image args disk env ports registry dataCenterIds globalNetworking mounts",
            "startJupyter startSsh templateId",
        ),
        "needed": ("name", "image"),
    },
}
COMPUTE = {"gpuTypeId": str, "gpuCountPerPod": int, "podCount": int}


@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize("site", [s for s in SETTINGS if "memory" not in s], ids=str)
def test_runpod_takes_the_request(nodes, site):
    request = body("runpod", job(nodes, gpu="NVIDIA H100 80GB HBM3", **site))
    keys = RUNPOD["clusters" if nodes > 1 else "pods"]
    assert request.keys() <= set(" ".join(keys["known"]).split())
    assert request.keys() >= set(keys["needed"])
    assert all(isinstance(value, str) for value in request["env"].values())
    if nodes > 1:
        assert request["type"] == "TRAINING"
        assert {key: type(value) for key, value in request["compute"].items()} == COMPUTE
        assert 2 <= request["compute"]["podCount"] <= 250
    else:
        assert request["gpu"] == {"id": "NVIDIA H100 80GB HBM3", "count": 8}
    for mount in request.get("mounts", {}).get("network", []):
        assert mount.keys() == {"volumeId", "path"}


def test_runpod_starts_saved_ranks_again_and_then_waits(tmp_path):
    """The container's own words, run with a program that leaves with 75 once, and then with 3."""
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho run >> log\n[ "$(wc -l < log)" -lt 2 ] && exit 75\nexit 3\n', encoding="utf-8")
    program.chmod(0o755)
    sleep = tmp_path / "sleep"
    sleep.write_text('#!/bin/sh\necho "sleep $1" >> log\n', encoding="utf-8")
    sleep.chmod(0o755)
    command = shlex.split(body("runpod", job(gpu="H100"))["args"])
    path = f"{tmp_path}:/usr/bin:/bin"
    subprocess.run(command, cwd=tmp_path, env={"PATH": path}, check=True, timeout=20)
    lines = (tmp_path / "log").read_text(encoding="utf-8").splitlines()
    assert lines == ["run", "sleep 5", "run", "sleep infinity"]


def test_the_key_of_runpod_is_in_no_file():
    result = written("runpod", job(gpu="H100"))
    assert "RUNPOD_API_KEY" not in "".join(result.files.values())
    assert "$RUNPOD_API_KEY" in result.submit[2]


# -- all -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("name", [None, "nvidia.com/gpu", "gpu:h100"])
def test_a_cloud_wants_its_own_name_of_the_gpu(cloud, name):
    with pytest.raises(UserError, match=r"launch\.gpu"):
        written(cloud, job(gpu=name))


def test_dstack_mounts_no_bucket():
    with pytest.raises(UserError, match=r"launch\.claims"):
        written("dstack", job(gpu="H100", claims={"s3://bucket": "/data"}))


def test_runpod_mounts_one_volume():
    with pytest.raises(UserError, match="one network volume"):
        written("runpod", job(gpu="H100", claims={"a": "/a", "b": "/b"}))


@pytest.mark.parametrize(
    "option", ["use_spot", "=1", "name.x=1", "a=[", "a=2026-99-99", "a=" + "[" * 9999, "a=!!int x"]
)
def test_an_option_that_isn_t_key_and_value(option):
    with pytest.raises(UserError, match=r"launch\.options"):
        written("skypilot", job(gpu="H100", options=(option,)))


# -- where checkpoints go -------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["skypilot", "dstack", "runpod"])
@pytest.mark.parametrize(
    ("site", "out_dir", "says"),
    [
        ({}, "", "claims is empty"),
        ({"claims": {"data": "/data"}}, "", "runs/My Run isn't in /data: .*set out_dir=/data/My Run"),
        ({"claims": {"data": "/data"}}, "/elsewhere/first", "set out_dir=/data/first"),
        ({"claims": {"data": "/data"}}, "/data/first", None),
    ],
)
def test_a_folder_that_goes_with_its_machines_is_named(target, site, out_dir, says):
    a_job = replace(job(gpu="H100", **site), out_dir=out_dir)
    notes = [note for note in written(target, a_job).notes if "checkpoints are lost" in note]
    assert len(notes) == (says is not None)
    assert says is None or re.search(says, notes[0])


def test_a_folder_in_the_working_directory_is_kept_where_that_is():
    on_a_volume = job(gpu="H100", claims={"data": "/data"}, workdir="/data/run")
    for target, copied in (("dstack", False), ("runpod", False), ("skypilot", True)):
        assert any("checkpoints are lost" in note for note in written(target, on_a_volume).notes) == copied

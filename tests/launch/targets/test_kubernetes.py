"""Manifests: what the API server accepts, readable, the same every time; wrong settings are refused here."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.launch.targets.crd import crd
from tests.launch.targets.sites import FOR_KUBERNETES, full_job, job

from scalewright.launch.targets.kubernetes import write
from scalewright.spec.errors import UserError

GOLDEN = Path(__file__).parent / "golden"
KINDS = ("jobset", "trainjob", "pytorchjob")


def documents(written: Any) -> dict[str, Any]:
    """The objects of a manifest by their kind."""
    (text,) = written.files.values()
    return {body["kind"]: body for body in yaml.safe_load_all(text)}


def pods(bodies: dict[str, Any]) -> list[Any]:
    """The pod templates of a manifest's objects."""
    if "PyTorchJob" in bodies:
        replicas = bodies["PyTorchJob"]["spec"]["pytorchReplicaSpecs"]
        return [replica["template"]["spec"] for replica in replicas.values()]
    if "TrainJob" in bodies:
        jobset = bodies["TrainingRuntime"]["spec"]["template"]["spec"]
    else:
        jobset = bodies["JobSet"]["spec"]
    return [jobset["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]]


@pytest.mark.parametrize("kind", KINDS)
def test_the_manifest_is_the_expected_one(kind):
    """Its bytes, so that a change of it is seen; golden/README.md says how to renew them."""
    (text,) = write(full_job(kubernetes=kind, **FOR_KUBERNETES)).files.values()
    assert text == (GOLDEN / f"{kind}.yaml").read_text(encoding="utf-8")


SITES: list[dict[str, Any]] = [
    {},
    FOR_KUBERNETES,
    {"queue": "q", "time_limit": "60", "max_restarts": 2},
    {"gpu": "amd.com/gpu", "rdma": "vpc.amazonaws.com/efa=32", "memory": "512GiB"},
    {"constraint": "a=b,example.com/c=d", "claims": {"data": "/data", "more.data": "/more"}},
    {"setup": ("set -x", "cd /"), "env": {"A": "1"}},
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nodes", [1, 2, 500])
@pytest.mark.parametrize("site", SITES, ids=str)
def test_every_object_is_one_that_the_server_accepts(kind, nodes, site):
    bodies = documents(write(job(nodes, kubernetes=kind, **site)))
    for name, body in bodies.items():
        assert crd(name.lower()).check(body) == []


@pytest.mark.parametrize("kind", KINDS)
def test_all_keys_are_used(kind):
    written = write(full_job(kubernetes=kind, **FOR_KUBERNETES))
    assert written.unused.keys() == ({"max_restarts"} if kind == "pytorchjob" else set())


@pytest.mark.parametrize("kind", KINDS)
def test_a_pod_has_what_a_node_of_ranks_needs(kind):
    bodies = documents(write(full_job(kubernetes=kind, **FOR_KUBERNETES)))
    for pod in pods(bodies):
        (container,) = pod["containers"]
        trainer = bodies["TrainJob"]["spec"]["trainer"] if kind == "trainjob" else None
        limits = (trainer["resourcesPerNode"] if trainer else container["resources"])["limits"]
        assert limits == {"cpu": 64, "memory": "512G", "nvidia.com/gpu": 8, "rdma/ib": 1}
        assert pod["terminationGracePeriodSeconds"] == 120
        assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
        mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounted == {"shared-memory": "/dev/shm", "claim-0": "/data", "host-0": "/lustre"}
        assert {volume["name"] for volume in pod["volumes"]} == mounted.keys()
        assert pod["volumes"][0]["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}
        variables = (trainer or container)["env"]
        assert {"name": "NCCL_SOCKET_IFNAME", "value": "eth0"} in variables
        assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]


def test_only_a_saved_run_restarts_without_being_counted():
    body = documents(write(full_job()))["JobSet"]["spec"]
    policy = body["failurePolicy"]
    assert policy["maxRestarts"] == 3
    assert policy["restartStrategy"] == "BlockingRecreate"
    uncounted = [r for r in policy["rules"] if r["action"] == "RestartJobSetAndIgnoreMaxRestarts"]
    assert [r["onJobFailureReasons"] for r in uncounted] == [["PodFailurePolicy"]]
    node = body["replicatedJobs"][0]["template"]["spec"]
    assert node["backoffLimit"] == 0  # any other exit ends the Job at once, for another reason
    codes, taken = node["podFailurePolicy"]["rules"]
    assert codes["onExitCodes"]["values"] == [75]
    assert taken["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert node["template"]["spec"]["restartPolicy"] == "Never"  # a podFailurePolicy wants it


def test_a_pytorchjob_restarts_saved_pods_by_a_code_that_its_controller_retries():
    replicas = documents(write(job(kubernetes="pytorchjob")))["PyTorchJob"]["spec"]["pytorchReplicaSpecs"]
    for replica in replicas.values():
        assert replica["restartPolicy"] == "ExitCode"
        command = replica["template"]["spec"]["containers"][0]["command"]
        assert command[command.index("--saved") + 1] == "138"
    assert replicas["Master"]["replicas"] + replicas["Worker"]["replicas"] == 2


def test_one_node_has_no_workers():
    spec = documents(write(job(1, kubernetes="pytorchjob")))["PyTorchJob"]["spec"]
    assert list(spec["pytorchReplicaSpecs"]) == ["Master"]


def test_pods_meet_at_the_name_that_jobset_gives_pod_0():
    body = documents(write(job()))["JobSet"]
    name = body["metadata"]["name"]
    (replicated,) = body["spec"]["replicatedJobs"]
    command = replicated["template"]["spec"]["template"]["spec"]["containers"][0]["command"]
    address = command[command.index("--master-addr") + 1]
    assert address == f"{name}-{replicated['name']}-0-0.{name}"  # <jobset>-<job>-<index>-<pod>.<subdomain>
    assert command[command.index("--node-rank") + 1] == "$(JOB_COMPLETION_INDEX)"


def test_the_agent_is_the_pods_first_process_after_lines_of_shell(tmp_path):
    """It gets the pod's SIGTERM then; the lines run before it, and one that fails ends the pod."""
    body = documents(write(job(python="echo", setup=("export A=b", "echo $A"))))["JobSet"]["spec"]
    command = body["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[:2] == ["bash", "-c"]
    assert command[2].splitlines()[-1].startswith("exec ")
    lines = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "JOB_COMPLETION_INDEX": "1"}
    ).stdout.splitlines()
    assert lines[0] == "b"
    assert "--node-rank 1" in lines[1]


def test_a_queue_suspends_the_object_that_kueue_admits():
    bodies = documents(write(job(queue="q", kubernetes="trainjob")))
    assert bodies["TrainJob"]["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "q"}
    assert bodies["TrainJob"]["spec"]["suspend"] is True
    assert "labels" not in bodies["TrainingRuntime"]["metadata"]


def test_the_deadline_leaves_time_to_save():
    body = documents(write(job(time_limit="1:00:00", save_before_s=600)))["JobSet"]["spec"]
    assert body["replicatedJobs"][0]["template"]["spec"]["activeDeadlineSeconds"] == 3000
    assert {"name": "limit", "action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"]} in body[
        "failurePolicy"
    ]["rules"]


@pytest.mark.parametrize("name", ["9b", "Ä/ö", "x" * 200, "trailing-" + "-" * 60, "GPT_2.5"])
def test_any_name_of_a_run_becomes_one_that_pods_take(name):
    from dataclasses import replace

    body = documents(write(replace(job(1000), name=name)))["JobSet"]
    short = body["metadata"]["name"]
    assert len(f"{short}-node-0-999-abcde") <= 63  # JobSet's webhook looks at the longest pod name
    assert crd("jobset").check(body) == []


REFUSED = [
    ({"container": None}, "no container image"),
    ({"container": "/images/a.sqsh"}, "not the name of an image"),
    ({"gpu": "gpu:h100"}, "launch.gpu"),
    ({"rdma": "ib"}, "launch.rdma"),
    ({"queue": "a/b"}, "launch.queue"),
    ({"namespace": "Team"}, "launch.namespace"),
    ({"shared_memory": "16GB"}, "launch.shared_memory"),
    ({"constraint": "h100"}, "launch.constraint"),
    ({"claims": {"Data_1": "/data"}}, "launch.claims"),
    ({"claims": {"data": "data"}}, "isn't an absolute path"),
    ({"claims": {"a": "/x", "b": "/x"}}, "mounted twice"),
    ({"claims": {"a": "/dev/shm"}}, "mounted twice"),
    ({"mounts": ("/a",)}, "launch.mounts"),
    ({"workdir": "run"}, "launch.workdir"),
    ({"env": {"PET_NNODES": "2"}}, "the scheduler sets PET_NNODES"),
]


@pytest.mark.parametrize(("site", "text"), REFUSED)
@pytest.mark.parametrize("kind", KINDS)
def test_a_setting_that_the_server_would_refuse_is_refused_here(kind, site, text):
    with pytest.raises(UserError, match="launch") as caught:
        write(job(kubernetes=kind, **site))
    assert text in str(caught.value)


def test_keys_without_a_word_here_are_named_with_the_reason():
    written = write(job(partition="gpu", account="a", modules=("cuda",), agent="rank"))
    assert written.unused.keys() == {"partition", "account", "modules", "agent"}
    assert all(written.unused.values())

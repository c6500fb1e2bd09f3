"""Two pods on this machine: the manifest's own commands, as the kubelet would start them; one is to leave."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.runs import TESTS, assert_same_run, end, events, merge, run, run_data, steps_done, wait_for, write_run

from scalewright.launch.job import LaunchJob
from scalewright.launch.targets.kubernetes import write
from scalewright.spec.launch import LaunchSpec

LAYOUT = {"devices": 4, "zero_stage": 3, "micro_batch": 2}


def commands(folder: Path, run_file: Path, kind: str, port: int) -> list[tuple[list[str], dict[str, str]]]:
    """Each pod's command and variables, with what its controller and the kubelet put in."""
    site = LaunchSpec(
        container="image", python=sys.executable, interface="lo", port=port, env={"OMP_NUM_THREADS": "1"},
        workdir=str(folder), kubernetes=kind,
    )  # fmt: skip
    (text,) = write(LaunchJob("tiny", 2, 2, site, str(run_file), device="cpu")).files.values()
    bodies = {body["kind"]: body for body in yaml.safe_load_all(text)}
    pods = []
    for index in range(2):
        given = variables_of(kind, index, port)
        container = container_of(bodies, index)
        words = [word.replace("tiny-node-0-0.tiny", "127.0.0.1") for word in container["command"]]
        for name, value in given.items():
            words = [word.replace(f"$({name})", value) for word in words]
        pods.append((words, given | {v["name"]: v["value"] for v in container["env"]}))
    return pods


def variables_of(kind: str, index: int, port: int) -> dict[str, str]:
    """What the controller of a kind sets in a pod (torch.go, envvar.go; the Job controller)."""
    if kind == "pytorchjob":
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        return {**place, "WORLD_SIZE": "4", "RANK": str(index), "PET_NPROC_PER_NODE": "2", "PET_NNODES": "2"}
    if kind == "trainjob":
        place = {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(port), "PET_NODE_RANK": str(index)}
        return {**place, "PET_NNODES": "2", "PET_NPROC_PER_NODE": "2", "JOB_COMPLETION_INDEX": str(index)}
    return {"JOB_COMPLETION_INDEX": str(index)}


def container_of(bodies: dict[str, Any], index: int) -> Any:
    """The container that a manifest gives a pod."""
    if "PyTorchJob" in bodies:
        replicas = bodies["PyTorchJob"]["spec"]["pytorchReplicaSpecs"]
        return replicas["Worker" if index else "Master"]["template"]["spec"]["containers"][0]
    if "TrainJob" in bodies:
        return bodies["TrainJob"]["spec"]["trainer"]
    job = bodies["JobSet"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    return job["template"]["spec"]["containers"][0]


def start(folder: Path, run_file: Path, kind: str) -> list[subprocess.Popen[str]]:
    """The pods of an attempt."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    base = {**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    return [
        subprocess.Popen(
            words, cwd=folder, env=base | variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )
        for words, variables in commands(folder, run_file, kind, port)
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "code"), [("jobset", 75), ("trainjob", 75), ("pytorchjob", 138)])
def test_a_pod_that_is_asked_to_leave_stops_all_and_the_next_attempt_goes_on(tmp_path, kind, code):
    base = {"layout": LAYOUT, "checkpoint": {"at_end": True}, "train": {"steps": 12}}
    control = run(run_data(tmp_path, **base, out_dir=str(tmp_path / "control"))).out_dir
    slow = merge(base, {"loss": {"python": "parts:fragile", "pause": 0.2}})
    slow["launch"] = {"preflight": "warn"}  # both pods are this machine
    file = write_run(tmp_path, run_data(tmp_path, **slow))
    pods = start(tmp_path, file, kind)
    try:
        wait_for(lambda: steps_done(tmp_path / "out") >= 3 or pods[0].poll() is not None, 150, "three steps")
        pods[1].send_signal(signal.SIGTERM)
        said = [pod.communicate(timeout=120)[0] for pod in pods]
    finally:
        for pod in pods:
            end(pod)
    assert [pod.returncode for pod in pods] == [code, code], said
    stopped = steps_done(tmp_path / "out")
    assert 3 <= stopped < 12
    pods = start(tmp_path, file, kind)
    try:
        said = [pod.communicate(timeout=200)[0] for pod in pods]
    finally:
        for pod in pods:
            end(pod)
    assert [pod.returncode for pod in pods] == [0, 0], said
    assert [event["step"] for event in events(tmp_path / "out", "resume")] == [stopped]
    assert_same_run(tmp_path / "out", control)

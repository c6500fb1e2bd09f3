"""The pod of one node: a container that starts its ranks, with GPUs, volumes and shared memory.

limits     nvidia.com/gpu: ranks of the node   rdma/ib: 1   cpu, memory: where the site says so
volumes    /dev/shm (memory)   claims   folders of the machine
SIGTERM ── save_before_s ──► SIGKILL           the time in which ranks save
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from scalewright.launch.job import LaunchJob
from scalewright.launch.targets.container import environment, image, mounts
from scalewright.launch.targets.kubernetes.checks import GPU, quantity, resource
from scalewright.spec.common.shell import Expression, Word, line

LEAST_GRACE = 30  # seconds; Kubernetes' own default


def pod_spec(job: LaunchJob, container: dict[str, object], *, restarts: bool = False) -> dict[str, object]:
    """A pod's spec around its container. `restarts` false: the pod ends with its container."""
    spec: dict[str, object] = {} if restarts else {"restartPolicy": "Never"}
    spec["terminationGracePeriodSeconds"] = max(job.site.save_before_s, LEAST_GRACE)
    if job.site.constraint:
        labels = [text.partition("=") for text in job.site.constraint.split(",")]
        spec["nodeSelector"] = {name: value for name, _, value in labels}
    if job.device == "cuda":  # nodes with GPUs often refuse pods that don't say this
        spec["tolerations"] = [{"key": _gpu(job), "operator": "Exists", "effect": "NoSchedule"}]
    spec["containers"] = [container]
    spec["volumes"] = [volume for volume, _ in _volumes(job)]
    return spec


def container(job: LaunchJob, name: str, command: Sequence[Word]) -> dict[str, object]:
    """The container that starts a node's ranks."""
    return run_keys(job, name, command) | {"resources": resources(job)} | site_keys(job)


def run_keys(job: LaunchJob, name: str, command: Sequence[Word]) -> dict[str, object]:
    """A container's keys that a run sets: image, command, variables."""
    return {"name": name, "image": image(job), "command": in_shell(job, command), "env": variables(job)}


def site_keys(job: LaunchJob) -> dict[str, object]:
    """A container's keys that a site sets: where it works, what it may, what is mounted."""
    keys: dict[str, object] = {}
    if job.site.workdir:
        keys["workingDir"] = job.site.workdir
    if job.site.rdma:  # RDMA pins the memory that it transfers
        keys["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    keys["volumeMounts"] = [mount for _, mount in _volumes(job)]
    return keys


def variables(job: LaunchJob) -> list[dict[str, str]]:
    """The environment as Kubernetes lists it."""
    return [{"name": name, "value": kubelet(value)} for name, value in environment(job).items()]


def kubelet(word: Word) -> str:
    """A word of a command or a variable's value as the kubelet reads it: `$(NAME)` is expanded, `$$` is `$`.

    It would take a byte alone of a character beyond ASCII behind a `$`, too (expansion/expand.go).
    """
    if isinstance(word, Expression):
        return f"$({word.text.removeprefix('$')})"
    return re.sub(r"\$(?=[$(]|[^\x00-\x7f])", "$$", word)


def in_shell(job: LaunchJob, command: Sequence[Word]) -> list[str]:
    """The command, after the site's lines of shell if there are any; the agent stays process 1 (signals)."""
    if not job.site.setup:
        return [kubelet(word) for word in command]
    return ["bash", "-c", kubelet("\n".join(["set -e", *job.site.setup, f"exec {line(command)}", ""]))]


def resources(job: LaunchJob) -> dict[str, dict[str, str | int]]:
    """What a pod takes of its node; Kubernetes requests what is limited."""
    limits: dict[str, str | int] = {}
    if job.site.cpus_per_rank:
        limits["cpu"] = job.site.cpus_per_rank * job.per_node
    if job.site.memory:
        limits["memory"] = quantity(job.site.memory)
    if job.device == "cuda":
        limits[_gpu(job)] = job.per_node
    if job.site.rdma:
        name, count = resource(job.site.rdma)
        limits[name] = count
    return {"limits": limits}


def _gpu(job: LaunchJob) -> str:
    return job.site.gpu or GPU


def _volumes(job: LaunchJob) -> list[tuple[dict[str, object], dict[str, str]]]:
    """Every volume of the pod, and where it is mounted."""
    memory = {"medium": "Memory", "sizeLimit": job.site.shared_memory}
    found: list[tuple[dict[str, Any], str]] = [({"name": "shared-memory", "emptyDir": memory}, "/dev/shm")]
    for number, (claim, path) in enumerate(job.site.claims.items()):
        found.append(({"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": claim}}, path))
    for number, (outside, path) in enumerate(mounts(job.site)):
        found.append(({"name": f"host-{number}", "hostPath": {"path": outside, "type": "Directory"}}, path))
    return [(volume, {"name": volume["name"], "mountPath": path}) for volume, path in found]

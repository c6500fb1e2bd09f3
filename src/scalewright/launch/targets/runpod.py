"""`launch runpod`: the request that creates a RunPod pod (one node) or Instant Cluster (several).

    one node    POST https://api.runpod.io/v2/pods       gpu: {id, count}
    several     POST https://api.runpod.io/v2/clusters   compute: {gpuTypeId, gpuCountPerPod, podCount}

Keys as in RunPod's OpenAPI of its REST API v2 (beta), read 2026-11. RunPod starts a container again whenever it ends,
and charges until the pod is deleted: so the container starts the ranks again after 75, and waits after anything else.
"""

from __future__ import annotations

import json

from scalewright.launch.job import LaunchJob, Written
from scalewright.launch.targets.container import (
    BY_TORCHRUN,
    NO_MODULES,
    agent_command,
    check_all,
    dns_label,
    environment,
    gpus,
    image,
    lost,
    unused,
)
from scalewright.spec.common.shell import Expression, line, quote
from scalewright.spec.errors import Stopped, UserError

UNUSED = {
    "hosts": "RunPod chooses the machines", "modules": NO_MODULES, "agent": BY_TORCHRUN,
    "partition": "RunPod chooses the data center", "account": "the API key's account pays", "qos": "RunPod has none",
    "reservation": "RunPod has none here", "constraint": "launch.gpu names the machine",
    "exclude": "RunPod chooses the machines",
    "time_limit": "RunPod has none: at it, ranks save, leave, and are started again",
    "save_before_s": "RunPod has no notice", "namespace": "RunPod has none", "queue": "RunPod has none",
    "shared_memory": "RunPod sets it", "rdma": "an Instant Cluster has it", "cpus_per_rank": "they come with the GPUs",
    "memory": "it comes with the GPUs", "mounts": "launch.claims names a network volume", "options": "edit the request",
}  # fmt: skip
MOST_NODES = 250
URL = "https://api.runpod.io/v2"
# The key is the shell's: it is in no file.
CURL = (
    'exec curl --fail-with-body --header "Authorization: Bearer $RUNPOD_API_KEY" '
    "--header 'Content-Type: application/json' --data \"@$1\" {url}"
)
CLUSTER_INTERFACE = "ens1"  # of an Instant Cluster's inner network; eth0 reaches the internet only


def write(job: LaunchJob) -> Written:
    """The request of a job. Raises UserError for settings that RunPod would refuse."""
    check_all(job, _device, _nodes, _volume, gpus, image, environment)
    name = dns_label(job.name, 40)
    file = f"{name}.runpod.json"
    where = "clusters" if job.nodes > 1 else "pods"
    submit = ("sh", "-c", CURL.format(url=f"{URL}/{where}"), "runpod", file)
    notes = [
        f"{job.run_file} is read in {job.site.workdir or 'the working directory of the image'}",
        "RunPod charges until the pods are deleted, also when the run has ended",
        "the shell that sends the request needs RUNPOD_API_KEY",
        *lost(job, job.site.workdir, "pods", job.site.claims.values()),
    ]
    text = json.dumps(_request(job, name), indent=2) + "\n"
    return Written({file: text}, submit, unused(job.site, UNUSED), tuple(notes))


def _device(job: LaunchJob) -> None:
    if job.device != "cuda":
        raise UserError("RunPod's pods here have GPUs", "device: cpu", "use another target, or device: cuda")


def _nodes(job: LaunchJob) -> None:
    if job.nodes > MOST_NODES:
        raise UserError(f"{job.nodes} nodes", "launch.nodes", f"a cluster has {MOST_NODES} at most")


def _volume(job: LaunchJob) -> None:
    if len(job.site.claims) > 1:
        raise UserError("RunPod mounts one network volume", "launch.claims", "name one: VOLUME_ID: /workspace")


def _request(job: LaunchJob, name: str) -> dict[str, object]:
    request: dict[str, object] = {"name": name}
    if job.nodes > 1:
        compute = {"gpuTypeId": gpus(job), "gpuCountPerPod": job.per_node, "podCount": job.nodes}
        request |= {"type": "TRAINING", "compute": compute}
    else:
        request["gpu"] = {"id": gpus(job), "count": job.per_node}
    request["image"] = image(job)
    request["args"] = line(["bash", "-c", _script(job)])
    variables = environment(job)
    if job.nodes > 1:
        for library in ("GLOO", "NCCL"):
            variables.setdefault(f"{library}_SOCKET_IFNAME", CLUSTER_INTERFACE)
    request["env"] = dict(sorted(variables.items()))
    if job.site.claims:
        volume, path = next(iter(job.site.claims.items()))
        request["mounts"] = {"network": [{"volumeId": volume, "path": path}]}
    return request


def _script(job: LaunchJob) -> str:
    if job.nodes > 1:
        port = None if job.site.port else Expression("$PRIMARY_PORT")
        command = agent_command(job, Expression("$NODE_RANK"), Expression("$PRIMARY_ADDR"), port=port)
    else:
        command = agent_command(job, "0", "127.0.0.1")
    folder = [f"cd {quote(job.site.workdir)}"] if job.site.workdir else []
    again = f"while {line(command)}; [ $? = {Stopped.exit_code} ]; do sleep 5; done"
    return "; ".join([*folder, *job.site.setup, again, "sleep infinity"])

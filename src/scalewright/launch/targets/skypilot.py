"""`launch skypilot`: a task for SkyPilot's managed jobs, which start it again when a spot machine goes.

    the ranks save and leave with 75 ──► recover_on_exit_codes ──► all nodes again, not counted
    a crash                          ──► max_restarts_on_errors times

SkyPilot numbers the nodes by SKYPILOT_NODE_RANK; the first of SKYPILOT_NODE_IPS is met by the others.
"""

from __future__ import annotations

from scalewright.launch.job import LaunchJob, Written
from scalewright.launch.targets import container
from scalewright.spec.common.shell import Expression, line
from scalewright.spec.errors import Stopped

UNUSED = {
    "hosts": "SkyPilot chooses the machines", "modules": "the machines are new: install what is needed by launch.setup",
    "agent": container.BY_TORCHRUN, "partition": "options: resources.infra=aws/us-east-1",
    "account": "the cloud's own credentials are used", "qos": "options: resources.priority=...",
    "reservation": "SkyPilot's own settings hold reservations", "constraint": "options: resources.instance_type=...",
    "exclude": "SkyPilot chooses the machines",
    "time_limit": "SkyPilot has none: at it, ranks save, leave, and are started again",
    "save_before_s": "the cloud says how long before it takes a machine",
    "namespace": "SkyPilot's Kubernetes settings hold it", "queue": "SkyPilot's Kubernetes settings hold it",
    "shared_memory": "SkyPilot sets it", "rdma": "options: resources.network_tier=best",
}  # fmt: skip


def write(job: LaunchJob) -> Written:
    """The task of a job. Raises UserError for settings that SkyPilot would refuse."""
    container.check_all(job, _resources, container.environment)
    name = container.dns_label(job.name, 40)
    file = f"{name}.sky.yaml"
    submit = ("sky", "jobs", "launch", "--name", name, file)
    comments = [
        f"{job.name}: {container.sizes(job)}. Written by `scalewright launch skypilot`.",
        f"Start:  {' '.join(submit)}",
        f"Logs:   sky jobs logs --name {name}",
    ]
    notes = [f"{job.run_file} and its data are read in launch.workdir, which is copied to each node"]
    copied = "~/sky_workdir"  # the working directory, on each node
    notes += container.lost(job, copied, "machines", job.site.claims.values())
    text = container.to_yaml([container.with_options(_task(job, name), job.site.options)], comments)
    check = ("sky", "launch", "--dryrun", "--yes", file)
    return Written({file: text}, submit, container.unused(job.site, UNUSED), tuple(notes), check)


def _task(job: LaunchJob, name: str) -> dict[str, object]:
    task: dict[str, object] = {"name": name, "num_nodes": job.nodes, "resources": _resources(job)}
    task["workdir"] = job.site.workdir or "."
    task["envs"] = container.environment(job)
    buckets = {path: source for source, path in job.site.claims.items() if "://" in source}
    if buckets:
        task["file_mounts"] = {path: {"source": url, "mode": "MOUNT"} for path, url in buckets.items()}
    volumes = {path: source for source, path in job.site.claims.items() if "://" not in source}
    if volumes:
        task["volumes"] = volumes
    command = container.agent_command(job, Expression("$SKYPILOT_NODE_RANK"), Expression("$master"))
    lines = ["set -e", *job.site.setup, 'master=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)']
    task["run"] = "\n".join([*lines, f"exec {line(command)}", ""])
    return task


def _resources(job: LaunchJob) -> dict[str, object]:
    resources: dict[str, object] = {}
    if job.device == "cuda":
        resources["accelerators"] = f"{container.gpus(job)}:{job.per_node}"
    if job.site.cpus_per_rank:
        resources["cpus"] = f"{job.site.cpus_per_rank * job.per_node}+"
    if job.site.memory:
        resources["memory"] = f"{container.gigabytes(job.site.memory)}+"
    if job.site.container:
        resources["image_id"] = f"docker:{container.image(job)}"
    recovery = {"max_restarts_on_errors": job.site.max_restarts, "recover_on_exit_codes": [Stopped.exit_code]}
    return {**resources, "job_recovery": recovery}

"""`launch dstack`: a distributed task for dstack, which starts it again when a machine is interrupted.

    DSTACK_NODE_RANK   the node's number          DSTACK_MASTER_NODE_IP   the address that the others meet

dstack retries on events, not on exit codes: `interruption` (a spot machine that went) always, `error` (any
exit code but 0, so 75 too) where `max_restarts` isn't 0; it limits both by a duration, not by a number.
"""

from __future__ import annotations

from scalewright.launch.job import LaunchJob, Written
from scalewright.launch.targets import container
from scalewright.spec.common.shell import Expression, Word, line
from scalewright.spec.errors import UserError

UNUSED = {
    "hosts": "dstack's fleets hold the machines", "modules": container.NO_MODULES, "agent": container.BY_TORCHRUN,
    "partition": "options: fleets=[NAME]", "account": "dstack's project is used", "qos": "options: priority=50",
    "constraint": "options: instance_types=[...]", "exclude": "dstack chooses the machines",
    "namespace": "dstack's backend holds it", "queue": "dstack's backend holds it",
    "rdma": "dstack's cluster fleets set up the network",
}  # fmt: skip
RETRY_FOR = "1d"  # how long dstack tries to get machines again


def write(job: LaunchJob) -> Written:
    """The task of a job. Raises UserError for settings that dstack would refuse."""
    container.check_all(job, container.image, container.environment, _resources, _volumes)
    name = container.dns_label(job.name, 40)  # dstack: ^[a-z][a-z0-9-]{1,40}$
    file = f"{name}.dstack.yml"
    submit = ("dstack", "apply", "--detach", "-f", file)
    comments = [
        f"{job.name}: {container.sizes(job)}. Written by `scalewright launch dstack`.",
        f"Start:  {' '.join(submit)}",
        f"Logs:   dstack logs {name}",
    ]
    notes = [f"{job.run_file} is read in {job.site.workdir or 'the working directory of the image'}"]
    notes += container.lost(job, job.site.workdir, "machines", container.kept_folders(job.site))
    if not job.site.max_restarts:
        notes.append("dstack takes ranks that saved and left (75) for failed: launch.max_restarts starts them again")
    text = container.to_yaml([container.with_options(_task(job, name), job.site.options)], comments)
    return Written({file: text}, submit, container.unused(job.site, UNUSED), tuple(notes))


def _task(job: LaunchJob, name: str) -> dict[str, object]:
    task: dict[str, object] = {"type": "task", "name": name, "nodes": job.nodes, "image": container.image(job)}
    if job.site.workdir:
        task["working_dir"] = job.site.workdir
    task["env"] = container.environment(job)
    master: Word = Expression("$DSTACK_MASTER_NODE_IP") if job.nodes > 1 else "127.0.0.1"
    command = line(container.agent_command(job, Expression("$DSTACK_NODE_RANK"), master))
    if "$$" in command or "${{" in command:  # dstack's own: `$$` is a dollar sign, `${{ }}` a value
        command = command.replace("$", "$$")
    task["commands"] = [*job.site.setup, command]
    task["resources"] = _resources(job)
    if volumes := _volumes(job):
        task["volumes"] = volumes
    events = ["no-capacity", "interruption", *(["error"] if job.site.max_restarts else [])]
    task["retry"] = {"on_events": events, "duration": RETRY_FOR}
    if job.site.limit_s:
        task["max_duration"] = f"{job.site.limit_s - job.site.save_before_s}s"
    task["stop_duration"] = f"{job.site.save_before_s}s"
    if job.site.reservation:
        task["reservation"] = job.site.reservation
    return task


def _volumes(job: LaunchJob) -> list[str]:
    for source in job.site.claims:
        if ":" in source:
            raise UserError(f"{source} is no volume of dstack's", "launch.claims", "name one: VOLUME: /data")
    return [f"{source}:{path}" for source, path in [*job.site.claims.items(), *container.mounts(job.site)]]


def _resources(job: LaunchJob) -> dict[str, object]:
    resources: dict[str, object] = {}
    if job.device == "cuda":
        resources["gpu"] = f"{container.gpus(job)}:{job.per_node}"
    if job.site.cpus_per_rank:
        resources["cpu"] = f"{job.site.cpus_per_rank * job.per_node}.."
    if job.site.memory:
        resources["memory"] = f"{container.gigabytes(job.site.memory)}GB.."
    resources["shm_size"] = f"{container.gigabytes(job.site.shared_memory)}GB"
    return resources

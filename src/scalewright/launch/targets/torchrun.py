"""`launch torchrun`: a script to be run on every machine, with the machine's number.

node-a$ bash tiny.torchrun.sh 0        one machine: bash tiny.torchrun.sh
node-b$ bash tiny.torchrun.sh 1
"""

from __future__ import annotations

from scalewright.launch.job import LaunchJob, Written
from scalewright.launch.targets.container import unused
from scalewright.launch.targets.script import PORT, file_name, head, node_command, prepare, standalone_command, text_of
from scalewright.spec.common.shell import Expression, command
from scalewright.spec.errors import UserError

OF_SCHEDULERS = ("partition", "account", "qos", "reservation", "constraint", "exclude", "memory", "gpu", "options")
UNUSED = {
    "agent": "torchrun starts the ranks of its machine",
    **dict.fromkeys(OF_SCHEDULERS, "there is no scheduler"),
    **dict.fromkeys(("container", "mounts"), "start the script in the container"),
    **dict.fromkeys(("namespace", "queue", "claims", "rdma"), "a word of Kubernetes"),
}


def write(job: LaunchJob) -> Written:
    """The script of a job. Raises UserError for several machines without the first one's name."""
    file, site = f"{file_name(job)}.torchrun.sh", job.site
    if job.nodes == 1:
        lines = [*head(job, "torchrun"), "", *prepare(job), "", command(["exec", *standalone_command(job)])]
        return Written({file: text_of(lines)}, ("bash", file), unused(site, UNUSED))
    if not site.hosts:
        what = f"the first of {job.nodes} machines has no name"
        raise UserError(what, "launch.hosts", "give it: launch.hosts=[node-a]")
    names = [*site.hosts, *(f"machine {number}" for number in range(len(site.hosts), job.nodes))]
    usage = [f"On {name}:  bash {file} {number}" for number, name in enumerate(names[:4])]
    usage += ["..."] if job.nodes > 4 else []
    words = node_command(job, Expression("$number"), site.hosts[0], str(site.port or PORT))
    number = f'number=${{1:?"the machine\'s number, 0 to {job.nodes - 1}"}}'
    lines = [*head(job, "torchrun", usage), "", number, *prepare(job), "", command(["exec", *words])]
    notes = (f"{job.run_file}, its data and {job.folder} are read on every machine under the same paths",)
    return Written({file: text_of(lines)}, (), unused(site, UNUSED), notes)

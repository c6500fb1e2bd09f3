"""`launch ssh`: one script here, which starts the ranks of every host and ends them all when it ends.

this script ──ssh──► host 0: torchrun ─► ranks        (launch/over_ssh.py)
            ──ssh──► host 1: torchrun ─► ranks
"""

from __future__ import annotations

from scalewright.launch.job import LaunchJob, Written
from scalewright.launch.targets.container import unused
from scalewright.launch.targets.script import PORT, file_name, head, node_command, prepare, text_of
from scalewright.launch.targets.torchrun import UNUSED as NO_SCHEDULER
from scalewright.spec.common.formatting import counted
from scalewright.spec.common.shell import Expression, command, line
from scalewright.spec.errors import UserError

UNUSED = {key: why for key, why in NO_SCHEDULER.items() if key != "options"}


def write(job: LaunchJob) -> Written:
    """The script of a job. Raises UserError for a list of hosts that is no host a node."""
    site, file = job.site, f"{file_name(job)}.ssh.sh"
    if len(site.hosts) != job.nodes:
        what = f"{counted(len(site.hosts), 'hosts')} for {counted(job.nodes, 'nodes')}"
        raise UserError(what, "launch.hosts", "name as many: launch.hosts=[node-a,node-b]")
    hosts = [f"--host={host}" for host in site.hosts]
    ssh = [f"--ssh={line(['ssh', *site.options])}"] if site.options else []
    words = [site.python, "-m", "scalewright.launch.over_ssh", *hosts, *ssh]
    node = node_command(job, Expression("$NODE"), site.hosts[0], str(site.port or PORT))
    usage = [
        "Ctrl-C, SIGTERM or SIGUSR1: the ranks save and leave with 75; they leave, too, when this script is",
        "killed. What follows runs on every host, in the same folder; NODE is its number.",
    ]
    text, end = text_of([*prepare(job), command(["exec", *node])]), "ON_EVERY_HOST"
    while end in text.split("\n"):  # a variable's value may have such a line
        end += "_"
    lines = [*head(job, "ssh", usage), "", f"exec {command(words)} <<'{end}'", text + end]
    folder = site.workdir or "the working directory"
    notes = (f"{folder} is on every host; {job.run_file}, its data and {job.folder} are shared by all",)
    return Written({file: text_of(lines)}, ("bash", file), unused(site, UNUSED), notes)

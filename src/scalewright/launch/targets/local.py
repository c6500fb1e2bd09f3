"""`launch local`: a script that trains on this machine; `train` starts its own workers there.

$ bash tiny.local.sh        setup, exports, then scalewright train run.yaml
"""

from __future__ import annotations

from scalewright.launch.job import LaunchJob, Written
from scalewright.launch.targets.container import unused
from scalewright.launch.targets.script import file_name, head, prepare, rank_command, text_of
from scalewright.launch.targets.torchrun import UNUSED as WITHOUT_A_SCHEDULER
from scalewright.spec.common.shell import command
from scalewright.spec.errors import UserError

UNUSED = {
    **WITHOUT_A_SCHEDULER,
    "agent": "`train` starts the ranks itself",
    **dict.fromkeys(("hosts", "port", "per_node"), "all ranks are on this machine"),
}


def write(job: LaunchJob) -> Written:
    """The script of a job; raises UserError for one of several machines."""
    if job.nodes > 1:
        how = "set launch.nodes=1, or use torchrun, ssh, mpi or slurm"
        raise UserError(f"{job.nodes} machines aren't this one", "launch local", how)
    file = f"{file_name(job)}.local.sh"
    lines = [*head(job, "local"), "", *prepare(job), "", command(["exec", *rank_command(job)])]
    return Written({file: text_of(lines)}, ("bash", file), unused(job.site, UNUSED))

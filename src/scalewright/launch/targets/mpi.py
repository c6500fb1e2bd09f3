"""`launch mpi`: mpirun of Open MPI, MPICH or Intel MPI, with a file of hosts for each.

    TERM, USR1, USR2, Ctrl-C ──► this script ──► out_dir/STOP ──► rank 0 sees it; all: one step, save, 75
    a second Ctrl-C          ──► mpirun, in a process group of its own: it would kill ranks soon after a
                                 TERM or a Ctrl-C

MASTER_ADDR is the first host; where the scheduler chose the hosts, rank 0 broadcasts its own (rendezvous.py).
"""

from __future__ import annotations

from scalewright.launch.job import LaunchJob, Written
from scalewright.launch.targets.container import unused
from scalewright.launch.targets.script import PORT, exports, file_name, head, prepare, rank_command, text_of
from scalewright.launch.targets.torchrun import UNUSED as NO_SCHEDULER
from scalewright.spec.common.shell import Expression, Word, command, quote

UNUSED = {
    **{key: why for key, why in NO_SCHEDULER.items() if key != "options"},
    "agent": "mpirun starts every rank",
    "max_restarts": "mpirun restarts no ranks",
}


def write(job: LaunchJob) -> Written:
    """The script of a job and, where the site names hosts, a file of them for each kind of mpirun."""
    name = file_name(job)
    file, hosts = f"{name}.mpi.sh", job.site.hosts[: job.nodes]
    meeting = {"MASTER_ADDR": hosts[0], "MASTER_PORT": str(job.site.port or PORT)} if hosts else {}
    lines = [*head(job, "mpi"), "", 'here=$(cd "$(dirname "$0")" && pwd)', *prepare(job, meeting), ""]
    lines += _start(job, name, [*exports(job), *meeting])
    files = {file: text_of(lines)}
    notes = [f"{job.run_file}, its data and {job.folder} are read on every host under the same paths"]
    if hosts:
        files[f"{name}.openmpi.hosts"] = text_of(f"{host} slots={job.per_node}" for host in hosts)
        files[f"{name}.mpich.hosts"] = text_of(f"{host}:{job.per_node}" for host in hosts)
    elif job.nodes > 1:
        notes.append("launch.hosts is empty: mpirun has the hosts from a scheduler, and ranks need mpi4py")
    return Written(files, ("bash", file), unused(job.site, UNUSED), tuple(notes))


def _start(job: LaunchJob, name: str, variables: list[str]) -> list[str]:
    """mpirun of either kind, in the background, so that this script hears signals meanwhile."""
    count, per_node, hosts = str(job.world), str(job.per_node), job.site.hosts
    listed: list[Word] = ["--hostfile", Expression(f"$here/{name}.openmpi.hosts")] if hosts else []
    passed = [word for variable in dict.fromkeys(variables) for word in ("-x", variable)]
    ours = [*job.site.options, *rank_command(job)]
    openmpi = ["mpirun", "-np", count, *listed, "--map-by", f"ppr:{per_node}:node", *passed, *ours]
    listed = ["-f", Expression(f"$here/{name}.mpich.hosts")] if hosts else []
    hydra = ["mpirun", "-np", count, *listed, "-ppn", per_node, *ours]
    return [
        "# Asked to stop, the ranks save and leave with 75. mpirun itself would give them two seconds.",
        f"out={quote(job.folder)}",
        """ask() { mkdir -p -- "$out" && touch -- "$out/STOP"; }""",
        "trap ask HUP TERM USR1 USR2",
        """trap 'ask; trap "kill \\$mpirun; ended=130" INT' INT # a second Ctrl-C ends it at once""",
        "",
        "set -m # a process group of its own, which a Ctrl-C in this terminal doesn't reach",
        "case $(mpirun --version 2>&1) in",
        f"*'Open MPI'* | *OpenRTE*)\n{command(openmpi)} </dev/null & ;;",
        f"*) # MPICH, Intel MPI\n{command(hydra)} </dev/null & ;;",
        "esac",
        "mpirun=$!",
        'until wait "$mpirun"; ! kill -0 "$mpirun" 2>/dev/null; do :; done # a signal ends the first wait',
        'code=0; wait "$mpirun" || code=$? # its own code, which the shell remembers',
        'rm -f -- "$out/STOP"',
        '[ "$code" = 75 ] || code=${ended:-$code}',
        'exit "$code"',
    ]

"""`launch slurm`: a batch script whose job saves before its time is over, is requeued, and goes on.

    USR1 (time limit), TERM (preemption) ──► all ranks: one step, save, 75 ──► srun: 75 ──► scontrol requeue
    a node is lost                       ──► Slurm requeues it (--requeue), and it resumes from the last save
                                             elastic: the others go on (--nodes=MIN-MAX --no-kill)

agent: torchrun   one task a node, which starts its ranks          agent: rank   a task a rank
"""

from __future__ import annotations

from scalewright.launch.job import LaunchJob, Written
from scalewright.launch.targets.container import unused
from scalewright.launch.targets.script import exports, file_name, head, node_command, prepare, rank_command, text_of
from scalewright.spec.common.shell import Expression, Word, command, quote

UNUSED = {
    "hosts": "Slurm chooses the nodes (options: --nodelist=...)",
    "namespace": "a word of Kubernetes",
    "queue": "a word of Kubernetes: the partition is launch.partition",
    "claims": "a word of Kubernetes: folders are mounted by launch.mounts",
    "rdma": "a word of Kubernetes",
}
SAVED = 75


def write(job: LaunchJob) -> Written:
    """The batch script of a job."""
    file = f"{file_name(job)}.slurm"
    lines = [*head(job, "slurm"), *(f"#SBATCH {option}" for option in _options(job)), ""]
    lines += [*prepare(job, _meeting(job)), "", *_start(job), "", *_after(job)]
    reasons = dict(UNUSED)
    if job.site.agent == "rank":
        reasons["max_restarts"] = "agent: rank has no torchrun, which would restart ranks"
    check = ("sbatch", "--test-only", file)
    return Written({file: text_of(lines)}, ("sbatch", file), unused(job.site, reasons), _notes(job), check)


def _options(job: LaunchJob) -> list[str]:
    """The job's own options, one a line."""
    site, torchrun = job.site, job.site.agent == "torchrun"
    kind = (site.gpu or "gpu").removeprefix("gpu:")
    gpus = f"gpu:{job.per_node}" if kind == "gpu" else f"gpu:{kind}:{job.per_node}"
    named = ("partition", "account", "qos", "reservation", "constraint", "exclude")
    pairs = {
        "job-name": file_name(job),
        "nodes": f"{job.least_nodes}-{job.nodes}" if _elastic(job) else job.nodes,
        "ntasks-per-node": 1 if torchrun else job.per_node,
        "cpus-per-task": _cpus(job),
        "gres": gpus if job.device == "cuda" else None,
        "mem": site.memory.rstrip("B").rstrip("i") if site.memory else None,
        "time": site.time_limit,
        "signal": f"USR1@{site.save_before_s}" if site.save_before_s else None,
        **{name: getattr(site, name) for name in named},
        "output": f"{file_name(job)}-%j.log",
        "open-mode": "append",
    }
    options = [f"--{name}={quote(str(value))}" for name, value in pairs.items() if value is not None]
    return [*options, *(["--no-kill"] if _elastic(job) else []), "--requeue", *site.options]


def _elastic(job: LaunchJob) -> bool:
    """Whether the job goes on with the nodes that are left; ranks that srun starts itself are all or none."""
    return job.least_nodes is not None and job.site.agent == "torchrun"


def _cpus(job: LaunchJob) -> int | None:
    if job.site.cpus_per_rank is None:
        return None
    return job.site.cpus_per_rank * (job.per_node if job.site.agent == "torchrun" else 1)


def _meeting(job: LaunchJob) -> dict[str, Word]:
    """Where ranks meet. A rank that srun started finds both by itself (launch/detect.py)."""
    if job.site.agent == "rank":
        return {"MASTER_PORT": str(job.site.port)} if job.site.port else {}
    return {
        "MASTER_ADDR": Expression('$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'),
        "MASTER_PORT": str(job.site.port) if job.site.port else Expression("$((20000 + SLURM_JOB_ID % 10000))"),
    }


def _start(job: LaunchJob) -> list[str]:
    # With 1, srun would end those that are slower to leave after a save, and one that is killed on its way
    # out hides the others' 75. After a crash ranks miss each other and leave by themselves.
    srun = ["srun", "--kill-on-bad-exit=0"]
    if (cpus := _cpus(job)) is not None:
        srun.append(f"--cpus-per-task={cpus}")  # which srun doesn't take from the job
    inside = _container(job)
    if job.site.agent == "rank":
        return ["code=0", f"{command([*srun, *inside, *rank_command(job)])} || code=$?"]
    if _elastic(job):
        srun.append("--no-kill")  # of the step, too, when a node is lost
    number, address, port, nodes = map(
        Expression, ("$SLURM_PROCID", "$MASTER_ADDR", "$MASTER_PORT", "$SLURM_JOB_NUM_NODES")
    )
    words = node_command(job, number, address, port, nodes=nodes)
    return [
        "# On every node; SLURM_PROCID is its number there.",
        f"node={quote(command(['exec', *words]))}",
        "code=0",
        f"{command([*srun, *inside, 'bash', '-c', Expression('$node')])} || code=$?",
    ]


def _container(job: LaunchJob) -> list[str]:
    """Options or words before the command: Pyxis' options of srun, or apptainer for an image of its own."""
    image, mounts = job.site.container, job.site.mounts
    if not image:
        return []
    if image.endswith(".sif"):
        gpus = ["--nv"] if job.device == "cuda" else []
        return ["apptainer", "exec", *gpus, *(f"--bind={mount}" for mount in mounts), image]
    words = [f"--container-image={image}"]
    if mounts:
        words.append(f"--container-mounts={','.join(mounts)}")
    return [*words, *([f"--container-workdir={job.site.workdir}"] if job.site.workdir else [])]


def _after(job: LaunchJob) -> list[str]:
    """What becomes of the job: 75 is the ranks' word for "saved, start me again"."""
    if any(option.startswith(("--array", "-a")) for option in job.site.options):
        comment = f"# {SAVED}: the ranks saved and left. The next task of the array goes on."
        return [comment, f'[ "$code" = {SAVED} ] && exit 0', 'exit "$code"']
    return [
        f"# {SAVED}: the ranks saved and left. The same job goes on from there, when its turn comes.",
        f'if [ "$code" = {SAVED} ]; then',
        '  scontrol requeue "$SLURM_JOB_ID"',
        "fi",
        'exit "$code"',
    ]


def _notes(job: LaunchJob) -> tuple[str, ...]:
    notes = [f"{job.run_file}, its data and {job.folder} are read on every node under the same paths"]
    if job.site.container and not job.site.container.endswith(".sif"):
        notes.append("launch.container needs Pyxis (srun --container-image)")
    if "MASTER_ADDR" not in exports(job) and job.site.agent == "torchrun":
        notes.append("nodes must reach each other by the names that Slurm has for them, or set launch.env.MASTER_ADDR")
    return tuple(notes)

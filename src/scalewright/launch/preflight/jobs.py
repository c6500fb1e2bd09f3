"""What a job asks its scheduler for, against what the run is: tasks, cores, GPUs, images, restarts."""

from __future__ import annotations

import re

from scalewright.launch.preflight.facts import Facts
from scalewright.launch.preflight.rule import RuleFailure, Subject

SUBJECT = Subject("jobs", at=("submit",))
SBATCH = "sbatch(1)"
OURS = ("--ntasks-per-node", "--ntasks", "--nodes", "-n", "-N", "--tasks-per-node")
CORES = ("--cpus-per-task", "-c", "--cpus-per-gpu", "--exclusive")
LONG_S = 3600
UNITS = {"": 1, "K": 10, "M": 20, "G": 30, "T": 40}


def option(facts: Facts, *names: str) -> tuple[str, str] | None:
    """The first of `launch.options` with one of these names: `--gres=gpu:8` as (--gres, gpu:8)."""
    for text in facts.site.options:
        name, _, value = text.partition("=") if text.startswith("--") else (text[:2], "", text[2:])
        name, _, spaced = name.partition(" ")
        if name in names:
            return name, (value or spaced).strip()
    return None


@SUBJECT.rule("tasks-in-options", "problem", "`launch.options` ask for other tasks than the layout has",
              f"{SBATCH}: --ntasks-per-node", needs=("Slurm",))  # fmt: skip
def tasks_in_options(facts: Facts) -> RuleFailure | None:
    given = option(facts, *OURS)
    if given is None:
        return None
    tasks = "a task a node, which starts its ranks" if facts.site.agent == "torchrun" else "a task a rank"
    what = f"{given[0]}={given[1]} replaces what the script asks for: {tasks}"
    return RuleFailure(what, "launch.options", "leave it out: launch.nodes, launch.per_node and launch.agent decide")


@SUBJECT.rule("gpu-a-task", "problem", "each task sees one GPU, and is to start several ranks",
              f"{SBATCH}: --gpus-per-task, --gpu-bind", needs=("Slurm", "GPUs", "several ranks a node"))  # fmt: skip
def gpu_a_task(facts: Facts) -> RuleFailure | None:
    given = option(facts, "--gpus-per-task", "--gpu-bind")
    if given is None or facts.site.agent != "torchrun" or given[1] in (str(facts.place.per_node), "none"):
        return None
    what = f"{given[0]}={given[1]} binds GPUs to a node's one task, which starts {facts.place.per_node} ranks"
    return RuleFailure(what, "launch.options", "leave it out, or set launch.agent=rank")


@SUBJECT.rule("gpus-and-ranks", "problem", "a node's GPUs aren't as many as its ranks",
              f"{SBATCH}: --gres, --gpus-per-node", needs=("Slurm", "GPUs"))  # fmt: skip
def gpus_and_ranks(facts: Facts) -> RuleFailure | None:
    given = option(facts, "--gres", "--gpus-per-node", "-G", "--gpus")
    if given is None or (given[0] == "--gres" and not given[1].startswith("gpu")):
        return None
    count = re.search(r"(\d+)(\(.*\))?$", given[1])
    ranks = facts.place.world if given[0] in ("-G", "--gpus") else facts.place.per_node
    if count is not None and int(count[1]) == ranks:
        return None
    what = f"{given[0]}={given[1]} for {ranks} ranks"
    return RuleFailure(what, "launch.options", "leave it out: launch.gpu names the kind, launch.per_node the number")


@SUBJECT.rule("one-core-a-task", "warn", "a task that starts all ranks of a node may get one core",
              f"{SBATCH}: --cpus-per-task (one by default)",
              needs=("Slurm", "GPUs", "several ranks a node"))  # fmt: skip
def one_core_a_task(facts: Facts) -> RuleFailure | None:
    if facts.site.cpus_per_rank is not None or option(facts, *CORES) or facts.site.agent != "torchrun":
        return None
    what = f"no cores are asked for, and Slurm gives a task one, for {facts.place.per_node} ranks"
    return RuleFailure(what, "launch.cpus_per_rank", "set it, such as 8, unless the partition gives cores by GPU")


@SUBJECT.rule("outside-srun", "warn", "a job of several nodes, and this process is on one of them alone",
              "sbatch(1): the script runs on the first node", at=("node",))  # fmt: skip
def outside_srun(facts: Facts) -> RuleFailure | None:
    text = facts.environ.get("SLURM_JOB_NUM_NODES", "")
    if not text.isdigit() or int(text) < 2 or facts.place.starter not in ("none", "local"):
        return None
    if int(facts.environ.get("SLURM_STEP_NUM_TASKS") or 0) == 1:
        return None  # srun --ntasks=1, on purpose
    what = f"Slurm gave {text} nodes, and a run that srun doesn't start uses one of them"
    return RuleFailure(what, facts.where, "srun --ntasks-per-node=1 python -m scalewright train RUN.yaml uses all")


@SUBJECT.rule("never-resumes", "warn", "a job that is started again begins anew", f"{SBATCH}: --requeue",
              needs=("a run", "a scheduler"))  # fmt: skip
def never_resumes(facts: Facts) -> RuleFailure | None:
    if facts.run is None or facts.run.spec.resume != "never":
        return None
    what = "a job that saved and is started again sets its folder aside, and begins at step 0"
    return RuleFailure(what, "resume: never", "set resume: auto")


@SUBJECT.rule("restarts-without-saves", "warn", "restarts that lose everything", "torchrun docs: --max-restarts",
              needs=("a run",))  # fmt: skip
def restarts_without_saves(facts: Facts) -> RuleFailure | None:
    if not facts.site.max_restarts or facts.run is None or facts.run.spec.checkpoint.every:
        return None
    what = f"max_restarts {facts.site.max_restarts} begins at step 0 again: nothing is saved on the way"
    return RuleFailure(what, "launch.max_restarts", "set checkpoint.every")


@SUBJECT.rule("nothing-saved", "warn", "a job on several nodes or of hours saves nothing on the way",
              "docs/launch/slurm.md: a lost node; Kokolis et al. 2024, failures by the size of a job",
              needs=("a run",))  # fmt: skip
def nothing_saved(facts: Facts) -> RuleFailure | None:
    if facts.run is None or facts.run.spec.checkpoint.every or facts.site.max_restarts:
        return None
    if facts.place.nodes < 2 and (facts.site.limit_s or 0) < LONG_S:
        return None
    what = "nothing is saved on the way: a node that fails takes all of it along"
    return RuleFailure(what, "checkpoint.every: 0", "set it to the steps of half an hour or so")


@SUBJECT.rule("image-without-version", "warn", "an image that may be another one at the next start",
              "Kubernetes docs, Images: avoid :latest")  # fmt: skip
def image_without_version(facts: Facts) -> RuleFailure | None:
    image = facts.site.container or ""
    if not image or image.endswith((".sqsh", ".sif")) or image.startswith(("/", ".")) or "@sha256:" in image:
        return None
    tag = image.rpartition("/")[2].partition(":")[2]
    if tag not in ("", "latest"):
        return None
    what = f"{image} has no version: nodes, and the next start, may get another image"
    return RuleFailure(what, "launch.container", "name a tag, or the digest")


@SUBJECT.rule("small-pod-memory", "warn", "a pod's `/dev/shm` is small",
              "NCCL user guide, Troubleshooting: Shared memory",
              needs=("Kubernetes", "GPUs", "several ranks a node"))  # fmt: skip
def small_pod_memory(facts: Facts) -> RuleFailure | None:
    if _bytes(facts.site.shared_memory) >= 1 << 30:
        return None
    what = f"/dev/shm of {facts.site.shared_memory}, through which ranks of a pod pass data"
    return RuleFailure(what, "launch.shared_memory", "set it to 8Gi or more")


@SUBJECT.rule("pod-memory-is-shared", "problem", "a pod's `/dev/shm` may fill all its memory",
              "Kubernetes docs, Volumes: emptyDir in memory counts against the limit",
              needs=("Kubernetes",))  # fmt: skip
def pod_memory_is_shared(facts: Facts) -> RuleFailure | None:
    memory, shared = facts.site.memory, facts.site.shared_memory
    if memory is None or _bytes(memory) > _bytes(shared):
        return None
    what = f"a pod of {memory} has a /dev/shm of {shared}, which counts as its memory"
    return RuleFailure(what, "launch.memory", "raise it, or lower launch.shared_memory")


def _bytes(size: str) -> int:
    """`16Gi`, `512GB`, `0.5T` in bytes, a unit of 1000 taken as one of 1024."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)i?B?", size, re.IGNORECASE)
    return int(float(match[1]) * 2 ** UNITS[match[2].upper()]) if match else 0

"""Limits that shells, containers and schedulers set: shared memory, locked memory, files, processes, cores.

They hold for a login as for a rank, and differ between the two: look where ranks run.
"""

from __future__ import annotations

from scalewright.launch.preflight.facts import Facts
from scalewright.launch.preflight.rule import RuleFailure, Subject
from scalewright.spec.common.formatting import counted

SUBJECT = Subject("limits", at=("node",))
MIB, GIB = 1 << 20, 1 << 30
FEW_FILES = 4096  # data, libraries, and a connection to each member of each group
FILES_A_RANK = 4  # connections to each rank of the world, over its groups
LOCKED = GIB  # what NCCL registers of the host's memory stays below
THREADS = 128  # of a rank: autograd, NCCL's proxies, watchdogs, data
SHARED, SHARED_FREE = GIB, 256 * MIB
BINDS_RANKS = ("Slurm", "MPICH", "Open MPI", "MVAPICH2", "LSF", "Flux")  # to cores of their own


@SUBJECT.rule("open-files", "warn", "few open files for the size of the world", "setrlimit(2): RLIMIT_NOFILE",
              needs=("several ranks",))  # fmt: skip
def open_files(facts: Facts) -> RuleFailure | None:
    most = facts.machine.limits.get("open_files")
    wanted = max(FEW_FILES, FILES_A_RANK * facts.place.world)
    if most is None or most >= wanted:
        return None
    what = f"at most {most} open files, and {counted(facts.place.world, 'ranks')} may need {wanted}"
    return RuleFailure(what, "ulimit -Hn", "raise it to 65536 (limits.conf, LimitNOFILE of the scheduler's daemon)")


@SUBJECT.rule("locked-memory", "problem", "little locked memory where InfiniBand is used",
              "Open MPI FAQ, OpenFabrics: limits of locked memory; ibv_reg_mr(3)",
              needs=("GPUs", "several nodes", "InfiniBand"))  # fmt: skip
def locked_memory(facts: Facts) -> RuleFailure | None:
    most = facts.machine.limits.get("locked_memory")
    if most is None or most >= LOCKED or facts.machine.locks_freely or facts.on("NCCL_IB_DISABLE"):
        return None
    what = f"at most {most // 1024} KiB of memory may be locked, and NCCL registers more with InfiniBand"
    return RuleFailure(what, "ulimit -l", "make it unlimited (docker --ulimit memlock=-1, LimitMEMLOCK of slurmd)")


@SUBJECT.rule("processes", "warn", "few processes and threads for the ranks of a node",
              "setrlimit(2): RLIMIT_NPROC; Linux docs, cgroup v2: pids.max",
              needs=("several ranks a node",))  # fmt: skip
def processes(facts: Facts) -> RuleFailure | None:
    most, ranks = facts.machine.limits.get("processes"), facts.place.per_node
    if most is None or most >= THREADS * ranks:
        return None
    what = f"at most {most} processes and threads, and {counted(ranks, 'ranks')} may have {THREADS * ranks}"
    return RuleFailure(what, "ulimit -u, pids.max", "raise it (docker --pids-limit, podPidsLimit of the kubelet)")


@SUBJECT.rule("file-size", "problem", "files may not be as large as a rank's part of a save",
              "setrlimit(2): RLIMIT_FSIZE", needs=("a run that saves",))  # fmt: skip
def file_size(facts: Facts) -> RuleFailure | None:
    most, size = facts.machine.limits.get("file_size"), facts.run.save_bytes if facts.run else None
    if most is None or size is None or most >= size / facts.place.world:
        return None
    part = size / facts.place.world / GIB
    what = f"files may have {most / GIB:.2f} GiB, and a rank's part of a save has {part:.2f}"
    return RuleFailure(what, "ulimit -f", "ulimit -f unlimited")


@SUBJECT.rule("address-space", "warn", "a limit of virtual memory where CUDA is used",
              "CUDA programming guide, Unified Virtual Address Space; setrlimit(2): RLIMIT_AS",
              needs=("GPUs",))  # fmt: skip
def address_space(facts: Facts) -> RuleFailure | None:
    most = facts.machine.limits.get("address_space")
    if most is None:
        return None
    what = f"at most {most / GIB:.0f} GiB of addresses, and CUDA reserves those of all GPUs and all memory"
    return RuleFailure(what, "ulimit -v", "ulimit -v unlimited")


@SUBJECT.rule("strict-overcommit", "warn", "the kernel refuses addresses beyond its memory",
              "Linux docs, Overcommit Accounting: mode 2", needs=("GPUs",))  # fmt: skip
def strict_overcommit(facts: Facts) -> RuleFailure | None:
    if facts.machine.overcommit != 2:
        return None
    what = "vm.overcommit_memory is 2: what CUDA and torch reserve counts as used, and starts may fail"
    return RuleFailure(what, "kernel", "sysctl vm.overcommit_memory=0")


@SUBJECT.rule("shared-memory", "warn", "a small `/dev/shm`", "NCCL user guide, Troubleshooting: Shared memory",
              needs=("GPUs", "several ranks a node"))  # fmt: skip
def shared_memory(facts: Facts) -> RuleFailure | None:
    space = facts.machine.shared_memory
    if space is None or space.total >= SHARED:
        return None
    what = f"/dev/shm has {space.total // MIB} MiB, through which ranks of a node pass data"
    return RuleFailure(what, "container", "start it with --shm-size=8g or --ipc=host, pods with a volume of memory")


@SUBJECT.rule("shared-memory-full", "warn", "a full `/dev/shm`", "NCCL user guide, Troubleshooting: Shared memory",
              needs=("GPUs", "several ranks a node"))  # fmt: skip
def shared_memory_full(facts: Facts) -> RuleFailure | None:
    space = facts.machine.shared_memory
    if space is None or space.total < SHARED or space.free >= SHARED_FREE:
        return None
    what = f"/dev/shm has {space.free // MIB} MiB left of {space.total // MIB}"
    return RuleFailure(what, "/dev/shm", "remove what killed runs left there: nccl-*, torch_*, sem.*")


@SUBJECT.rule("few-cores", "warn", "fewer cores than ranks on a node",
              "sbatch(1): --cpus-per-task; Kubernetes docs: resource limits",
              needs=("GPUs", "several ranks a node"))  # fmt: skip
def few_cores(facts: Facts) -> RuleFailure | None:
    cores, ranks = facts.machine.cores, facts.place.per_node
    if cores is None or cores >= ranks or facts.place.starter in BINDS_RANKS:
        return None
    what = f"{counted(ranks, 'ranks')} share {counted(cores, 'cores')}: each GPU waits for its host"
    return RuleFailure(what, "cores", "ask for more: --cpus-per-task (launch.cpus_per_rank), cpu of a pod")


@SUBJECT.rule("threads-over-cores", "warn", "more threads than cores on a node",
              "OpenMP specification: OMP_NUM_THREADS; torchrun sets 1 for this reason",
              needs=("GPUs", "several ranks a node"))  # fmt: skip
def threads_over_cores(facts: Facts) -> RuleFailure | None:
    text, cores, ranks = facts.environ.get("OMP_NUM_THREADS", ""), facts.machine.cores, facts.place.per_node
    if not text.isdigit() or cores is None or int(text) * ranks <= cores or int(text) == 1:
        return None
    if facts.place.starter in BINDS_RANKS:
        return None
    what = f"OMP_NUM_THREADS={text} for each of {ranks} ranks on {counted(cores, 'cores')}"
    return RuleFailure(what, facts.where, f"export OMP_NUM_THREADS={max(1, cores // ranks)}")

"""The starters of processes, as a table of the variables that each one sets; the innermost stand first.

    a process a rank    torchrun, Ray Train, mpirun of five makers, srun, jsrun, flux run
    a process a node    Kubeflow 2 and 1, JobSet, LeaderWorkerSet, SkyPilot, dstack, RunPod

tests/launch/environments holds an environment of each. Schedulers' variables of a job and its restarts stand below.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from scalewright.spec.errors import UserError

Names = tuple[str, ...]  # of variables; the first one that is set counts


@dataclass(frozen=True)
class Starter:
    """A row of the table."""

    name: str
    rank: Names
    world: Names
    local_rank: Names = ()
    local_world: Names = ()
    marks: Names = ()  # set by this starter alone: all of them are needed
    unless: Names = ()  # set by another starter that means something else by the same names
    agents: str = ""  # the number of its own processes that start ranks, one a node
    nests: bool = False  # it may start ranks inside a task of another starter, one task a node
    waits: bool = False  # it is its ranks' parent until they end
    node: bool = False  # a process stands for a node, and may start its ranks
    broadcasts: bool = False  # by MPI, rank 0 can tell the others where to meet (rendezvous.py)
    host: Names = ()  # where ranks meet, where MASTER_ADDR isn't set
    port: Names = ()
    port_of: Names = ()  # the number of the job, which a port is made from
    how: str = "export MASTER_ADDR=<first host> MASTER_PORT=29500 before the launch"
    one_a_node: str = ""  # its command for one process a node
    alone: bool = False  # its rank may be set without its world, or the other way, and mean nothing


RANK, WORLD, LOCAL = ("RANK",), ("WORLD_SIZE",), ("LOCAL_RANK",)
BY_HAND = "RANK and WORLD_SIZE"  # and LOCAL_RANK: a script's own, or another launcher's

# Sources: the manuals of srun(1) and mpirun, torch.distributed.run, Hydra's and PALS' mpiexec(1), jsrun(1),
# flux-environment(7); kubeflow/trainer torch.go, kubeflow/training-operator envvar.go, sigs.k8s.io/lws
# pod labels, and SkyPilot's, dstack's and RunPod's pages on their variables; read in November 2026.
STARTERS = (
    Starter("torchrun", RANK, WORLD, LOCAL, ("LOCAL_WORLD_SIZE",), ("TORCHELASTIC_RUN_ID", "LOCAL_RANK"),
            agents="GROUP_WORLD_SIZE", nests=True, waits=True),
    Starter("Ray Train", RANK, WORLD, LOCAL, ("LOCAL_WORLD_SIZE",), ("ACCELERATE_TORCH_DEVICE", "LOCAL_RANK"),
            nests=True),
    Starter(BY_HAND, RANK, WORLD, LOCAL, ("LOCAL_WORLD_SIZE",), ("LOCAL_RANK",), nests=True),
    Starter("Open MPI", ("OMPI_COMM_WORLD_RANK",), ("OMPI_COMM_WORLD_SIZE",), ("OMPI_COMM_WORLD_LOCAL_RANK",),
            ("OMPI_COMM_WORLD_LOCAL_SIZE",), nests=True, broadcasts=True, waits=True,
            one_a_node="mpirun --map-by ppr:1:node"),
    Starter("MVAPICH2", ("MV2_COMM_WORLD_RANK",), ("MV2_COMM_WORLD_SIZE",), ("MV2_COMM_WORLD_LOCAL_RANK",),
            ("MV2_COMM_WORLD_LOCAL_SIZE",), nests=True, broadcasts=True, waits=True, one_a_node="mpirun_rsh -ppn 1"),
    Starter(  # Intel MPI's and MPICH's Hydra; PALS of HPE Cray beside its own names
        "MPICH", ("PMI_RANK", "PALS_RANKID"), ("PMI_SIZE", "PALS_NRANKS"),
        ("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID"),
        ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE"), nests=True, broadcasts=True, waits=True,
        one_a_node="mpiexec -ppn 1",
    ),
    Starter("Slurm", ("SLURM_PROCID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), ("SLURM_LOCALID",),
            ("SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"), ("SLURM_STEP_ID",), waits=True,
            host=("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"),
            port_of=("SLURM_JOB_ID", "SLURM_JOBID"), one_a_node="srun --ntasks-per-node=1", alone=True),
    Starter("LSF", ("JSM_NAMESPACE_RANK",), ("JSM_NAMESPACE_SIZE",), ("JSM_NAMESPACE_LOCAL_RANK",),
            ("JSM_NAMESPACE_LOCAL_SIZE",), host=("LSB_MCPU_HOSTS",), port_of=("LSB_JOBID",), one_a_node="jsrun -r 1"),
    Starter("Flux", ("FLUX_TASK_RANK",), ("FLUX_JOB_SIZE",), ("FLUX_TASK_LOCAL_ID",),
            how="export MASTER_ADDR=$(flux hostlist --nth=0 local) MASTER_PORT=29500 in the job's script",
            one_a_node="flux run --tasks-per-node=1", alone=True),
    Starter(  # also of a torchrun that its PET_ variables would configure
        "Kubeflow Trainer 2", ("PET_NODE_RANK",), ("PET_NNODES",), node=True, host=("PET_MASTER_ADDR",),
        port=("PET_MASTER_PORT",),
    ),
    Starter(  # JobSet's examples for PyTorch set the same four
        "Kubeflow Trainer 1", RANK, WORLD, node=True, unless=("LOCAL_RANK", "PET_NODE_RANK"),
    ),
    Starter("an indexed Job", ("JOB_COMPLETION_INDEX",), ("NNODES", "NUM_NODES"), node=True, alone=True),
    Starter("LeaderWorkerSet", ("LWS_WORKER_INDEX",), ("LWS_GROUP_SIZE",), node=True, host=("LWS_LEADER_ADDRESS",)),
    Starter("SkyPilot", ("SKYPILOT_NODE_RANK",), ("SKYPILOT_NUM_NODES",), node=True, host=("SKYPILOT_NODE_IPS",)),
    Starter("dstack", ("DSTACK_NODE_RANK",), ("DSTACK_NODES_NUM",), node=True, host=("DSTACK_MASTER_NODE_IP",)),
    Starter("RunPod", ("NODE_RANK",), ("NUM_NODES",), marks=("NUM_TRAINERS",), node=True, host=("PRIMARY_ADDR",),
            port=("PRIMARY_PORT",), alone=True),
)  # fmt: skip


def all_variables() -> frozenset[str]:
    """Every variable that makes a process a rank."""
    rows = ((*s.rank, *s.world, *s.local_rank, *s.local_world, *s.marks) for s in STARTERS)
    return frozenset({"MASTER_ADDR", "MASTER_PORT"}.union(*rows))


@dataclass(frozen=True)
class Source:
    """What one starter says of this process."""

    starter: Starter
    rank: int
    world: int
    local_rank: int
    local_world: int | None  # null: it doesn't say
    agents: int | None = None

    @property
    def words(self) -> str:
        """For an error."""
        here = f", {self.local_world} of them on this node" if (self.local_world or 1) > 1 else ""
        return f"{self.starter.name} says rank {self.rank} of {self.world}{here}"


def first_set(environ: Mapping[str, str], names: Names) -> str | None:
    """The value of the first of these variables that is set and not empty."""
    return next((environ[name] for name in names if environ.get(name)), None)


def number_of(environ: Mapping[str, str], names: Names) -> int | None:
    """The same as a number; raises UserError for one that isn't."""
    for name in names:
        if not environ.get(name):
            continue
        try:
            return int(environ[name])
        except ValueError:
            what = f"{name} is {environ[name]!r}, not a number"
            raise UserError(what, "environment", "unset it, or start with torchrun") from None
    return None


# scheduler, the job's number or name, restarts so far ("": it doesn't count them)
SCHEDULERS = (
    ("Slurm", "SLURM_JOB_ID", "SLURM_RESTART_COUNT"), ("LSF", "LSB_JOBID", ""), ("Flux", "FLUX_JOB_ID", ""),
    ("PBS", "PBS_JOBID", ""), ("SkyPilot", "SKYPILOT_TASK_ID", ""), ("dstack", "DSTACK_RUN_NAME", ""),
    ("Ray", "RAY_JOB_ID", ""), ("torchrun", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
)  # fmt: skip


def attempt_facts(environ: Mapping[str, str] | None = None) -> dict[str, str | int]:
    """`scheduler`, `job`, and `restarts` where it counts them; empty outside of any."""
    environ = os.environ if environ is None else environ
    name, job, restarts = next((row for row in SCHEDULERS if environ.get(row[1])), ("", "", ""))
    if not name:
        return {}
    count = environ.get(restarts, "0")  # Slurm sets it from the first restart on
    counted = {"restarts": int(count) if count.isdigit() else 0} if restarts else {}
    return {"scheduler": name, "job": environ[job], **counted}

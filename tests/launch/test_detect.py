"""Every starter's environment, as files: who started this process, and as which rank; contradictions."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewright.launch.detect import find_source
from scalewright.launch.rank import BROADCAST, find_context
from scalewright.launch.starters import STARTERS
from scalewright.spec.errors import UserError

FOLDER = Path(__file__).parent / "environments"
FILES = sorted(path.stem for path in FOLDER.glob("*.env"))


def read(name: str) -> tuple[dict[str, str], dict[str, str]]:
    """The variables of a file, and what its header expects of them."""
    lines = (FOLDER / f"{name}.env").read_text(encoding="utf-8").splitlines()
    (header,) = [line for line in lines if line.startswith("# expect: ")]
    expected = dict(word.split("=", 1) for word in header.removeprefix("# expect: ").split())
    pairs = (line.split("=", 1) for line in lines if line and not line.startswith("#"))
    return {key: value.replace("\\n", "\n") for key, value in pairs}, expected


@pytest.mark.parametrize("name", FILES)
def test_each_environment_is_understood(name: str) -> None:
    environ, expected = read(name)
    context = find_context(environ)
    if expected.get("alone") == "yes":
        assert context.alone
        return
    assert context.starter == expected["starter"].replace("+", " ")
    assert (context.rank, context.world) == (int(expected["rank"]), int(expected["world"]))
    assert context.local_rank == int(expected["local_rank"])
    assert context.local_world == int(expected.get("local_world", "1"))
    assert context.rendezvous == (BROADCAST if expected["at"] == "mpi" else f"tcp://{expected['at']}")
    assert context.whole_node == (expected.get("whole_node") == "yes")


def test_every_row_of_the_table_has_an_environment() -> None:
    tested = {read(name)[1].get("starter", "").replace("+", " ") for name in FILES}
    assert {starter.name for starter in STARTERS} <= tested


SRUN = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_NTASKS": "16",
    "SLURM_LOCALID": "5", "SLURM_STEP_NUM_TASKS": "16", "SLURM_STEP_TASKS_PER_NODE": "8(x2)",
    "SLURM_NODEID": "0", "SLURM_STEP_NODELIST": "n[1-2]",
}  # fmt: skip
ONE_A_NODE = {
    **SRUN, "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_NODEID": "1",
}  # fmt: skip
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none", "RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8",
    "GROUP_WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500",
}  # fmt: skip
TWO_AGENTS = {**TORCHRUN, "RANK": "11", "WORLD_SIZE": "16", "GROUP_WORLD_SIZE": "2"}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "8", "MASTER_ADDR": "n1",
}  # fmt: skip
PMI = {"PMI_RANK": "5", "PMI_SIZE": "16"}
EXPORTED = {"RANK": "0", "WORLD_SIZE": "16", "LOCAL_RANK": "0", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
SKYPILOT = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": "a\nb"}
POD = {"PET_NODE_RANK": "1", "PET_NNODES": "2", "PET_MASTER_ADDR": "p-0", "PET_MASTER_PORT": "29400"}

FITS = [
    ({**ONE_A_NODE, **TWO_AGENTS}, "torchrun", 11),
    ({**ONE_A_NODE, **MPIRUN}, "Open MPI", 3),  # mpirun's daemons are started by srun, one a node
    ({**SRUN, **PMI}, "Slurm", 5),  # srun --mpi=pmi2 sets both, and PMI has no local rank
    ({**SRUN, "RANK": "5", "WORLD_SIZE": "16", "LOCAL_RANK": "5"}, "Slurm", 5),
    ({**SKYPILOT, **TWO_AGENTS}, "torchrun", 11),
    ({**POD, **TWO_AGENTS, "PET_NNODES": "1:4"}, "torchrun", 11),  # an elastic job
    ({**POD, **SKYPILOT}, "Kubeflow Trainer 2", 1),
    (
        {**SRUN, **TORCHRUN, "SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
        "torchrun",
        3,
    ),
    ({**TORCHRUN, **SRUN, "SLURM_STEP_ID": str(0xFFFFFFFA)}, "torchrun", 3),  # in salloc's shell
    ({**ONE_A_NODE, "RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1"}, "RANK and WORLD_SIZE", 9),
    ({**ONE_A_NODE, **SKYPILOT}, "Slurm", 1),
]

CONTRADICT = [
    ({**SRUN, **TORCHRUN}, "torchrun says rank 3 of 8, 8 of them on this node", "--ntasks-per-node=1"),
    ({**SRUN, **TWO_AGENTS}, "Slurm says rank 5 of 16, 8 of them on this node", "a task per GPU"),
    ({**ONE_A_NODE, **TORCHRUN}, "Slurm says rank 1 of 2", "--nnodes=2 was left out"),
    ({**SKYPILOT, **TORCHRUN}, "SkyPilot says rank 1 of 2", "unset SKYPILOT_NODE_RANK"),
    ({**POD, **TORCHRUN}, "Kubeflow Trainer 2 says rank 1 of 2", "--nnodes=2 was left out"),
    ({**SRUN, **MPIRUN}, "Open MPI says rank 3 of 16", "Open MPI was started in each of several tasks"),
    ({**SRUN, **EXPORTED}, "RANK and WORLD_SIZE says rank 0 of 16", "unset RANK WORLD_SIZE"),
    ({**ONE_A_NODE, **EXPORTED, "WORLD_SIZE": "2"}, "Slurm says rank 1 of 2", "unset RANK WORLD_SIZE"),
    (
        {**SRUN, **TORCHRUN, "WORLD_SIZE": "1", "RANK": "0"},
        "torchrun says rank 0 of 1",
        "--ntasks-per-node=1",
    ),
    ({**POD, **SKYPILOT, "PET_NODE_RANK": "0"}, "SkyPilot says rank 1 of 2", "exported before"),
    ({**SRUN, **SKYPILOT}, "Slurm says rank 5 of 16", "exported before"),
]


@pytest.mark.parametrize(("environ", "starter", "rank"), FITS)
def test_starters_that_fit_into_each_other(environ: dict[str, str], starter: str, rank: int) -> None:
    source = find_source(environ)
    assert source is not None
    assert (source.starter.name, source.rank) == (starter, rank)


@pytest.mark.parametrize(("environ", "words", "cause"), CONTRADICT)
def test_starters_that_contradict_each_other(environ: dict[str, str], words: str, cause: str) -> None:
    with pytest.raises(UserError) as caught:
        find_source(environ)
    assert words in caught.value.what
    assert ", but around it " in caught.value.what  # both are printed
    assert cause in caught.value.how


def test_numbers_that_can_not_be() -> None:
    with pytest.raises(UserError, match="rank 9 of 8"):
        find_source({**TORCHRUN, "RANK": "9"})
    with pytest.raises(UserError, match="PET_NNODES is '1:4', not a number"):
        find_source({**POD, "PET_NNODES": "1:4"})


def test_steps_of_a_job_meet_at_ports_of_their_own() -> None:
    ports = {find_context({**SRUN, "SLURM_STEP_ID": str(step)}).rendezvous for step in range(50)}
    assert len(ports) == 50
    assert find_context(SRUN).rendezvous == "tcp://n1:20007"
    assert (
        find_context({**SRUN, "MASTER_ADDR": "head", "MASTER_PORT": "1234"}).rendezvous == "tcp://head:1234"
    )

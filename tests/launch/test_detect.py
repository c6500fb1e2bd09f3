"""Every starter's environment, as files: who started this process, as which rank; starters in each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.nested import MPIRUN, ONE_A_NODE, PMI, POD, RAY, SKYPILOT, SRUN, TORCHRUN, TWO_AGENTS
from scalewright.launch.detect import find_source
from scalewright.launch.rank import BROADCAST, find_context
from scalewright.launch.starters import STARTERS

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


FITS = [
    ({**ONE_A_NODE, **TWO_AGENTS}, "torchrun", 11),
    ({**ONE_A_NODE, **MPIRUN}, "Open MPI", 3),  # mpirun's daemons are started by srun, one a node
    ({**SRUN, **PMI}, "Slurm", 5),  # srun --mpi=pmi2 sets both, and PMI has no local rank
    ({**SRUN, "RANK": "5", "WORLD_SIZE": "16", "LOCAL_RANK": "5"}, "Slurm", 5),
    ({**SKYPILOT, **TWO_AGENTS}, "torchrun", 11),
    ({**POD, **TWO_AGENTS, "PET_NNODES": "1:4"}, "torchrun", 11),  # an elastic job
    ({**POD, **SKYPILOT}, "Kubeflow Trainer 2", 1),
    ({**SRUN, **TORCHRUN, "SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, "torchrun", 3),
    ({**TORCHRUN, **SRUN, "SLURM_STEP_ID": str(0xFFFFFFFA)}, "torchrun", 3),  # in salloc's shell
    ({**ONE_A_NODE, "RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1"}, "RANK and WORLD_SIZE", 9),
    ({**ONE_A_NODE, **SKYPILOT}, "Slurm", 1),
    ({**ONE_A_NODE, **RAY}, "Ray Train", 3),  # srun --ntasks-per-node=1 ray start
    ({**SRUN, "RANK": "0"}, "Slurm", 5),  # half of a set means nothing beside a whole one
    ({**POD, "RANK": "1", "WORLD_SIZE": "16"}, "Kubeflow Trainer 2", 1),  # an elastic PyTorchJob
    ({"JOB_COMPLETION_INDEX": "3", **POD, "PET_NODE_RANK": "1"}, "Kubeflow Trainer 2", 1),
]


@pytest.mark.parametrize(("environ", "starter", "rank"), FITS)
def test_starters_that_fit_into_each_other(environ: dict[str, str], starter: str, rank: int) -> None:
    source = find_source(environ)
    assert source is not None
    assert (source.starter.name, source.rank) == (starter, rank)


def test_steps_of_a_job_meet_at_ports_of_their_own() -> None:
    ports = {find_context({**SRUN, "SLURM_STEP_ID": str(step)}).rendezvous for step in range(50)}
    assert len(ports) == 50
    assert find_context(SRUN).rendezvous == "tcp://n1:20007"
    assert find_context({**SRUN, "MASTER_ADDR": "head", "MASTER_PORT": "1234"}).rendezvous == "tcp://head:1234"

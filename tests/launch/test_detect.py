"""Every starter's environment, as files: who started this process, as which rank; starters in each other.

Slurm's lists of nodes and tasks: by example, and against scontrol where that is installed.

Environments that contradict themselves: each message shows both sides, names the cause and what to do.
"""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from launch.nested import (
    DSTACK,
    EXPORTED,
    FLUX,
    HYDRA,
    INDEXED,
    JSRUN,
    LWS,
    MPIRUN,
    ONE_A_NODE,
    PMI,
    POD,
    RAY,
    RUNPOD,
    SKYPILOT,
    SRUN,
    TORCHRUN,
    TWO_AGENTS,
)
from scalewright.launch.detect import expand_counts, expand_hosts, find_source
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


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[1-3,07-09]", ["n1", "n2", "n3", "n07", "n08", "n09"]),
        ("gpu-a[01-02]-ib,login", ["gpu-a01-ib", "gpu-a02-ib", "login"]),
        ("r[1-2]n[8-10]", ["r1n8", "r1n9", "r1n10", "r2n8", "r2n9", "r2n10"]),
        ("n[098-101].site.org", ["n098.site.org", "n099.site.org", "n100.site.org", "n101.site.org"]),
        ("10.0.0.4", ["10.0.0.4"]),
        ("n[001-003,7]", ["n001", "n002", "n003", "n7"]),
        ("a[1-2]b[3-4]", ["a1b3", "a1b4", "a2b3", "a2b4"]),
        ("a[1,3]b[2,9]c[5]", ["a1b2c5", "a3b2c5", "a1b9c5", "a3b9c5"]),  # so scontrol has it
        ("n[1-2][3-4]", ["n13", "n14", "n23", "n24"]),
        ("[1-3],n1,n1", ["1", "2", "3", "n1", "n1"]),
        ("n[1-03,0-0]", ["n1", "n2", "n3", "n0"]),
        ("a[1-2]b[3-4]c", ["a1b3c", "a1b4c", "a2b3c", "a2b4c"]),
    ],
)
def test_hosts(text: str, hosts: list[str]) -> None:
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize(
    "text",
    [
        "n[1-3", "n1-3]", "n[]", "n[a-b]", "n[1-]", "n[-3]", "n[1-2-3]", "n[1,,2]", "n[3-1]", "n[1-70000]",
        "n[1-99999999999999]", "n1,,n2", ",n1", "n1,", "n 1", "n[[1-2]]", "n(1-2)[", "n[ 1-2]",
    ],
)  # fmt: skip
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="environment"):
        expand_hosts(text)


def test_no_list_is_no_host() -> None:
    assert expand_hosts("") == []


def test_counts() -> None:
    assert expand_counts("2(x3),1") == [2, 2, 2, 1]
    assert expand_counts("4") == [4]
    with pytest.raises(UserError, match="2x3"):
        expand_counts("2x3")


LISTS, A_CALL = 10_000, 200


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("scontrol") is None, reason="scontrol is not installed (slurm-wlm)")
def test_hosts_are_those_of_scontrol(tmp_path: Path) -> None:
    """10,000 random lists, 200 a call; scontrol needs no cluster for this, but a file of settings."""
    settings = tmp_path / "slurm.conf"
    settings.write_text("ClusterName=c\nSlurmctldHost=localhost\n")
    draw = random.Random(7)
    for _ in range(LISTS // A_CALL):
        text = ",".join(random_list(draw) for _ in range(A_CALL))
        done = subprocess.run(
            ["scontrol", "show", "hostnames", text],
            env={"SLURM_CONF": str(settings), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert expand_hosts(text) == done.stdout.split()


def random_list(draw: random.Random) -> str:
    """A name, or one with one to four brackets of one to three ranges; nothing after the last one."""
    prefix = draw.choice(["n", "gpu-", "rack3-node", "a.b-", "", "x_1-"])
    if draw.random() < 0.2:
        return f"{prefix}{draw.randint(0, 99)}"
    name, most = prefix, 12
    for number in range(draw.choice([1, 1, 1, 2, 2, 3, 4])):
        between = draw.choice(["n", "-", ".r", ""]) if number else ""
        name += f"{between}[{','.join(random_range(draw, most) for _ in range(draw.randint(1, 3)))}]"
        most = 3  # so that four of them don't make a million
    return name


def random_range(draw: random.Random, most: int) -> str:
    first, width = draw.choice([0, 7, 95, 998, draw.randint(0, 12_000)]), draw.choice([0, 2, 3, 4, 6])
    if draw.random() < 0.3:
        return f"{first:0{width}d}"
    return f"{first:0{width}d}-{first + draw.randint(0, most):0{draw.choice([0, width])}d}"


ONE_HOST = {**MPIRUN, "OMPI_COMM_WORLD_SIZE": "8"}  # all ranks on this node
HYDRA_HERE = {**HYDRA, "PMI_SIZE": "8"}
PODS_BY_RANK = {"RANK": "2", "WORLD_SIZE": "3", "MASTER_ADDR": "p-0"}  # Kubeflow 1: RANK counts pods

# what started it in what, its variables, words of both sides, the cause, what to do
NESTED = [
    ("torchrun in each task of srun", {**SRUN, **TORCHRUN},
     ("torchrun says rank 3 of 8, 8 of them on this node", "Slurm says rank 5 of 16"),
     "by srun with a task per GPU", "start one task a node (srun --ntasks-per-node=1)"),
    ("torchrun of two nodes in each task of srun", {**SRUN, **TWO_AGENTS},
     ("torchrun says rank 11 of 16", "Slurm says rank 5 of 16, 8 of them on this node"),
     "in each of several tasks of a node", "or leave torchrun out"),
    ("torchrun of one rank in each task of srun", {**SRUN, **TORCHRUN, "WORLD_SIZE": "1", "RANK": "0",
     "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
     ("torchrun says rank 0 of 1", "Slurm says rank 5 of 16"), "a task per GPU", "--ntasks-per-node=1"),
    ("torchrun without --nnodes in srun", {**ONE_A_NODE, **TORCHRUN},
     ("torchrun says rank 3 of 8", "Slurm says rank 1 of 2"),
     "--nnodes=2 was left out (torchrun has 1)", "unset SLURM_PROCID"),
    ("torchrun in each slot of mpirun", {**MPIRUN, **TORCHRUN},
     ("torchrun says rank 3 of 8", "Open MPI says rank 3 of 16, 8 of them on this node"),
     "in each of several tasks of a node", "mpirun --map-by ppr:1:node"),
    ("torchrun in each slot of Hydra", {**HYDRA, **TORCHRUN},
     ("torchrun says rank 3 of 8", "MPICH says rank 5 of 16"), "several tasks", "mpiexec -ppn 1"),
    ("torchrun in each task of jsrun", {**JSRUN, **TORCHRUN},
     ("torchrun says rank 3 of 8", "LSF says rank 5 of 16"), "several tasks", "jsrun -r 1"),
    ("torchrun without --nnodes in flux", {**FLUX, **TORCHRUN},
     ("torchrun says rank 3 of 8", "Flux says rank 5 of 16"), "--nnodes=16 was left out", "FLUX_TASK_RANK"),
    ("torchrun without --nnodes on SkyPilot", {**SKYPILOT, **TORCHRUN},
     ("torchrun says rank 3 of 8", "SkyPilot says rank 1 of 2"), "--nnodes=2", "unset SKYPILOT_NODE_RANK"),
    ("torchrun without --nnodes in a TrainJob", {**POD, **TORCHRUN},
     ("torchrun says rank 3 of 8", "Kubeflow Trainer 2 says rank 1 of 2"), "--nnodes=2",
     "unset PET_NODE_RANK"),
    ("torchrun without --nnodes on dstack", {**DSTACK, **TORCHRUN},
     ("torchrun says rank 3 of 8", "dstack says rank 1 of 2"), "--nnodes=2", "unset DSTACK_NODE_RANK"),
    ("torchrun without --nnodes on RunPod", {**RUNPOD, **TORCHRUN},
     ("torchrun says rank 3 of 8", "RunPod says rank 1 of 2"), "--nnodes=2", "unset NODE_RANK"),
    ("torchrun without --nnodes in a LeaderWorkerSet", {**LWS, **TORCHRUN},
     ("torchrun says rank 3 of 8", "LeaderWorkerSet says rank 1 of 2"), "--nnodes=2",
     "unset LWS_WORKER_INDEX"),
    ("mpirun in each task of srun", {**SRUN, **MPIRUN},
     ("Open MPI says rank 3 of 16", "Slurm says rank 5 of 16"),
     "Open MPI was started in each of several tasks", "srun --ntasks-per-node=1"),
    ("mpirun of one host in each task of srun", {**SRUN, **ONE_HOST},
     ("Open MPI says rank 3 of 8", "Slurm says rank 5 of 16"), "several tasks", "or leave Open MPI out"),
    ("mpirun of one host on each node of srun", {**ONE_A_NODE, **ONE_HOST},
     ("Open MPI says rank 3 of 8, 8 of them on this node", "Slurm says rank 1 of 2"),
     "on each node without the hosts of the others", "start it on one of them"),
    ("mpirun on each node of dstack", {**DSTACK, **ONE_HOST},
     ("Open MPI says rank 3 of 8", "dstack says rank 1 of 2"), "without the hosts", "unset DSTACK_NODE_RANK"),
    ("mpiexec in each pod of a TrainJob", {**POD, **HYDRA_HERE},
     ("MPICH says rank 5 of 8", "Kubeflow Trainer 2 says rank 1 of 2"), "without the hosts",
     "on one of them"),
    ("Ray's workers in each task of srun", {**SRUN, **RAY},
     ("Ray Train says rank 3 of 16", "Slurm says rank 5 of 16"),
     "Ray Train was started in each of several tasks", "srun --ntasks-per-node=1"),
    ("ranks exported in a profile, in srun", {**SRUN, **EXPORTED},
     ("RANK and WORLD_SIZE says rank 0 of 16", "Slurm says rank 5 of 16"),
     "exported before Slurm started its tasks", "unset RANK WORLD_SIZE"),
    ("ranks exported in a profile, a task a node", {**ONE_A_NODE, **EXPORTED, "WORLD_SIZE": "2"},
     ("RANK and WORLD_SIZE says rank 0 of 2", "Slurm says rank 1 of 2"), "exported before", "unset RANK"),
    ("ranks exported in a profile, in mpirun", {**MPIRUN, **EXPORTED},
     ("RANK and WORLD_SIZE says rank 0 of 16", "Open MPI says rank 3 of 16"), "exported before Open MPI",
     "unset RANK WORLD_SIZE"),
    ("ranks exported in a profile, in jsrun", {**JSRUN, **EXPORTED},
     ("RANK and WORLD_SIZE says rank 0 of 16", "LSF says rank 5 of 16"), "exported before LSF", "unset RANK"),
    ("variables of srun passed on by ssh to a pod", {**SRUN, **SKYPILOT},
     ("Slurm says rank 5 of 16", "SkyPilot says rank 1 of 2"), "exported before SkyPilot",
     "unset SLURM_PROCID SLURM_STEP_NUM_TASKS"),
    ("two clouds that disagree", {**POD, **SKYPILOT, "PET_NODE_RANK": "0"},
     ("Kubeflow Trainer 2 says rank 0 of 2", "SkyPilot says rank 1 of 2"), "exported before",
     "PET_NODE_RANK"),
    ("a pod's index, and another number for torchrun", {**INDEXED, **POD, "PET_NODE_RANK": "0"},
     ("Kubeflow Trainer 2 says rank 0 of 2", "an indexed Job says rank 1 of 2"), "exported before",
     "unset PET_NODE_RANK PET_NNODES"),
    ("a LeaderWorkerSet whose template sets PET_*", {**LWS, **POD, "PET_NODE_RANK": "0"},
     ("Kubeflow Trainer 2 says rank 0 of 2", "LeaderWorkerSet says rank 1 of 2"), "exported before",
     "PET_NNODES"),
]  # fmt: skip

# variables, what is wrong with them, what to do
IMPOSSIBLE = [
    ({"RANK": "3"}, "RANK is 3 and WORLD_SIZE isn't set", "unset RANK (exported in a profile?)"),
    ({"RANK": "3", "LOCAL_RANK": "3", "MASTER_ADDR": "n1"}, "RANK is 3 and WORLD_SIZE isn't set", "WORLD_SIZE"),
    ({"WORLD_SIZE": "8"}, "WORLD_SIZE is 8 and RANK isn't set", "set RANK, WORLD_SIZE, LOCAL_RANK"),
    ({"WORLD_SIZE": "8", "LOCAL_RANK": "1"}, "WORLD_SIZE is 8 and RANK isn't set", "unset WORLD_SIZE"),
    ({"LOCAL_RANK": "3"}, "LOCAL_RANK is 3 and RANK isn't set", "or unset it"),
    ({"OMPI_COMM_WORLD_RANK": "3"}, "OMPI_COMM_WORLD_SIZE isn't set", "Open MPI sets both"),
    ({"PMI_SIZE": "4"}, "PMI_SIZE is 4 and PMI_RANK isn't set", "MPICH sets both"),
    ({"PET_NNODES": "2", "PET_MASTER_ADDR": "p-0"}, "PET_NNODES is 2 and PET_NODE_RANK isn't set", "unset PET_"),
    ({"SKYPILOT_NODE_RANK": "1"}, "SKYPILOT_NUM_NODES isn't set", "pass the variables on"),
    ({"LWS_WORKER_INDEX": "1"}, "LWS_WORKER_INDEX is 1 and LWS_GROUP_SIZE isn't set", "LeaderWorkerSet sets"),
    ({**PODS_BY_RANK, "LOCAL_WORLD_SIZE": "3"}, "LOCAL_WORLD_SIZE is 3 and LOCAL_RANK isn't set", "LOCAL_RANK"),
    ({**POD, "RANK": "0", "WORLD_SIZE": "2"}, "RANK is 0 and PET_NODE_RANK is 1", "unset RANK and WORLD_SIZE"),
    ({**TORCHRUN, "RANK": "9"}, "torchrun says rank 9 of 8", "count from 0"),
    ({**TORCHRUN, "RANK": "8"}, "torchrun says rank 8 of 8", "count from 0"),
    ({**TORCHRUN, "RANK": "-1"}, "torchrun says rank -1 of 8", "count from 0"),
    ({**TORCHRUN, "WORLD_SIZE": "0", "RANK": "0"}, "torchrun says rank 0 of 0", "unset its variables"),
    ({**TORCHRUN, "LOCAL_RANK": "8"}, "torchrun says local rank 8 of 8", "count from 0"),
    ({**TORCHRUN, "LOCAL_RANK": "-1"}, "torchrun says local rank -1 of 8", "count from 0"),
    ({**TORCHRUN, "LOCAL_WORLD_SIZE": "16"}, "torchrun says 16 ranks on this node, of 8 in all", "correct them"),
    ({**TORCHRUN, "RANK": "x"}, "RANK is 'x', not a number", "start with torchrun"),
    ({**TORCHRUN, "WORLD_SIZE": "8.0"}, "WORLD_SIZE is '8.0', not a number", "unset it"),
    ({**POD, "PET_NNODES": "1:4"}, "PET_NNODES is '1:4', not a number", "unset it"),
    ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "8x2"}, "'8x2' is no list of tasks by node", "2(x3),1"),
    ({**SRUN, "SLURM_STEP_NODELIST": "n[1-", "SLURM_JOB_ID": "7"}, "'n[1-' is no list of nodes", "n[1-3]"),
    ({**TWO_AGENTS, "MASTER_PORT": "auto"}, "MASTER_PORT is 'auto', not a number", "unset it"),
    (
        {**TWO_AGENTS, "MASTER_ADDR": "n1:29500"},
        "MASTER_ADDR='n1:29500' is a host and a port",
        "MASTER_ADDR=n1 MASTER_PORT=29500",
    ),
    ({**TWO_AGENTS, "MASTER_ADDR": "tcp://n1"}, "is a host and a port", "MASTER_ADDR=n1 MASTER_PORT=29500"),
    ({**TWO_AGENTS, "MASTER_ADDR": "n[1-4]"}, "MASTER_ADDR='n[1-4]' is a list of hosts", "scontrol show"),
    ({**TWO_AGENTS, "MASTER_ADDR": "n1,n2"}, "is a list of hosts", "head -n 1"),
    (
        {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3"},
        "RANK and WORLD_SIZE started 8 ranks but MASTER_ADDR",
        "export MASTER_ADDR",
    ),
    (FLUX, "Flux started 16 ranks but MASTER_ADDR is not set", "flux hostlist"),
]


@pytest.mark.parametrize(("name", "environ", "sides", "cause", "how"), NESTED, ids=[row[0] for row in NESTED])
def test_starters_that_contradict_each_other(
    name: str, environ: dict[str, str], sides: tuple[str, str], cause: str, how: str
) -> None:
    with pytest.raises(UserError) as caught:
        find_context(environ)
    inner, outer = caught.value.what.split(", but around it ")  # both are printed
    assert inner.startswith(sides[0])
    assert outer.startswith(sides[1])
    assert cause in caught.value.how
    assert how in caught.value.how
    assert caught.value.where == "environment"


@pytest.mark.parametrize(("environ", "what", "how"), IMPOSSIBLE, ids=[row[1] for row in IMPOSSIBLE])
def test_numbers_and_sets_that_can_not_be(environ: dict[str, str], what: str, how: str) -> None:
    with pytest.raises(UserError) as caught:
        find_context(environ)
    assert what in caught.value.what
    assert how in caught.value.how
    assert caught.value.where == "environment"


def test_there_are_enough_of_them() -> None:
    assert len(NESTED) + len(IMPOSSIBLE) >= 50
    assert len({tuple(sorted(row[1].items())) for row in NESTED}) == len(NESTED)


@pytest.mark.parametrize(
    "environ",
    [
        {"WORLD_SIZE": "1"},
        {"MASTER_ADDR": "n1", "MASTER_PORT": "29500"},
        {"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_JOB_ID": "7"},
        {"JOB_COMPLETION_INDEX": "3"},
        {"NODE_RANK": "0"},
        {"PET_NNODES": "1"},
    ],
)
def test_what_means_nothing_is_left_alone(environ: dict[str, str]) -> None:
    assert find_context(environ).alone

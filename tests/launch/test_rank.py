"""Which rank am I: read from what torchrun, srun and mpirun set."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewright.launch.rank import BROADCAST, RankContext, find_context
from scalewright.launch.rendezvous import with_address
from scalewright.spec.errors import UserError

HOST = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
BY_HAND = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", **HOST}
TORCHRUN = {**BY_HAND, "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "none"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    **HOST,
}
MPICH = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4", **HOST}
SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS_PER_NODE": "4(x2)",
    "SLURM_STEP_ID": "0",
    **HOST,
}


@pytest.mark.parametrize(
    ("environ", "starter"), [(TORCHRUN, "torchrun"), (OPEN_MPI, "Open MPI"), (MPICH, "MPICH"), (SRUN, "Slurm")]
)
def test_each_starter_is_understood(environ, starter):
    found = find_context(environ)
    assert (found.rank, found.world, found.local_rank, found.local_world) == (5, 8, 1, 4)
    assert found.rendezvous == "tcp://node1:29500"
    assert found.starter == starter
    assert found.waited_for
    assert not found.alone


def test_ranks_by_hand_outlive_the_shell_that_started_them():
    assert not find_context(BY_HAND).waited_for


def test_nothing_started_it():
    assert find_context({}) == RankContext()
    assert find_context({}).alone


def test_torchrun_inside_srun_is_torchrun():
    """A Slurm job that starts torchrun on every node: torchrun's own numbers count."""
    around = {**SRUN, "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "1"}
    found = find_context({**around, **TORCHRUN, "RANK": "3", "TORCHELASTIC_RESTART_COUNT": "2"})
    assert (found.starter, found.rank, found.attempt, found.shared_store) == ("torchrun", 3, 2, True)


@pytest.mark.parametrize("step", [{}, {"SLURM_STEP_ID": str(0xFFFFFFFA)}, {"SLURM_STEP_ID": str(0xFFFFFFFB)}])
def test_a_slurm_script_outside_of_srun_is_alone(step):
    """sbatch and salloc set SLURM_NTASKS and SLURM_PROCID=0, too: the wait for others would never end."""
    outside = {key: value for key, value in SRUN.items() if key != "SLURM_STEP_ID"}
    assert find_context({**outside, "SLURM_PROCID": "0", **step}).alone


def test_whose_store_it_is():
    """torchrun's agent runs one; a Kubernetes job sets the same variables, and rank 0 must."""
    assert find_context(TORCHRUN).shared_store
    assert not find_context(BY_HAND).shared_store
    assert not find_context(SRUN).shared_store


def test_one_task_is_alone():
    assert find_context({**SRUN, "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}).alone
    one = {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    assert find_context({**TORCHRUN, **one}).alone


def test_threads_are_those_the_starter_chose():
    assert find_context({"OMP_NUM_THREADS": "3"}).threads == 3
    assert find_context({**TORCHRUN, "OMP_NUM_THREADS": "1"}).threads == 1
    assert find_context(TORCHRUN).threads is None


def test_a_missing_address_is_named():
    environ = {key: value for key, value in SRUN.items() if key != "MASTER_ADDR"}
    with pytest.raises(UserError, match="Slurm started 8 ranks but MASTER_ADDR is not set"):
        find_context(environ)
    assert find_context({**environ, "SLURM_JOB_NODELIST": "n[3-4]"}).rendezvous == "tcp://n3:29500"


def test_a_host_that_nobody_knows_is_named_before_ranks_wait_for_it():
    environ = {**SRUN, "MASTER_ADDR": "no-such-host.invalid"}
    with pytest.raises(UserError, match=r"no-such-host.invalid, where the ranks are to meet, has no address"):
        with_address(find_context(environ))
    assert with_address(find_context({**SRUN, "MASTER_ADDR": "127.0.0.1"})).world == 8


def test_mpi_on_one_host_needs_no_address():
    environ = {key: value for key, value in OPEN_MPI.items() if key not in HOST}
    assert find_context(environ).rendezvous == BROADCAST
    environ["OMPI_COMM_WORLD_LOCAL_SIZE"] = "8"
    assert find_context(environ).rendezvous == "tcp://127.0.0.1:29500"


def test_the_ranks_of_a_node():
    """Two pods start four workers each."""
    node = find_context({"PET_NODE_RANK": "1", "PET_NNODES": "2", "PET_MASTER_ADDR": "pod-0"})
    assert node.whole_node
    workers = [node.of_node(index, 4, Path("words"), 2) for index in range(4)]
    assert [worker.rank for worker in workers] == [4, 5, 6, 7]
    assert {(w.world, w.local_world, w.rendezvous, w.whole_node) for w in workers} == {
        (8, 4, "tcp://pod-0:29500", False)
    }
    assert workers[2].last_words == Path("words/last-words-6")


def test_a_number_that_is_none_is_named():
    with pytest.raises(UserError, match="RANK is 'x', not a number"):
        find_context({**TORCHRUN, "RANK": "x"})

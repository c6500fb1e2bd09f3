"""A child has its parent's rank at another port, and none of the launcher's other variables."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scalewright.launch.in_every_rank import Child, environment, run_alone
from scalewright.launch.rank import RankContext, find_context

SLURM = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "0",
         "MASTER_ADDR": "node-1", "MASTER_PORT": "29500", "PATH": "/bin"}  # fmt: skip
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "node-1", "MASTER_PORT": "29500", "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "2", "PATH": "/bin"}  # fmt: skip


@pytest.mark.parametrize("parent", [SLURM, TORCHRUN])
def test_a_child_is_the_same_rank_elsewhere(parent: dict[str, str]) -> None:
    child = find_context(environment(find_context(parent), 1234, parent))
    assert (child.rank, child.world, child.local_rank) == (3, 4, 1)
    assert child.rendezvous == "tcp://node-1:1234"
    assert not child.shared_store  # the agent's store is the parent's
    assert child.attempt == 0


@pytest.mark.parametrize("parent", [SLURM, TORCHRUN])
def test_without_a_port_it_is_alone(parent: dict[str, str]) -> None:
    variables = environment(find_context(parent), None, parent)
    assert find_context(variables).alone
    assert variables["PATH"] == "/bin"


def test_what_nothing_started_keeps_its_variables() -> None:
    assert environment(RankContext(), None, {"A": "b"}) == {"A": "b"}


@pytest.mark.skipif(sys.platform == "win32", reason="no process groups")
def test_a_child_is_killed_with_what_it_started(tmp_path: Path) -> None:
    child = Child(RankContext(), None, ["doctor"], tmp_path / "log")
    assert child.poll() is None
    child.kill()
    assert child.poll() == -9


def test_a_command_alone_answers() -> None:
    code, text, errors = run_alone(RankContext(), ["--version"], 60)
    assert (code, errors) == (0, "")
    assert text.strip()

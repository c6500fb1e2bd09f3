"""torchrun on two hosts that are network namespaces: a rank is killed, or one host's agent is asked to stop.

host-1, 10.88.0.1: agent ─ ranks 0, 1 ──┬── relay ──┬── host-2, 10.88.0.2: agent ─ ranks 2, 3
                                        what `launch torchrun --print` wrote: bash tiny.torchrun.sh 0 | 1
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.fabric import NETWORK, hosts
from tests.comparisons.test_two_machines import may_make_namespaces
from tests.launch.launchers import PYTHON, RANKS, TRAIN, family
from tests.launch.stopping import PAUSE_S, marks

from runs import assert_same_bits, bits, end, events, run, run_data, steps_done, wait_for, weights, write_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not may_make_namespaces() or not Path("/dev/net/tun").exists(),
        reason="needs root, `ip`, network namespaces and /dev/net/tun",
    ),
]
RATE, DELAY_S = 1e9 / 8, 2e-4
ADDRESSES = [f"{NETWORK}.{number}" for number in (1, 2)]
PORT = 29533


@pytest.fixture(scope="module")
def machines() -> Iterator[list[str]]:
    with hosts(2, RATE, DELAY_S) as names:
        yield names


def data_of(folder: Path, **launch: Any) -> dict[str, Any]:
    (folder / "marks").mkdir(exist_ok=True)
    site = {"python": PYTHON, "hosts": ADDRESSES, "interface": "eth0", "port": PORT, "env": RANKS}
    return run_data(
        folder,
        layout={"devices": 4, "zero_stage": 3, "dp_replicate": 2, "micro_batch": 1},
        loss={"python": "parts:watched", "folder": str(folder / "marks")},
        train={"steps": 30},
        checkpoint={"every": 4, "at_end": True},
        launch={**{key: value for key, value in site.items() if key != "env"}, **launch,
                "env": {**RANKS, "GLOO_SOCKET_IFNAME": "eth0"}},
    )  # fmt: skip


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An undisturbed run, by local workers."""
    return run(data_of(tmp_path_factory.mktemp("control"))).out_dir


def script(folder: Path, **launch: Any) -> list[list[str]]:
    """What a user types on each host, with what `launch torchrun --print` wrote."""
    write_run(folder, data_of(folder, **launch))
    words = [PYTHON, "-m", "scalewright", "launch", "torchrun", "run.yaml", "--nodes", "2", "--print"]
    environ = {**os.environ, **RANKS}
    text = subprocess.run(words, cwd=folder, env=environ, check=True, capture_output=True, text=True).stdout
    (folder / "tiny.sh").write_text(text)
    return [["bash", "tiny.sh", str(number)] for number in (0, 1)]


def plain(folder: Path, restarts: int) -> list[list[str]]:
    """The lines of docs/launch/torchrun.md."""
    write_run(folder, data_of(folder))
    words = [PYTHON, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2"]
    words += ["--max-restarts", str(restarts), "--master-addr", ADDRESSES[0], "--master-port", str(PORT)]
    return [[*words, "--node-rank", str(number), *TRAIN[1:]] for number in (0, 1)]


class Pair:
    """A command on each host."""

    def __init__(self, folder: Path, machines: list[str], commands: list[list[str]]) -> None:
        environ = {**os.environ, **RANKS, "GLOO_SOCKET_IFNAME": "eth0"}
        self.processes = [
            subprocess.Popen(
                ["nsenter", f"--net=/var/run/netns/{machine}", *command], cwd=folder, env=environ, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            for machine, command in zip(machines, commands, strict=True)
        ]  # fmt: skip
        self.text = ""

    @property
    def over(self) -> bool:
        """Whether one has left."""
        return any(process.poll() is not None for process in self.processes)

    def finish(self) -> list[int]:
        """Both exit codes."""
        try:
            self.text = "".join(process.communicate(timeout=240)[0] for process in self.processes)
        finally:
            for process in self.processes:
                if process.poll() is None:
                    end(process)
        return [process.returncode for process in self.processes]


def started(folder: Path, machines: list[str], commands: list[list[str]]) -> Pair:
    """Both, after six steps."""
    (folder / "marks" / "pause").write_text(str(PAUSE_S))
    pair = Pair(folder, machines, commands)
    wait_for(lambda: steps_done(folder / "out") >= 6 or pair.over, 180, "six steps")
    assert not pair.over, (pair.finish(), pair.text)
    return pair


def kill_a_rank(folder: Path) -> None:
    """One of the second host's."""
    os.kill(list(marks(folder)[3])[-1], signal.SIGKILL)
    (folder / "marks" / "pause").unlink()


def assert_nobody_left(folder: Path) -> None:
    wait_for(lambda: family(folder) == [], 30, "all processes to leave")


def assert_as_undisturbed(folder: Path, control: str) -> None:
    assert bits(folder / "out") == bits(control)
    assert_same_bits(weights(folder / "out", optimizer=True), weights(control, optimizer=True))


@pytest.mark.parametrize("how", ["torchrun", "launch torchrun"])
def test_a_killed_rank_is_started_again(tmp_path: Path, machines: list[str], control: str, how: str) -> None:
    """Both agents start their ranks again, and the run goes on from its newest checkpoint."""
    commands = plain(tmp_path, restarts=1) if how == "torchrun" else script(tmp_path, max_restarts=1)
    pair = started(tmp_path, machines, commands)
    kill_a_rank(tmp_path)
    assert pair.finish() == [0, 0], pair.text
    assert_nobody_left(tmp_path)
    assert [event["step"] for event in events(tmp_path / "out", "resume")]
    assert_as_undisturbed(tmp_path, control)


def test_a_killed_rank_ends_both_hosts(tmp_path: Path, machines: list[str], control: str) -> None:
    """Without restarts nobody is left waiting, and the same commands go on."""
    commands = script(tmp_path)
    pair = started(tmp_path, machines, commands)
    kill_a_rank(tmp_path)
    assert not {0, 75} & set(pair.finish()), pair.text
    assert_nobody_left(tmp_path)
    again = Pair(tmp_path, machines, commands)
    assert again.finish() == [0, 0], again.text
    assert_as_undisturbed(tmp_path, control)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_one_host_is_asked_and_both_stop(tmp_path: Path, machines: list[str], control: str, name: str) -> None:
    commands = script(tmp_path, max_restarts=1)
    pair = started(tmp_path, machines, commands)
    os.killpg(pair.processes[1].pid, signal.Signals[name])
    assert pair.finish() == [75, 75], pair.text
    assert_nobody_left(tmp_path)
    (stop,) = events(tmp_path / "out", "stop")
    assert stop["cause"] == "another rank was asked"
    (tmp_path / "marks" / "pause").unlink()
    again = Pair(tmp_path, machines, commands)
    assert again.finish() == [0, 0], again.text
    assert_as_undisturbed(tmp_path, control)

"""torchrun's elastic agents for real: nodes that die, go and come, and one run that gets to its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runs import TESTS, assert_same_run, descendants, end, events, merge, run, run_data, steps_done, wait_for, write_run

CONF = "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3"
LAYOUT = {"devices": 4, "zero_stage": 3, "global_batch": 24, "micro_batch": 2}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Nodes:
    """Agents on this machine, each as a node of one rank."""

    def __init__(self, folder: Path, file: Path, nodes: str = "1:4") -> None:
        self.folder, self.file, self.nodes, self.port = folder, file, nodes, free_port()
        self.agents: list[subprocess.Popen[str]] = []

    def add(self, **environ: str) -> None:
        """Starts one more."""
        endpoint = f"127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "scalewright.launch.agent", "--nnodes", self.nodes, "--nproc-per-node", "1"]
        command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "x", "--rdzv-conf", CONF]
        command += ["--local-addr", "127.0.0.1", "--max-restarts", "20", "-m", "scalewright", "train", str(self.file)]
        paths = f"{TESTS}{os.pathsep}{TESTS.parent / 'src'}"
        environ = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} | environ
        log = (self.folder / f"agent-{len(self.agents)}.log").open("w")
        with log:
            self.agents.append(
                subprocess.Popen(command, cwd=self.folder, env=environ, stdin=subprocess.DEVNULL, stdout=log,
                                 stderr=log, text=True, start_new_session=True)
            )  # fmt: skip

    @property
    def meets(self) -> bool:
        """Whether one of them holds the meeting."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self, number: int) -> None:
        """As a node that loses its power: the agent and its rank at once."""
        for pid in [self.agents[number].pid, *descendants(self.agents[number].pid)]:
            os.kill(pid, signal.SIGKILL)
        self.agents[number].wait(10)

    def logs(self) -> str:
        return "\n".join(path.read_text()[-1500:] for path in sorted(self.folder.glob("agent-*.log")))


def worlds(out: Path) -> list[int]:
    """Of each life that has made a step."""
    return [event["world"] for event in events(out) if event["kind"] in ("start", "resume")]


@pytest.fixture
def nodes(tmp_path: Path) -> Any:
    data = run_data(
        tmp_path, layout=LAYOUT, elastic=True, checkpoint={"every": 5, "keep": 3, "at_end": True},
        launch={"preflight": "off"}, train={"steps": 45}, loss={"python": "parts:fragile", "pause": 0.1},
    )  # fmt: skip
    made = Nodes(tmp_path, write_run(tmp_path, data))
    yield made, data
    for agent in made.agents:
        end(agent)


def goes_on(nodes: Nodes, out: Path, world: int, more: int = 4) -> None:
    """Waits until the run has made steps with so many ranks."""

    def on() -> bool:
        dead = [agent for agent in nodes.agents if agent.poll() not in (None, 0, 75, -9)]
        assert not dead, nodes.logs()
        if not (out / "events.jsonl").exists() or not (lives := worlds(out)) or lives[-1] != world:
            return False
        began = [event["step"] for event in events(out) if event["kind"] in ("start", "resume")][-1]
        return steps_done(out) >= began + more

    wait_for(on, 120, f"steps with {world} ranks\n{nodes.logs()}")


@pytest.mark.slow
@pytest.mark.timeout(600)  # five worlds, whose ranks import torch anew: two minutes on idle cores
def test_nodes_that_die_go_and_come(tmp_path: Path, nodes: Any) -> None:
    """4 -> 3 (killed) -> 4 (a new one) -> 3 (asked to go, and saved): the same samples in the same order."""
    agents, data = nodes
    out = tmp_path / "out"
    for _ in range(4):
        agents.add()
    goes_on(agents, out, 4, 7)
    agents.kill(3)
    goes_on(agents, out, 3)
    agents.add()
    goes_on(agents, out, 4)
    agents.agents[2].send_signal(signal.SIGTERM)
    assert agents.agents[2].wait(60) == 75, agents.logs()
    goes_on(agents, out, 3)
    for number in (0, 1, 4):
        assert agents.agents[number].wait(120) == 0, agents.logs()
    assert worlds(out) == [4, 3, 4, 3]
    assert len(events(out, "stop")) == 2  # by saves: nothing was lost, nor counted as a crash
    restarts = events(out, "restart")
    assert [(event["world_before"], event["world"]) for event in restarts] == [(4, 3)]
    plain: dict[str, Any] = {"out_dir": str(tmp_path / "control"), "loss": "cross_entropy", "elastic": None}
    plain["layout"] = {"devices": 1, "zero_stage": 0, "micro_batch": 4}
    assert_same_run(out, run(merge(data, plain)).out_dir)


@pytest.mark.slow
def test_a_failure_that_comes_back_ends_all_agents(tmp_path: Path, nodes: Any) -> None:
    """The rank says that no further start helps, though 20 restarts are allowed."""
    agents, data = nodes
    out = tmp_path / "out"
    data["loss"] = {"python": "parts:wrong_at", "step_of": str(out), "step": 8}
    write_run(tmp_path, data)
    for _ in range(2):
        agents.add()
    codes = [agent.wait(180) for agent in agents.agents]
    assert codes == [1, 1], agents.logs()
    assert "given up (4 times the same failure at step 8" in events(out, "fault")[-1]["message"]
    assert [event["step"] for event in events(out, "resume")] == [5, 5]

"""A process a node: each starts the ranks of its node, and all of them are one world."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runs import (
    alive,
    assert_same_bits,
    bits,
    descendants,
    end,
    events,
    run,
    run_data,
    start_cli,
    steps_done,
    wait_for,
    weights,
    write_run,
)
from scalewright.api import train
from scalewright.spec.errors import UserError

FOUR = {"devices": 4, "zero_stage": 3, "micro_batch": 2}
ONE_MACHINE = {"preflight": "warn"}  # which looks wrong for two nodes


def two_nodes(folder: Path, file: Path) -> list[subprocess.Popen[str]]:
    """What a TrainJob of two pods starts, here on one machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    pod = {
        "PET_NNODES": "2", "PET_NPROC_PER_NODE": "2", "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": port,
        "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
    }  # fmt: skip
    return [start_cli(folder, "train", str(file), **pod, PET_NODE_RANK=str(rank)) for rank in range(2)]


def finish(nodes: list[subprocess.Popen[str]]) -> list[tuple[str, str]]:
    try:
        return [node.communicate(timeout=150) for node in nodes]
    finally:
        for node in nodes:
            end(node)


@pytest.mark.slow
def test_two_nodes_train_as_one_machine_does(tmp_path: Path) -> None:
    data = run_data(tmp_path, layout=FOUR, checkpoint={"at_end": True}, launch=ONE_MACHINE)
    local = run({**data, "out_dir": str(tmp_path / "local")}).out_dir
    nodes = two_nodes(tmp_path, write_run(tmp_path, data))
    answers = finish(nodes)
    assert [node.returncode for node in nodes] == [0, 0], answers
    assert bits(tmp_path / "out") == bits(local)
    assert_same_bits(weights(tmp_path / "out"), weights(local))
    assert answers[1][0] == ""  # the first node speaks for all
    said = {event["rule"] for event in events(tmp_path / "out", "preflight")}
    assert {"meeting-on-loopback", "interface-loopback"} <= said


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGUSR1")
def test_a_signal_to_one_node_stops_both(tmp_path: Path) -> None:
    data = run_data(tmp_path, layout=FOUR, train={"steps": 2000}, launch=ONE_MACHINE)
    nodes = two_nodes(tmp_path, write_run(tmp_path, data))
    try:
        wait_for(lambda: steps_done(tmp_path / "out") >= 3, 120, "three steps")
        workers = [pid for node in nodes for pid in descendants(node.pid)]
        nodes[1].send_signal(signal.SIGUSR1)
        answers = [node.communicate(timeout=60) for node in nodes]
    finally:
        for node in nodes:
            end(node)
    assert [node.returncode for node in nodes] == [75, 75], answers
    (stop,) = events(tmp_path / "out", "stop")
    assert stop["cause"] == "another rank was asked"
    wait_for(lambda: alive(workers) == [], 15, "the workers to leave")  # helpers of Python's end after their parent


def test_two_nodes_that_would_meet_at_loopback_do_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = {"PET_NNODES": "2", "PET_MASTER_ADDR": "127.0.0.1", "PET_NODE_RANK": "1"}
    for name, value in pod.items():
        monkeypatch.setenv(name, value)
    file = write_run(tmp_path, run_data(tmp_path, layout=FOUR))
    with pytest.raises(UserError, match=r"2 nodes are to meet at 127.0.0.1, where each finds only itself"):
        train(file)
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match=r"launch.preflight=warn starts it all the same"):
        train(file)


def test_nodes_that_do_not_divide_the_devices(tmp_path: Path, run_cli: Callable[..., Any]) -> None:
    data = run_data(tmp_path, layout={**FOUR, "devices": 3, "global_batch": 6})
    pod = {"PET_NNODES": "2", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": "127.0.0.1"}
    answer = run_cli("train", write_run(tmp_path, data), **pod)
    assert answer.code == 2
    assert "2 processes, one a node, but layout.devices is 3 (layout): use a multiple of 2" in answer.err

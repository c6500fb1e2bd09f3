"""Whatever asks a run to stop, however it was started: saved, 75, nobody left, and the same run after.

SIGTERM, SIGUSR1, SIGUSR2, SIGINT, out_dir/STOP, a time limit
    x  one process, local workers, ranks started by hand, torchrun through our agent
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runs import (
    TESTS,
    alive,
    assert_same_bits,
    bits,
    descendants,
    end,
    events,
    merge,
    run,
    run_data,
    steps_done,
    wait_for,
    weights,
    write_run,
)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has none of these signals")

SIGNALS = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT")
WAYS = (*SIGNALS, "file STOP", "time limit")
STARTED = ("alone", "local", "by hand", "agent")
QUICK = [("local", "SIGUSR1"), ("local", "file STOP")]
# torchrun, and so the agent, ends its ranks at a Ctrl-C: that is its user's wish
REST = [(s, w) for s in STARTED for w in WAYS if (s, w) not in QUICK and (s, w) != ("agent", "SIGINT")]
LOOPBACK = "lo" if sys.platform == "linux" else "lo0"


def data_of(folder: Path, started: str) -> dict[str, Any]:
    devices = 1 if started == "alone" else 2
    layout = {"devices": devices, "zero_stage": 3 if devices > 1 else 0, "micro_batch": 2}
    loss = {"python": "parts:fragile", "pause": 0.05}
    more = {"layout": layout, "loss": loss, "checkpoint": {"at_end": True}, "train": {"steps": 40}}
    return run_data(folder, **more)


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of an undisturbed run; one for one device, one for two."""
    folders: dict[bool, Path] = {}

    def train(started: str) -> Path:
        alone = started == "alone"
        if alone not in folders:
            data = merge(data_of(tmp_path_factory.mktemp("control"), started), {"loss": {"pause": 0.0}})
            folders[alone] = Path(run(data).out_dir)
        return folders[alone]

    return train


def start(folder: Path, started: str, *overrides: str) -> list[subprocess.Popen[str]]:
    """The processes that a user or a launcher starts; the first one hears the signal."""
    train = ["-m", "scalewright", "train", "run.yaml", *overrides]
    if started == "agent":
        options = ["--standalone", "--nproc-per-node", "2"]
        return [begin(folder, ["-m", "scalewright.launch.agent", *options, *train])]
    if started != "by hand":
        return [begin(folder, train)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meet = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    return [begin(folder, train, **meet, RANK=str(rank), LOCAL_RANK=str(rank)) for rank in (0, 1)]


def begin(folder: Path, arguments: list[str], **environ: str) -> subprocess.Popen[str]:
    always = {"PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": LOOPBACK}
    return subprocess.Popen(
        [sys.executable, *arguments], cwd=folder, env={**os.environ, **always, **environ}, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def stop_and_go_on(tmp_path: Path, started: str, way: str, control: Path) -> None:
    """Stops a run, and starts it again to its end."""
    write_run(tmp_path, data_of(tmp_path, started))
    out = tmp_path / "out"
    limit = ["launch.time_limit=0:04", "launch.save_before_s=1"] if way == "time limit" else []
    processes = start(tmp_path, started, *limit)
    try:
        wait_for(lambda: steps_done(out) >= 3 or processes[0].poll() is not None, 120, "three steps")
        family = [pid for process in processes for pid in [process.pid, *descendants(process.pid)]]
        if way in SIGNALS:
            processes[0].send_signal(signal.Signals[way])
        elif way == "file STOP":
            (out / "STOP").touch()
        answers = [process.communicate(timeout=90) for process in processes]
    finally:
        for process in processes:
            end(process)
    assert [process.returncode for process in processes] == [75] * len(processes), answers
    # The fork server notices a moment later that its worker's supervisor has gone.
    wait_for(lambda: not alive(family), 10, "the end of all processes")
    (stop,) = events(out, "stop")
    assert 0 < stop["step"] < 40
    assert stop["cause"] in (way, "SIGTERM")  # launchers pass their own word on
    assert not (out / "STOP").exists()
    again = start(tmp_path, started)
    answers = [process.communicate(timeout=120) for process in again]
    assert [process.returncode for process in again] == [0] * len(again), answers
    assert [event["kind"] for event in events(out) if event["kind"] in ("start", "resume", "changed")] == [
        "start",
        "resume",
    ]
    assert bits(out) == bits(control)
    assert_same_bits(weights(out, optimizer=True), weights(control, optimizer=True))


@pytest.mark.parametrize(("started", "way"), QUICK)
def test_a_stop_and_what_follows(
    tmp_path: Path, control: Callable[[str], Path], started: str, way: str
) -> None:
    stop_and_go_on(tmp_path, started, way, control(started))


@pytest.mark.slow
@pytest.mark.parametrize(("started", "way"), REST)
def test_every_stop_of_every_starter(
    tmp_path: Path, control: Callable[[str], Path], started: str, way: str
) -> None:
    stop_and_go_on(tmp_path, started, way, control(started))

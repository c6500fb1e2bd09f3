"""A signal at every moment of a run's life ends in a save and 75, or in what the moment allows.

chosen moments, as files and processes show them    fast
random ones, over launchers                         slow: --moments COUNT --save-moments FOLDER
"""

from __future__ import annotations

import fcntl
import os
import pty
import random
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tests.launch.launchers import LAUNCHERS, PYTHON, RANKS, TRAIN, Attempt, Launcher, Services
from tests.launch.moments import (
    CHAIN,
    LONG,
    STEPS,
    go_on,
    hears,
    metrics,
    moment,
    moments_of,
    save_moments,
    saves,
    start,
    strike,
    validates,
)
from tests.launch.stopping import _left

from forked import fork_cli
from runs import end, events, run, steps_done, wait_for, write_run

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes as Linux has them"),
    pytest.mark.timeout(240),
]
AGENT = (PYTHON, "-m", "scalewright.launch.agent", "--standalone", "--nproc-per-node", "2", *TRAIN[1:])
TRIED = {**LAUNCHERS, "agent": Launcher("agent", AGENT)}


def loads_torch(attempt: Attempt) -> bool:
    try:
        return "libtorch" in Path(f"/proc/{attempt.processes[0].pid}/maps").read_text()
    except OSError:
        return False


def has_workers(count: int) -> Callable[[Attempt], bool]:
    """Grandchildren: a fork server's workers."""

    def look(attempt: Attempt) -> bool:
        try:
            children = psutil.Process(attempt.processes[0].pid).children()
            return sum(len(child.children()) for child in children) >= count
        except psutil.Error:
            return False

    return look


def has_rank(attempt: Attempt) -> bool:
    try:
        return bool(psutil.Process(attempt.processes[0].pid).children())
    except psutil.Error:
        return False


def begun(attempt: Attempt) -> bool:
    return (attempt.folder / "out" / "events.jsonl").exists()


def finished(attempt: Attempt) -> bool:
    return begun(attempt) and bool(events(attempt.folder / "out", "finish"))


MOMENTS = [
    pytest.param("one process", "SIGTERM", hears, 75, marks=pytest.mark.slow),
    ("one process", "SIGHUP", loads_torch, 75),
    pytest.param("one process", "SIGUSR1", begun, 75, marks=pytest.mark.slow),
    pytest.param("one process", "SIGTERM", validates, 75, marks=pytest.mark.slow),
    ("one process", "SIGINT", saves, 75),
    pytest.param("one process", "SIGTERM", finished, 0, marks=pytest.mark.slow),
    ("local workers", "SIGTERM", hears, 75),
    pytest.param("local workers", "SIGTERM", has_workers(1), 75, marks=pytest.mark.slow),
    ("local workers", "SIGINT", has_workers(2), 75),
    pytest.param("local workers", "SIGHUP", validates, 75, marks=pytest.mark.slow),
    ("agent", "SIGTERM", has_rank, 75),
]


@pytest.mark.parametrize(("name", "way", "when", "code"), MOMENTS)
def test_a_signal_at_a_chosen_moment(
    tmp_path: Path, name: str, way: str, when: Callable[[Attempt], bool], code: int
) -> None:
    steps = 10 * STEPS if when is saves else STEPS  # a save takes some ms, and a busy machine overlooks it
    attempt = start(tmp_path, TRIED[name], Services(tmp_path), steps)
    done = strike(attempt, name, way, when)
    # What follows the last step, as the report, may be cut short: 75, and the next call finds nothing to do.
    assert done.code in ((0, 75) if when is finished else (code,)), done.text
    assert "Traceback" not in done.text
    assert done.left == []
    if when is validates:  # abandoned, and made up by the next call
        if name == "one process":  # two may be through with it before the signal arrives
            assert '"step": 4, "loss"' not in metrics_of(tmp_path, "valid")
        (tmp_path / "control").mkdir()
        control = run(moments_of(tmp_path / "control", TRIED[name].ranks)).out_dir
        go_on(attempt, [done], control)
        assert done.same


def metrics_of(folder: Path, kind: str) -> str:
    lines = (folder / "out" / "metrics.jsonl").read_text().splitlines()
    return "\n".join(line for line in lines if f'"kind": "{kind}"' in line)


def test_a_rank_whose_peer_never_comes_leaves_at_once(tmp_path: Path) -> None:
    """It waits outside Python, where no handler of Python's runs."""
    write_run(tmp_path, moments_of(tmp_path, 2))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meet = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    process = fork_cli(tmp_path, "train", "run.yaml", **RANKS, **meet, MASTER_PORT=str(port))
    try:
        listens = f":{port:04X} 00000000:0000 0A"
        wait_for(
            lambda: any(listens in Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6"))
            or f":{port:04X} 00000000000000000000000000000000:0000 0A" in Path("/proc/net/tcp6").read_text(),
            90, "rank 0 to wait",
        )  # fmt: skip
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        _, text = process.communicate(timeout=20)
    finally:
        end(process)
    assert (process.returncode, text.count("SIGTERM")) == (75, 1), text


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_closed_terminal_saves(tmp_path: Path, devices: int) -> None:
    """Every process of the terminal gets SIGHUP, and what it prints from then on fails."""
    write_run(tmp_path, moments_of(tmp_path, devices))
    (tmp_path / "marks" / "pause").write_text("0.1")
    ours, terminal = pty.openpty()

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        TRAIN, cwd=tmp_path, env={**os.environ, **RANKS, "TERM": "xterm"},
        stdin=terminal, stdout=terminal, stderr=terminal, preexec_fn=take_terminal,
    )  # fmt: skip
    os.close(terminal)
    os.set_blocking(ours, False)
    try:
        attempt = Attempt(tmp_path, [], lambda: attempt)

        def steps() -> bool:
            with suppress(BlockingIOError):
                os.read(ours, 1 << 16)
            return metrics(attempt).count('"train"') >= 2

        wait_for(steps, 90, "two steps")
        os.close(ours)
        code = process.wait(60)
    finally:
        process.kill()
    assert _left(tmp_path, []) == []
    assert events(tmp_path / "out", "stop")[0]["cause"] in ("SIGHUP", "SIGTERM", "another rank was asked")
    assert code == 75


RANDOM = (
    "one process", "local workers", "torchrun", "launch torchrun", "mpirun, Open MPI", "launch mpi, Open MPI",
    "srun", "launch slurm",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("name", RANDOM)
def test_signals_at_random_moments(tmp_path: Path, request: pytest.FixtureRequest, name: str) -> None:
    """Of attempts at one run after the other, which goes on from each of them."""
    launcher = LAUNCHERS[name]
    if reason := launcher.missing():
        pytest.skip(reason)
    seed = request.config.getoption("--seed-of-moments", default=0)
    draw, strikes, services = random.Random(f"{name} {seed}"), [], Services(tmp_path)
    (tmp_path / "control").mkdir()
    control = run(moments_of(tmp_path / "control", launcher.ranks, LONG)).out_dir
    target = request.config.getoption("--save-moments", default=None)
    try:
        while len(strikes) < request.config.getoption("--moments", default=25):
            folder = tmp_path / str(len(strikes))
            folder.mkdir()
            attempt, chain = start(folder, launcher, services, LONG), []
            while len(chain) < CHAIN and (not chain or chain[-1].code != 0):
                attempt = attempt.again() if chain else attempt
                way = draw.choice(["SIGTERM", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGINT"])
                chain.append(strike(attempt, name, way, moment(draw, steps_done(folder / "out"))))
            go_on(attempt, chain, control)
            strikes += chain
            if target:
                save_moments(chain, Path(target))
    finally:
        services.close()
    wrong = [done for done in strikes if done.code not in done.expected or not done.same or done.left]
    assert not wrong, wrong

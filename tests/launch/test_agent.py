"""The agent: torchrun that passes signals on, and leaves with its ranks' exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.runs import TESTS, alive, descendants, end, wait_for

from scalewright.launch.agent import first_code, were_saved

CASES = [
    ({75}, False, True),
    ({75, -15}, False, True),  # torchrun ended the ranks that were slower to leave
    ({-15}, False, False),
    ({75, 1}, False, False),
    ({75, -9}, False, False),  # out of memory while the others saved
    ({1}, True, False),
    ({-15}, True, True),  # before a rank had its handler
    ({75, -9}, True, True),
    ({-10, -15}, True, True),  # Slurm's SIGUSR1 reached a rank before that
    ({-11}, True, False),
]


@pytest.mark.parametrize(("codes", "asked", "saved"), CASES)
def test_which_codes_mean_saved(codes, asked, saved):
    assert were_saved(codes, asked=asked) is saved


@pytest.mark.parametrize(("codes", "code"), [([1, -15], 1), ([-15, -9], 137), ([2, 75], 2), ([-15], 1)])
def test_the_code_of_a_failure_is_a_ranks_own(codes, code):
    assert first_code(codes) == code


RANK = """
import os, pathlib, signal, sys, time
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
folder = pathlib.Path(sys.argv[1])
(folder / f"up-{os.environ['RANK']}").touch()
for _ in range(600):
    if stop:
        time.sleep(float(os.environ["RANK"]))  # one leaves later than the other
        (folder / f"saved-{os.environ['RANK']}").touch()
        sys.exit(75)
    time.sleep(0.05)
"""


def start(folder: Path, script: str, *options: str) -> subprocess.Popen[str]:
    """The agent with two ranks that run the script."""
    (folder / "rank.py").write_text(script, encoding="utf-8")
    command = [sys.executable, "-m", "scalewright.launch.agent", *options, "--standalone"]
    return subprocess.Popen(
        [*command, "--nproc-per-node", "2", "rank.py", str(folder)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize(
    ("number", "options", "code"),
    [
        (signal.SIGTERM, (), 75),
        pytest.param(signal.SIGUSR1, ("--saved", "138"), 138, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, ("--max-restarts", "3"), 75, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, (), 75, marks=pytest.mark.slow),
    ],
)
def test_a_signal_lets_the_ranks_save_and_the_code_says_so(tmp_path, number, options, code):
    process = start(tmp_path, RANK, *options)
    try:
        wait_for(lambda: len(list(tmp_path.glob("up-*"))) == 2 or process.poll() is not None, 60, "both ranks")
        ranks = descendants(process.pid)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    finally:
        end(process)
    assert process.returncode == code, err
    assert "the ranks saved and left" in err
    assert "Traceback" not in err
    assert (tmp_path / "saved-0").exists()
    assert not alive(ranks)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which signals a process handles")
def test_a_signal_before_there_is_a_rank_has_nothing_to_save(tmp_path):
    process = start(tmp_path, RANK)
    try:
        status, mask = Path(f"/proc/{process.pid}/status"), 1 << (signal.SIGUSR1 - 1)
        wait_for(lambda: int(status.read_text().split("SigCgt:")[1].split()[0], 16) & mask, 60, "a handler")
        process.send_signal(signal.SIGUSR1)
        process.communicate(timeout=60)
    finally:
        end(process)
    assert process.returncode == 75


@pytest.mark.slow
def test_a_second_interrupt_ends_the_ranks_at_once(tmp_path):
    process = start(tmp_path, RANK.replace('float(os.environ["RANK"])', "30"))
    try:
        wait_for(lambda: len(list(tmp_path.glob("up-*"))) == 2 or process.poll() is not None, 60, "both ranks")
        ranks = descendants(process.pid)
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    finally:
        end(process)
    assert process.returncode == 130, err
    assert not [*tmp_path.glob("saved-*")]
    assert not alive(ranks)


@pytest.mark.slow
def test_a_crash_has_its_own_code(tmp_path):
    process = start(tmp_path, "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(7)\ntime.sleep(60)")
    try:
        _, err = process.communicate(timeout=60)
    finally:
        end(process)
    assert process.returncode == 7, err


@pytest.mark.slow
def test_a_crash_is_started_again(tmp_path):
    script = """
import os, pathlib, sys
(pathlib.Path(sys.argv[1]) / f"run-{os.environ['RANK']}-{os.environ['TORCHELASTIC_RESTART_COUNT']}").touch()
sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
"""
    process = start(tmp_path, script, "--max-restarts", "1")
    try:
        _, err = process.communicate(timeout=60)
    finally:
        end(process)
    assert process.returncode == 0, err
    assert (tmp_path / "run-1-1").exists()


@pytest.mark.slow
def test_ranks_that_end_well(tmp_path):
    process = start(tmp_path, "")
    try:
        _, err = process.communicate(timeout=60)
    finally:
        end(process)
    assert process.returncode == 0, err

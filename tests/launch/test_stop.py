"""When a run has to save: the scheduler's clock, or the run file's limit from now on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from scalewright.launch.starters import attempt_facts
from scalewright.launch.stop import STOP_SIGNALS, begin_anew, heard_signals, run_with_signals, save_at
from scalewright.spec.errors import UserError
from scalewright.spec.launch import LaunchSpec


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        ("30", 1800), ("5:30", 330), ("24:00:00", 86400), ("1-0", 86400), ("2-12", 216000),
        ("1-00:30", 88200), ("7-00:00:01", 604801),
    ],
)  # fmt: skip
def test_limits_are_read_as_slurm_does(limit: str, seconds: int) -> None:
    assert LaunchSpec(time_limit=limit).limit_s == seconds


def test_the_moment_to_save() -> None:
    hour = LaunchSpec(time_limit="60", save_before_s=100)
    assert save_at(LaunchSpec(), {}) is None
    assert save_at(hour, {}, now=1000.0) == 4500.0
    assert save_at(hour, {"SLURM_JOB_END_TIME": "2000"}, now=1000.0) == 1900.0
    assert save_at(LaunchSpec(), {"SLURM_JOB_END_TIME": "2000"}) == 1880.0


def test_a_limit_without_time_to_save_is_refused() -> None:
    with pytest.raises(UserError, match="time_limit 2 is no longer than save_before_s 120"):
        LaunchSpec.parse({"time_limit": "2"})


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has fewer signals")
def test_which_signals_stop_a_run() -> None:
    assert set(STOP_SIGNALS) == {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP}


def test_the_attempt_of_a_job() -> None:
    assert attempt_facts({}) == {}
    assert attempt_facts({"SLURM_JOB_ID": "12"}) == {"scheduler": "Slurm", "job": "12", "restarts": 0}
    again = {"SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": "3", "TORCHELASTIC_RUN_ID": "x"}
    assert attempt_facts(again) == {"scheduler": "Slurm", "job": "12", "restarts": 3}
    assert attempt_facts({"LSB_JOBID": "9"}) == {"scheduler": "LSF", "job": "9"}
    assert attempt_facts({"RAY_JOB_ID": "01000000"}) == {"scheduler": "Ray", "job": "01000000"}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGHUP")
def test_a_hangup_that_nohup_ignores_stays_ignored() -> None:
    assert signal.SIGHUP in heard_signals()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert set(heard_signals()) == {*STOP_SIGNALS} - {signal.SIGHUP}
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals to pass on")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_command_is_told_also_while_it_starts(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    popen = subprocess.Popen

    def start(*arguments: object, **keys: object) -> subprocess.Popen[bytes]:
        os.kill(os.getpid(), number)
        return popen(*arguments, **keys)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(subprocess, "Popen", start)
    assert run_with_signals(["sleep", "60"]) == -number


LATE = """
import os, signal, sys
class Last:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGTERM):
        kill(pid, number)
last = Last()
from scalewright.{module} import main
sys.argv = ["scalewright", "--help"]
sys.exit(main({arguments}))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
@pytest.mark.parametrize(("module", "arguments"), [("__main__", ""), ("launch.agent", "['--help']")])
def test_a_signal_while_python_ends_changes_no_exit_code(module: str, arguments: str) -> None:
    """After torch that takes seconds, and Python has reset its handlers before."""
    program = LATE.format(module=module, arguments=arguments)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


STUCK = """
import sys, time
from scalewright.launch import stop
class Last:
    def __del__(self, sleep=time.sleep):
        sleep(60)
last, stop.END_S = Last(), 1
from scalewright.__main__ import main
sys.argv = ["scalewright", "--help"]
sys.exit(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
def test_an_end_of_python_that_hangs_is_bounded() -> None:
    """Signals are ignored there: it would need a SIGKILL."""
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=50)
    assert done.returncode == -signal.SIGALRM, done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
def test_what_a_starter_left_of_signals_is_taken_back() -> None:
    """Supervisors that ignore the ends of children, or block signals in the thread that starts a process."""
    before, mask = signal.signal(signal.SIGCHLD, signal.SIG_IGN), signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    fails = [sys.executable, "-S", "-c", "raise SystemExit(3)"]
    try:
        assert run_with_signals(fails) == 0
        begin_anew()
        assert run_with_signals(fails) == 3
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, []) & set(STOP_SIGNALS)
    finally:
        signal.signal(signal.SIGCHLD, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

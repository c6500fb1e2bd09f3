"""A script on several hosts, with a stand-in for ssh that runs it here: codes, signals, and no orphans."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runs import alive, wait_for
from scalewright.launch.over_ssh import run_over_ssh

pytestmark = pytest.mark.skipif(sys.platform == "win32" or shutil.which("bash") is None, reason="bash isn't here")

PROGRAM = """
import os, pathlib, signal, sys, time
folder, code = pathlib.Path(sys.argv[1]), int(sys.argv[2])
def leave(number, frame):
    (folder / f"left-{os.environ['NODE']}").touch()
    sys.exit(code)
signal.signal(signal.SIGTERM, leave)
(folder / f"{os.environ['NODE']}-{os.getpid()}").touch()
time.sleep(60)
"""


@pytest.fixture
def ssh(tmp_path: Path) -> list[str]:
    path = tmp_path / "ssh"
    path.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift 2\nexec sh -c "$*"\n')
    path.chmod(0o755)
    return [str(path)]


def test_each_host_has_its_number_and_this_folder(ssh: list[str], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = 'exec bash -c \'echo "$NODE it\'"\'"\'s $PWD" > "out-$NODE"\''
    assert run_over_ssh(["a", "b"], ssh, script) == 0
    assert (tmp_path / "out-0").read_text() == f"0 it's {tmp_path}\n"
    assert (tmp_path / "out-1").read_text() == f"1 it's {tmp_path}\n"


@pytest.mark.parametrize(("codes", "answer"), [((0, 0), 0), ((75, 75), 75), ((0, 75), 75), ((75, 3), 3), ((2, 75), 2)])
def test_one_code_of_all(ssh: list[str], codes: tuple[int, int], answer: int, capfd) -> None:
    script = f"codes=({codes[0]} {codes[1]}); exit ${{codes[$NODE]}}"
    assert run_over_ssh(["a", "b"], ssh, script) == answer
    assert (f": exit code {answer}\n" in capfd.readouterr().err) == (answer not in (0, 75))


def started(folder: Path, ssh: list[str], code: int = 75) -> tuple[subprocess.Popen[str], list[int]]:
    """`over_ssh` with a program on two hosts; the programs' process ids."""
    (folder / "program.py").write_text(PROGRAM)
    marks = folder / "marks"
    marks.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "scalewright.launch.over_ssh", "--host=a", "--host=b", f"--ssh={ssh[0]}"],
        stdin=subprocess.PIPE, text=True, start_new_session=True, env=os.environ,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(f"exec {sys.executable} {folder}/program.py {marks} {code}\n")
    process.stdin.close()
    wait_for(lambda: len(list(marks.iterdir())) == 2, 30, "two programs")
    return process, [int(mark.name.split("-")[1]) for mark in marks.iterdir()]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT"])
def test_a_signal_here_is_a_sigterm_there(ssh: list[str], tmp_path: Path, name: str) -> None:
    process, programs = started(tmp_path, ssh)
    process.send_signal(signal.Signals[name])
    assert process.wait(20) == 75
    assert alive(programs) == []
    assert {p.name for p in (tmp_path / "marks").glob("left-*")} == {"left-0", "left-1"}


@pytest.mark.parametrize("trap", ["trap 'exit 75' TERM;", ""])
def test_a_signal_between_two_hosts_starts_no_other(
    ssh: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    """The first host was started when it came, and not yet among those to be asked."""
    popen, hosts = subprocess.Popen, []

    def start(command: list[str], **keys: Any) -> subprocess.Popen[bytes]:
        hosts.append(command[command.index("--") + 1])
        client = popen(command, **keys)
        wait_for(lambda: (tmp_path / "marks").exists(), 20)
        os.kill(os.getpid(), signal.SIGTERM)
        return client

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.chdir(tmp_path)
    script = f"{trap} mkdir marks; while :; do sleep 0.1; done"
    assert run_over_ssh(["a", "b"], ssh, script) == 75
    assert hosts == ["a"]


def test_killed_it_leaves_no_orphans(ssh: list[str], tmp_path: Path) -> None:
    process, programs = started(tmp_path, ssh)
    process.kill()
    process.wait(10)
    wait_for(lambda: not alive(programs), 20, "the programs to leave")
    assert {p.name for p in (tmp_path / "marks").glob("left-*")} == {"left-0", "left-1"}


def test_a_host_that_fails_ends_the_others(ssh: list[str], tmp_path: Path) -> None:
    process, programs = started(tmp_path, ssh)
    os.kill(programs[0], signal.SIGKILL)
    assert process.wait(20) == 137
    assert alive(programs) == []

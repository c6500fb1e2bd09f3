"""The same script on several hosts over ssh: one exit code, no orphans.

    this process ──stdin of ssh, kept open──► host: the script, and a watcher that reads stdin
    it is asked to stop, or dies, or the connection ends: stdin ends ──► watcher ──SIGTERM──► the script

    python -m scalewright.launch.over_ssh --host=node-a --host=node-b < SCRIPT

ssh passes no signals on, and leaves alive what it started when it is killed; the end of stdin always arrives.
Bash runs the script in the folder of this process, with NODE=0, 1, ...; its last line must `exec` a program.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

from scalewright.launch.stop import stop_signals
from scalewright.spec.common.formatting import printable
from scalewright.spec.common.shell import quote, split
from scalewright.spec.errors import Stopped

PATIENCE_S = 120.0  # that the other hosts have to leave in after the first one failed
POLL_S = 0.1
SSH = "ssh -o BatchMode=yes -o ServerAliveInterval=15"

# On a host. The watcher's `read` is a builtin: no other process is left when it is killed.
WATCHED = """\
cd {folder} || exit 1
exec 3<&0
NODE={number} bash -c {script} </dev/null 3<&- & child=$!
{{ read -r -u 3 line; kill -TERM "$child"; }} >/dev/null 2>&1 & watcher=$!
code=0; wait "$child" || code=$?
kill "$watcher" 2>/dev/null
exit "$code"
"""


def main(arguments: Sequence[str]) -> int:
    """Reads the script on stdin, runs it on the hosts, and returns one exit code."""
    parser = argparse.ArgumentParser(prog="over_ssh", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--host", action="append", required=True)
    parser.add_argument("--ssh", default=SSH, help="the command, with its options")
    options = parser.parse_args(arguments)
    return run_over_ssh(options.host, split(options.ssh), sys.stdin.read())


def run_over_ssh(hosts: Sequence[str], ssh: Sequence[str], script: str, patience_s: float = PATIENCE_S) -> int:
    """Runs the script on each host. Returns 75 where they saved and left, else the first failure's code."""
    clients: dict[int, subprocess.Popen[bytes]] = {}
    asked: list[int] = []

    def ask(number: int) -> None:
        asked.append(number)
        _ask(clients.values())

    with stop_signals(ask):
        try:
            for number, host in enumerate(hosts):
                command = [*ssh, "--", host, remote_command(script, number, os.getcwd())]
                # A session of its own: a Ctrl-C here is for this process, which tells the hosts in its way.
                clients[number] = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
                if asked:  # before it could be asked; the hosts that are left aren't started
                    _ask(clients.values())
                    break
            return _wait(hosts, clients, patience_s, asked)
        finally:
            _ask(clients.values())
            for client in clients.values():
                if client.poll() is None:
                    client.kill()
                client.wait()


def remote_command(script: str, number: int, folder: str) -> str:
    """What ssh is given: one command, for whatever shell the account has."""
    watched = WATCHED.format(folder=quote(folder), number=number, script=quote(script))
    return f"exec bash -c {quote(watched)}"


def _ask(clients: Iterable[subprocess.Popen[bytes]]) -> None:
    """Ends the stdin of each: the ranks there save and leave."""
    for client in clients:
        with suppress(OSError):
            if client.stdin is not None:
                client.stdin.close()


def _wait(
    hosts: Sequence[str], clients: dict[int, subprocess.Popen[bytes]], patience_s: float, asked: list[int]
) -> int:
    """One code of all. The first failure ends the wait for the others, after some patience."""
    pending, answer = dict(clients), 0
    deadline: float | None = None
    while pending and (deadline is None or time.monotonic() < deadline):
        time.sleep(POLL_S)
        for number, client in list(pending.items()):
            code = client.poll()
            if code is None:
                continue
            del pending[number]
            if asked and code == 128 + signal.SIGTERM:  # the script's end before it had anything to save
                code = Stopped.exit_code
            if code in (0, Stopped.exit_code):
                answer = answer or code
            elif deadline is None:
                print(f"{printable(hosts[number])}: exit code {code}", file=sys.stderr, flush=True)
                answer, deadline = code, time.monotonic() + patience_s
                _ask(pending.values())
    return answer


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

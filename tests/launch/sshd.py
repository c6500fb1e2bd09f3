"""A daemon of ssh of our own on this machine: keys and settings in a folder, nothing of the system's changed.

Debian and Ubuntu: apt-get install --no-install-recommends openssh-server
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def missing() -> str:
    """What isn't installed here."""
    return "" if SSHD and shutil.which("ssh") else "sshd isn't installed"


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def daemon(folder: Path) -> Iterator[Path]:
    """The client's settings (`ssh -F`) for a daemon that runs meanwhile; RuntimeError where it isn't up."""
    port = free_port()
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\n"
        "StrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin prohibit-password\nAcceptEnv PYTHONPATH\n"
    )
    (folder / "ssh_config").write_text(
        f"Host *\nPort {port}\nUser {getpass.getuser()}\nIdentityFile {folder}/user\nIdentitiesOnly yes\n"
        "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nBatchMode yes\nLogLevel ERROR\n"
    )
    made = os.geteuid() == 0 and not Path("/run/sshd").exists()
    if made:  # where a daemon that root starts drops its rights
        Path("/run/sshd").mkdir()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([str(SSHD), "-D", "-e", "-f", str(folder / "sshd_config")], stderr=log)
    try:
        probe = ["ssh", "-F", str(folder / "ssh_config"), "127.0.0.1", "true"]
        for _ in range(50):
            if subprocess.run(probe, capture_output=True).returncode == 0:
                break
            time.sleep(0.1)
        else:
            raise RuntimeError(f"sshd takes nobody here: {(folder / 'log').read_text()[-300:]}")
        yield folder / "ssh_config"
    finally:
        process.terminate()
        process.wait()
        if made:
            Path("/run/sshd").rmdir()

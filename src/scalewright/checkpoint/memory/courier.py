"""The process that keeps another node's steps in this one's memory: `python -m` of this file, one beside every rank.

    node 0   memory ◄── snapshots and their checksums (tier.py)
                ▲ "part-00003.json of step 120": waits until it is counted; then the part, and its files' bytes
    node 1   courier ── counts checksums as the bytes come; the part is there once all agree

Copies are fetched, never sent: a node's memory is read by the one that keeps its copy, and, when the run starts again,
by whoever lacks a file. So a node that is gone, or slow, is nobody's wait but its courier's. Both sides prove that they
know the run's secret (HMAC of a fresh number) before anything is asked; what can be asked for are names in one folder.
No torch, as in writer.py, whose messages these are.
"""

from __future__ import annotations

import hmac
import json
import mmap
import os
import re
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from scalewright.checkpoint.sums import PIECE, count_views
from scalewright.checkpoint.writer import receive, send, stay_with

CONNECT_S, GREET_S = 2.0, 10.0  # for each address of a node
STALL_S = 60.0  # without a byte
LOOK_S = 0.01  # between looks at whether a part is counted
NAME = re.compile(
    r"^(?:[0-9a-f]{12}-[01]|step-[0-9]{8,}|part-[0-9]{5,}\.json|(?:model|optimizer)-[0-9-]+\.safetensors)\Z"
)
PROOF, NONCE = 32, 16


def part_name(rank: int) -> str:
    """The file that tells what a rank has kept of a step."""
    return f"part-{rank:05d}.json"


def put_json(path: Path, content: Any) -> None:
    """A file that is whole, or not there. Raises OSError."""
    partial = path.with_name(f".{path.name}")
    partial.write_text(json.dumps(content), encoding="utf-8")
    os.replace(partial, path)


class Server:
    """Hands out files of this node's memory."""

    def __init__(self, listener: socket.socket, root: Path, secret: str) -> None:
        self.listener, self.root, self.secret = listener, root, secret
        threading.Thread(target=self._serve, daemon=True, name="serve").start()

    def _serve(self) -> None:
        with suppress(OSError):  # it was closed
            while True:
                link, _ = self.listener.accept()
                threading.Thread(target=self._attend, args=(link,), daemon=True).start()

    def _attend(self, link: socket.socket) -> None:
        with link, suppress(OSError, ValueError, KeyError, TypeError):
            link.settimeout(STALL_S)
            theirs, ours = _exactly(link, NONCE), secrets.token_bytes(NONCE)
            link.sendall(ours + _proof(self.secret, b"server", theirs))
            if not hmac.compare_digest(_exactly(link, PROOF), _proof(self.secret, b"client", ours)):
                return
            if (message := receive(link)) is not None:
                self._hand_over(link, message[0])

    def _hand_over(self, link: socket.socket, ask: Mapping[str, Any]) -> None:
        folder = self.root / _named(ask["folder"])
        names = [_named(name) for name in ask["files"]]
        about: dict[str, Any] = {}
        if part := ask.get("part"):
            about = _counted(folder / _named(part), ask["save"], ask["step"], time.monotonic() + ask["limit_s"])
            names = [_named(name) for name in about.get("files", ())]
        send(link, about)
        _bear(link)
        for name in names:
            _send_file(link, folder / name)


def _named(name: str) -> str:
    if not NAME.match(name):
        raise ValueError(f"no name of a step's: {name[:80]!r}")
    return name


def _counted(part: Path, save: str, step: int, deadline: float) -> dict[str, Any]:
    """What is kept of a step, once its checksums are there; {"problem": text} where they won't be."""
    while time.monotonic() < deadline:
        with suppress(OSError, ValueError):
            about: dict[str, Any] = json.loads(part.read_text("utf-8"))
            if about["save"] == save and about["step"] == step:
                return about
        time.sleep(LOOK_S)
    return {"problem": f"step {step} isn't there"}


def _proof(secret: str, side: bytes, nonce: bytes) -> bytes:
    return hmac.digest(secret.encode(), side + nonce, "sha256")


def _exactly(link: socket.socket, count: int) -> bytes:
    content = bytearray(count)
    _fill(link, memoryview(content))
    return bytes(content)


def _fill(link: socket.socket, view: memoryview) -> None:
    while view:
        try:
            count = link.recv_into(view, 0, socket.MSG_WAITALL)
        except BlockingIOError:
            raise TimeoutError(f"no more bytes within {STALL_S:.0f} s") from None
        if not count:
            raise ConnectionError("the other side has gone")
        view = view[count:]


def _bear(link: socket.socket) -> None:
    """From now on the kernel waits, for a whole piece, and no interpreter for each packet of it."""
    link.settimeout(None)
    for way in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        link.setsockopt(socket.SOL_SOCKET, way, struct.pack("ll", int(STALL_S), 0))


def _send_file(link: socket.socket, path: Path) -> None:
    with open(path, "rb") as file:
        size, sent = os.fstat(file.fileno()).st_size, 0
        while sent < size:
            sent += os.sendfile(link.fileno(), file.fileno(), sent, size - sent)


def reach(addresses: Sequence[Sequence[Any]], secret: str) -> socket.socket:
    """A connection to a courier at the first of its addresses (host, port) that is its. Raises OSError."""
    for host, port in addresses:
        link = None
        try:
            link = socket.create_connection((str(host), int(port)), CONNECT_S)
            link.settimeout(GREET_S)
            nonce = secrets.token_bytes(NONCE)
            link.sendall(nonce)
            theirs, proof = _exactly(link, NONCE), _exactly(link, PROOF)
            if not hmac.compare_digest(proof, _proof(secret, b"server", nonce)):
                raise ConnectionError("another run's")
            link.sendall(_proof(secret, b"client", theirs))
            link.settimeout(STALL_S)
            return link
        except OSError:
            if link is not None:
                link.close()
    raise ConnectionError(f"nobody answers at {' or '.join(f'{host}:{port}' for host, port in addresses)}")


def fetch_file(link: socket.socket, path: Path, size: int, checksum: str) -> None:
    """The next file of a connection, its checksum compared as it comes; over the memory of the one that it replaces.
    Raises OSError."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        os.ftruncate(handle, size)
        os.posix_fallocate(handle, 0, size)  # memory that isn't there is an error here, and not a SIGBUS later
        content = memoryview(mmap.mmap(handle, size))
    finally:
        os.close(handle)

    def arriving() -> Iterator[memoryview]:
        _bear(link)
        for start in range(0, size, PIECE):
            _fill(link, piece := content[start : start + PIECE])
            yield piece

    if count_views(arriving()) != (size, checksum):
        raise OSError(f"{path.name} came damaged (its checksum differs)")


def _pull(job: Mapping[str, Any], want: Mapping[str, Any]) -> int:
    """Makes this node's copy of a rank's part of a step; its bytes. Raises OSError, ValueError."""
    folder, part = Path(job["root"], job["folder"]), part_name(want["rank"])
    with reach(want["addresses"], job["secret"]) as link:
        ask = {key: job[key] for key in ("folder", "save", "step", "limit_s")}
        send(link, {**ask, "part": part, "files": []})
        link.settimeout(job["limit_s"] + STALL_S)
        if (message := receive(link)) is None:
            raise ConnectionError("the other side has gone")
        about = message[0]
        if problem := about.get("problem"):
            raise OSError(problem)
        link.settimeout(STALL_S)
        (folder / part).unlink(missing_ok=True)  # what follows changes the files that it describes
        for name, entry in about["files"].items():
            fetch_file(link, folder / _named(name), entry["bytes"], entry["checksum"])
        put_json(folder / part, {**about, "held": True})
        return sum(int(entry["bytes"]) for entry in about["files"].values())


def _pull_all(job: Mapping[str, Any]) -> dict[str, Any]:
    """Does a job: {root, secret, limit_s, folder, save, step, pulls: [{rank, addresses}]}."""
    problems, size, started = [], 0, time.monotonic()
    for want in job["pulls"]:
        try:
            size += _pull(job, want)
        except (OSError, ValueError, KeyError, TypeError) as error:
            problems.append(f"rank {want['rank']}: {getattr(error, 'strerror', None) or error}")
    answer = {"bytes": size, "seconds": time.monotonic() - started}
    return answer | ({"problem": "; ".join(problems)} if problems else {})


def main(handle: int, rank: int, listens: int) -> None:
    """Serves the process `rank` over the socket `handle`, and other nodes on `listens`, until the first ends."""
    stay_with(rank)
    server: Server | None = None
    with socket.socket(fileno=handle) as link, socket.socket(fileno=listens) as listener:
        while (message := receive(link)) is not None:
            job, _ = message
            server = server or Server(listener, Path(job["root"]), job["secret"])
            send(link, _pull_all(job))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))

"""The process that writes a rank's part of a checkpoint while the rank trains on: `python -m` of this file.

    rank   ── folder, files, descriptors of their memory ──►  writer   each file: write, checksums, all finite?; fsync
           ◄── sizes, checksums, bad tensors, or a problem ──

It is started once, and imports no torch: 0.1 s, and 30 MB with numpy. Signals that stop a run don't reach it: what is
under way is wanted then. It ends when its rank does, in the middle of a file if need be: a part without its rank can't
become a checkpoint, and the next start of the run removes it.

Messages are JSON behind their length (4 bytes) on a socket that both inherit; descriptors travel beside a job.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from scalewright.checkpoint.sums import count_views, write_views

PIECE = 4 << 20
LOOK_S = 0.2  # between looks at whether the rank is still there
# Bits that are all set in an infinity and in a NaN, of types that numpy lacks
EXPONENT = {"bfloat16": ("uint16", 0x7F80), "float8_e5m2": ("uint8", 0x7C), "float8_e4m3fn": ("uint8", 0x7F)}
FLOATS = ("float64", "float32", "float16")


def main(handle: int, rank: int) -> None:
    """Serves the process `rank` over the socket `handle`, until that ends."""
    stay_with(rank)
    with socket.socket(fileno=handle) as link:
        while (message := receive(link)) is not None:
            job, memory = message
            send(link, _answer(job, memory))


def stay_with(rank: int) -> None:
    """This process ends when its rank does, and by none of the signals that stop a run."""
    for name in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    threading.Thread(target=_leave_with, args=(rank,), daemon=True).start()


def _leave_with(rank: int) -> None:
    while os.getppid() == rank:
        time.sleep(LOOK_S)
    os._exit(1)


def _answer(job: dict[str, Any], memory: Sequence[int]) -> dict[str, Any]:
    """Does a job: {folder, files: [{name, bytes, tensors: [[name, dtype, first byte, end]]}]}. One with a `part` isn't
    written: its memory stays (memory/), and the part's file says what lies there, and `about` it."""
    try:
        written, bad = {}, []
        for file, handle in zip(job["files"], memory, strict=True):
            with mmap.mmap(handle, file["bytes"], prot=mmap.PROT_READ) as mapped, memoryview(mapped) as content:
                path = None if "part" in job else Path(job["folder"], file["name"])
                entry, names = write_file(path, content, file["tensors"])
            written[file["name"]] = {**entry, **({"boxes": file["boxes"]} if "boxes" in file else {})}
            bad += names
        answer = {"files": written, "nonfinite": bad}
        if "part" in job:
            partial = Path(job["folder"], f".{job['part']}")
            partial.write_text(json.dumps({**job["about"], **answer}), encoding="utf-8")
            os.replace(partial, partial.with_name(job["part"]))
        return answer
    except Exception as error:  # the rank tells it, and trains on
        return {"problem": str(error) or type(error).__name__}
    finally:
        for handle in memory:
            os.close(handle)


def write_file(
    path: Path | None, content: memoryview, tensors: Sequence[Sequence[Any]]
) -> tuple[dict[str, Any], list[str]]:
    """Writes a file to the disk, where it has a path; {bytes, checksum} of it, and the tensors with numbers that aren't
    finite, each (name, dtype, first byte, end). Raises OSError."""
    with ThreadPoolExecutor(1) as pool:
        bad = pool.submit(lambda: [name for name, *where in tensors if not is_finite(content, *where)])
        size, checksum = write_views(path, [content]) if path is not None else count_views([content])
        return {"bytes": size, "checksum": checksum}, bad.result()


def is_finite(content: memoryview, dtype: str, begin: int, end: int) -> bool:
    """Whether every number of a tensor is finite."""
    import numpy as np

    if dtype not in FLOATS and dtype not in EXPONENT:
        return True
    kind, bits = EXPONENT.get(dtype, (dtype, 0))
    for at in range(begin, end, PIECE):
        part = np.frombuffer(content[at : min(at + PIECE, end)], dtype=kind)
        if ((part & bits) == bits).any() if bits else not np.isfinite(part).all():
            return False
    return True


def send(link: socket.socket, message: dict[str, Any], memory: Sequence[int] = ()) -> None:
    """Sends a message, and descriptors with it. Raises OSError."""
    data = json.dumps(message).encode()
    head = struct.pack("<I", len(data))
    if memory:
        socket.send_fds(link, [head], list(memory))
    else:
        link.sendall(head)
    link.sendall(data)


MOST_FILES = 250  # descriptors beside a message (Linux: 253)


def receive(link: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next message and its descriptors; None at the other side's end. Raises OSError, ValueError."""
    head, memory, _, _ = socket.recv_fds(link, 4, MOST_FILES)
    while 0 < len(head) < 4:
        more = link.recv(4 - len(head))
        head = head + more if more else b""
    if not head:
        return None
    (left,) = struct.unpack("<I", head)
    parts = []
    while left:
        if not (part := link.recv(min(left, PIECE))):
            return None
        parts.append(part)
        left -= len(part)
    message: dict[str, Any] = json.loads(b"".join(parts))
    return message, list(memory)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

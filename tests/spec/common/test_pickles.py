"""Pickles of data are read; those that import, call or build anything are refused; damage never runs."""

from __future__ import annotations

import collections
import contextlib
import gzip
import io
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scalewright.spec.common.pickles import NotPlainData, read_pickle

DATA = {"entries": [{"a": 1, "b": [1.5, None, True], "c": ("x", b"y")}] * 3, 7: {1, 2}, "long": 1 << 70}


class Runs:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch ran",)


class Builds:
    """Gets its attributes set when it is unpickled."""

    def __init__(self) -> None:
        self.x = 1


def read(folder: Path, data: bytes) -> Any:
    path = folder / "file"
    path.write_bytes(data)
    return read_pickle(path)


@pytest.mark.parametrize("protocol", range(6))
def test_data_of_every_protocol(tmp_path: Path, protocol: int) -> None:
    data = {key: value for key, value in DATA.items() if key != 7} if protocol < 4 else DATA  # sets are calls before
    if protocol < 3:
        data = {"entries": [{"a": 1, "b": [1.5, None], "c": ("x", "ü")}], "long": 1 << 70}  # and so are bytes
    assert read(tmp_path, pickle.dumps(data, protocol)) == data
    assert read(tmp_path, gzip.compress(pickle.dumps(data, protocol))) == data


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("thing", [Runs(), Builds(), print, collections.OrderedDict(a=1), Path("x")])
def test_whatever_imports_or_calls_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thing: Any, protocol: int
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotPlainData, match="runs code"):
        read(tmp_path, pickle.dumps({"entries": [], "x": thing}, protocol))
    assert not (tmp_path / "ran").exists()


def test_a_large_place_in_the_memo_takes_no_memory(tmp_path: Path) -> None:
    assert read(tmp_path, b"\x80\x02N" + b"r\xff\xff\xff\x7f" + b".") is None


def test_an_extension_and_a_persistent_name_are_refused(tmp_path: Path) -> None:
    for code in (b"\x82\x01", b"Pname\n", b"N\x51"):
        with pytest.raises(NotPlainData):
            read(tmp_path, b"\x80\x02" + code + b".")


@pytest.mark.parametrize("data", [b"", b"\x80", b"\x80\x04]", b"hello", b"\x1f\x8bxx", b"\x80\x04\x8e" + b"\xff" * 9])
def test_what_is_no_pickle_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(NotPlainData):
        read(tmp_path, data)


@pytest.mark.parametrize("seed", range(100))
def test_random_damage_gives_data_or_a_refusal(tmp_path: Path, seed: int) -> None:
    source = random.Random(seed)
    stream = io.BytesIO()
    pickle.Pickler(stream, source.randrange(2, 6)).dump({"entries": [{"name": str(n), "n": n} for n in range(50)]})
    data = bytearray(stream.getvalue())
    for _ in range(source.randint(1, 10)):
        data[source.randrange(len(data))] = source.randrange(256)
    with contextlib.suppress(NotPlainData):
        read(tmp_path, bytes(data))


def nested(depth: int) -> bytes:
    """Opcodes of (((...))) as a dictionary's key."""
    return b"\x80\x02})" + b"\x85" * depth + b"Ns."


def doubled(depth: int) -> bytes:
    """Opcodes of a key (t, t) with t of the same kind, down to ()."""
    levels = b"".join(b"h%ch%c\x86q%c0" % (i, i, i + 1) for i in range(depth))
    return b"\x80\x02})q\x000" + levels + b"h%cNs." % depth


def shared(count: int, depth: int) -> bytes:
    part: Any = {}
    for _ in range(depth):
        part = [part] * count
    return pickle.dumps({"segments": part})


BOMBS = {
    "deep key": nested(300_000), "deep member": nested(300_000)[:-2].replace(b"}", b"\x8f(", 1) + b"\x90.",
    "doubled key": doubled(60), "long key": pickle.dumps({tuple(range(9999)): 1}),
    "shared lists": shared(1000, 4), "shared often": shared(30_000, 2),
    "itself": b"\x80\x02]q\x00h\x00a.", "itself, below": b"\x80\x02]q\x00}(K\x01h\x00ua.",
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_is_no_endless_work(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(BOMBS[name])
    code = f"from scalewright.spec.common.pickles import *; read_pickle(Path({str(tmp_path / 'file')!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "NotPlainData: " in done.stderr.splitlines()[-1]


def test_shared_stacks_of_a_snapshot_are_read(tmp_path: Path) -> None:
    frames = [{"name": "f", "filename": "a.py", "line": 1}] * 40
    data = {"device_traces": [[{"action": "alloc", "addr": i, "frames": frames} for i in range(9000)]]}
    assert read(tmp_path, pickle.dumps(data)) == data

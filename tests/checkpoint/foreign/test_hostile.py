"""Folders made to do harm: one line of error, nothing run, nothing written; and damage never runs.

Every case first passes through the confined process as it would for a user; the fuzz calls its reader
directly.
"""

from __future__ import annotations

import builtins
import json
import os
import pickle
import random
import resource
import shutil
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import Metadata

from checkpoint.foreign.small import hugging_face, save_dcp, save_nanotron, save_zero, titan, weights, write_config
from scalewright.checkpoint.convert import convert
from scalewright.checkpoint.foreign import child, files
from scalewright.checkpoint.foreign.folder import ForeignFolder, find_foreign, kind_of
from scalewright.spec.errors import UserError


class Calls:
    """Calls a function with arguments when it is unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


CALLS = {
    "os.system": Calls(os.system, "touch ran"),
    "exec": Calls(builtins.exec, "open('ran', 'w')"),
    "eval": Calls(builtins.eval, "open('ran', 'w')"),
    "getattr": Calls(builtins.getattr, "os", "system"),
    "import": Calls(builtins.__import__, "antigravity"),
    "subprocess": Calls(subprocess.call, ["touch", "ran"]),
    "rmtree": Calls(shutil.rmtree, "."),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder of each format."""
    root = tmp_path_factory.mktemp("theirs")
    ours = weights()
    save_dcp(root / "dcp", titan(ours))
    save_zero(root / "deepspeed", hugging_face(ours), 2, 2)
    save_nanotron(root / "nanotron", ours, 2)
    write_config(root)
    return root


def refused(folder: Path, match: str) -> None:
    """Convert ends with one line, runs nothing and writes nothing."""
    out = folder.parent / "out"
    with pytest.raises(UserError, match=match) as error:
        convert(folder, out, model=str(write_config(folder.parent / "settings")))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600
    assert not out.exists()
    assert not Path("ran").exists()


@pytest.fixture
def copy(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A fresh copy of a format's folder; the test runs in an empty folder."""
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")

    def one(kind: str) -> Path:
        return Path(shutil.copytree(saved / kind, tmp_path / kind))

    return one


def metadata(folder: Path) -> Metadata:
    """The folder's own, to be changed."""
    read: Metadata = pickle.loads((folder / ".metadata").read_bytes())
    return read


def write(folder: Path, content: Any) -> None:
    (folder / ".metadata").write_bytes(pickle.dumps(content))


@pytest.mark.parametrize("name", CALLS)
def test_a_pickle_that_calls(copy: Callable[[str], Path], name: str) -> None:
    folder = copy("dcp")
    write(folder, {"x": CALLS[name]})
    refused(folder, "which no checkpoint of weights needs")
    shutil.rmtree(folder)
    folder = copy("dcp")
    changed = metadata(folder)
    changed.planner_data = CALLS[name]
    write(folder, changed)
    refused(folder, "which no checkpoint of weights needs")


@pytest.mark.parametrize("name", ["os.system", "exec"])
def test_a_file_of_torch_save_that_calls(copy: Callable[[str], Path], name: str) -> None:
    folder = copy("deepspeed")
    torch.save({"module": {}, "x": CALLS[name]}, folder / "mp_rank_00_model_states.pt")
    refused(folder, "which no checkpoint of weights needs")


def test_the_pickle_would_have_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pickle.loads(pickle.dumps(CALLS["os.system"]))
    assert Path("ran").exists()


def first_place(content: Metadata) -> Any:
    return next(iter(content.storage_data.values()))


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "a/../../secret", "link", "..\\secret"])
def test_a_chunk_outside_of_the_folder(copy: Callable[[str], Path], path: str) -> None:
    folder = copy("dcp")
    shutil.copy(folder / "__0_0.distcp", folder.parent / "secret")
    (folder / "link").symlink_to(folder.parent / "secret")
    changed = metadata(folder)
    first_place(changed).relative_path = path
    write(folder, changed)
    refused(folder, "outside its folder")


@pytest.mark.parametrize(("offset", "length"), [(1 << 40, 100), (-5, 100), (0, 1 << 50), (7, 900), (0, 3)])
def test_a_chunk_outside_of_its_file(copy: Callable[[str], Path], offset: int, length: int) -> None:
    folder = copy("dcp")
    changed = metadata(folder)
    place = first_place(changed)
    place.offset, place.length = offset, length
    write(folder, changed)
    refused(folder, "can't be read")


def test_shapes_that_lie(copy: Callable[[str], Path]) -> None:
    folder = copy("dcp")
    changed = metadata(folder)
    entry = changed.state_dict_metadata["norm.weight"]
    entry.size = torch.Size([1 << 45])
    write(folder, changed)
    refused(folder, "isn't covered exactly once")
    entry.chunks[0].sizes = torch.Size([1 << 45])
    write(folder, changed)
    refused(folder, "has another shape")


def test_a_tensor_larger_than_its_storage(copy: Callable[[str], Path]) -> None:
    folder = copy("deepspeed")
    path = folder / "mp_rank_00_model_states.pt"
    row = torch.zeros(4)
    torch.save({"module": {"norm.weight": row}}, path)
    for optimizer in folder.glob("*optim*"):
        optimizer.unlink()
    data = path.read_bytes()
    torch.save({"module": {"norm.weight": row.expand(1 << 30, 4)}}, path)  # strides of 0
    refused(folder, "is larger than")
    assert len(data) < 4096


def test_a_zip_bomb(copy: Callable[[str], Path]) -> None:
    folder = copy("deepspeed")
    path = folder / "mp_rank_00_model_states.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as bomb:
        bomb.writestr("archive/data.pkl", bytes(1 << 25))
    assert path.stat().st_size < 1 << 20
    refused(folder, "compressed or encrypted")


def test_a_pickle_that_grows(copy: Callable[[str], Path]) -> None:
    """Lists within lists twice over: 2^60 elements if walked; and a length far beyond the file."""
    folder = copy("dcp")
    bomb: list[Any] = []
    for _ in range(60):
        bomb = [bomb, bomb]
    write(folder, bomb)
    refused(folder, "no metadata of torch.distributed.checkpoint")
    (folder / ".metadata").write_bytes(b"\x80\x04\x8e" + (1 << 50).to_bytes(8, "little") + b"x.")
    refused(folder, "can't be read")


AT = (8, 1 << 62, 1 << 70, -7680)  # bytes at which a tensor isn't


def test_nanotrons_slices_that_lie(copy: Callable[[str], Path]) -> None:
    folder = copy("nanotron")
    path = next(folder.rglob("qkv_proj/*tp-rank-1*"))
    data = path.read_bytes()
    for before, after, match in (
        (b"#24,48,", b"#20,44,", "exactly once"),
        (b"#24,48,", b"#99,48,", "which part"),
        (b"(80, 48)", b"(99, 48)", "another shape"),
        (b'"F32"', b'"F16"', "no safetensors file"),
        (b'"shape":[40,48]', b'"shape":[90,48]', "no safetensors file"),
        *((b"[0,7680]", b"[%d,%d]" % (at, at + 7680), "larger than|can.t be read|damaged") for at in AT),
        (b"[0,7680]", b"[0.5,7680.5]", "no safetensors file"),
        (b'"F32"', b'"F99"', "no safetensors file"),
    ):
        assert before in data
        path.write_bytes(data.replace(before, after))
        refused(folder, match)


@pytest.mark.skipif(sys.platform != "linux", reason="the list of calls is Linux's")
def test_the_confined_process_can_only_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    script = """
import json, os, socket, subprocess, sys
sys.path.insert(0, sys.argv[1])
from scalewright.checkpoint.foreign.confine import confine
os.chdir(sys.argv[2])
holds = confine(1 << 30, 10)
tries = {
    "read": lambda: open("file").read(), "write": lambda: open("new", "w"), "socket": lambda: socket.socket(),
    "program": lambda: subprocess.run(["true"]), "fork": lambda: os.fork(),
    "remove": lambda: os.unlink("file"),
    "rename": lambda: os.rename("file", "x"), "kill": lambda: os.kill(os.getppid(), 0),
    "memory": lambda: bytearray(2 << 30), "folder": lambda: os.mkdir("d"),
    "exec": lambda: os.execv("/bin/true", ["t"]),
}
answer = {}
for name, call in tries.items():
    try:
        answer[name] = repr(call())
    except (OSError, MemoryError) as error:
        answer[name] = type(error).__name__
json.dump([holds, answer], sys.stdout)
"""
    root = str(Path(files.__file__).parents[3])
    command = [sys.executable, "-I", "-S", "-B", "-c", script, root, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={})
    holds, answer = json.loads(done.stdout)
    assert holds == ["limits", "no_new_privs", "seccomp"]
    assert answer.pop("read") == "'content'"
    assert answer.pop("memory") == "MemoryError"
    assert set(answer.values()) == {"PermissionError"}, answer
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]


def test_every_reading_is_confined(saved: Path) -> None:
    expected = ["limits", "no_new_privs", "seccomp"] if sys.platform == "linux" else ["limits"]
    for kind in ("dcp", "deepspeed", "nanotron"):
        assert kind_of(saved / kind) == kind
        assert files.ForeignFiles(saved / kind, kind).confined == expected
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 0  # this process stays as it was
    socket.socket().close()


def damage(data: bytes, chance: random.Random) -> bytes:
    """Bytes changed, cut off, doubled or exchanged."""
    way, at = chance.randrange(5), chance.randrange(len(data))
    if way == 0:
        return data[:at]
    if way == 1:
        return data[:at] + data[at : at + 64] + data[at:]
    if way == 2:
        return data[:at] + data[at + chance.randrange(1, 64) :]
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 12)):
        index = min(len(data) - 1, at + chance.randrange(256)) if way == 3 else chance.randrange(len(data))
        changed[index] = chance.randrange(256)
    return bytes(changed)


def fuzz(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, seed: int) -> dict[str, int]:
    """Damaged files through the reader: each is refused in one line, or read as one of its true size."""
    model = write_config(tmp_path / "settings")
    monkeypatch.setattr(files, "ask", in_this_process)
    monkeypatch.chdir(tmp_path)
    chance, outcomes = random.Random(seed), {"refused": 0, "read": 0}
    targets = [(saved / "dcp", ".metadata"), (saved / "dcp", "__0_0.distcp")]
    targets += [(saved / "deepspeed", path.name) for path in sorted((saved / "deepspeed").iterdir())]
    nanotron = saved / "nanotron"
    targets += [(nanotron, p.relative_to(nanotron)) for p in sorted(nanotron.rglob("*qkv*/*"))]
    for number in range(count):
        folder, name = chance.choice(targets)
        original = (folder / name).read_bytes()
        (folder / name).write_bytes(damage(original, chance))
        message = attempt(folder, model)
        (folder / name).write_bytes(original)
        assert "\n" not in message, number
        outcomes["refused" if message else "read"] += 1
    assert not (tmp_path / "ran").exists()
    return outcomes


def attempt(folder: Path, model: str) -> str:
    """The error's line; empty: it was read, and is no larger than it was."""
    try:
        reader = ForeignFolder(find_foreign(folder) or folder, model)
        total = sum(reader.read(name).numel() for name in ("embed.weight", "layers.1.attention.q.weight"))
    except UserError as error:
        return str(error)
    assert total < 1 << 20
    return ""


def in_this_process(folder: Path, kind: str) -> dict[str, Any]:
    """`files.ask` without its process: hundreds of starts would take minutes."""
    answer = child.answer(kind, folder)
    if "what" in answer:
        raise UserError(answer["what"], answer.get("where", ""))
    return answer


def test_damaged_files(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = fuzz(saved, tmp_path, monkeypatch, 60, seed=1)
    assert outcomes["refused"] > 20


@pytest.mark.slow
def test_many_damaged_files(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = fuzz(saved, tmp_path, monkeypatch, 2000, seed=2)
    assert outcomes["refused"] > 600


def test_what_is_no_checkpoint_stays_none(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "latest").write_bytes(b"../../etc\0")
    assert find_foreign(tmp_path / "x") is None

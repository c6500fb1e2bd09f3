"""Stopped in the middle, damaged, changed, out of space: nothing is lost, nothing wrong is taken."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
from tests.data.whole import verify

from scalewright.data import encode, workers
from scalewright.data.dataset import open_data
from scalewright.data.encode import PieceWork
from scalewright.data.plan import held
from scalewright.data.prepare import prepare
from scalewright.data.shards import commit
from scalewright.spec.errors import RunError, UserError
from scalewright.spec.run import DataSpec

from .test_prepare import corpus, files_of, quiet
from .texts import words, write_tokenizer

SLOW = """
import sys, time
from scalewright.data import encode, prepare
run = encode.PieceWork.run
def slowly(self, piece):
    record = run(self, piece)
    time.sleep(0.5)
    return record
encode.PieceWork.run = slowly
if __name__ == "__main__":
    prepare.prepare("c", "out", tokenizer="t.json", workers=int(sys.argv[1]), progress=None)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Some 4 MB of text, in pieces of one, and a tokenizer; prepared."""
    folder = tmp_path_factory.mktemp("made")
    corpus(folder / "c", 120, 6000)
    write_tokenizer(folder / "t.json")
    prepared(folder)
    return folder


@pytest.fixture
def folder(made, tmp_path):
    """A copy of it, not prepared."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("out"))
    return tmp_path


@pytest.fixture
def ready(made, tmp_path):
    """A copy of it."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def prepared(folder, name="out", **keys):
    return quiet(folder / "c", folder / name, tokenizer=folder / "t.json", **keys)


@pytest.mark.parametrize("count", [1, 2])
def test_a_killed_run_goes_on(made, folder, count):
    (folder / "slow.py").write_text(SLOW)
    running = subprocess.Popen([sys.executable, "slow.py", str(count)], cwd=folder)
    try:
        deadline = time.monotonic() + 60
        while not list((folder / "out" / "pieces").glob("0*.json")):
            assert time.monotonic() < deadline
            assert running.poll() is None
            time.sleep(0.02)
        children = psutil.Process(running.pid).children(recursive=True)
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive  # workers end with their parent
    assert not (folder / "out" / "metadata.json").exists()
    with pytest.raises(UserError, match="not finished"):
        open_data(DataSpec.parse({"train": str(folder / "out")}), "train")

    again = prepared(folder)
    assert 0 < again.pieces_kept < again.pieces
    assert files_of(folder / "out") == files_of(made / "out")
    assert not list(folder.rglob("*.tmp"))


def test_a_damaged_piece_is_done_again(ready):
    shard = ready / "out" / "train" / "tokens-00001.bin"
    good = shard.read_bytes()
    shard.write_bytes(good[:1000] + b"\xff\xff" + good[1002:])
    with pytest.raises(UserError, match=r"tokens-00001\.bin.*redoes only what is damaged"):
        open_data(DataSpec.parse({"train": str(ready / "out")}), "train")
    with pytest.raises(UserError, match="its checksum differs"):
        verify(ready / "out")
    again = prepared(ready)
    assert again.pieces_kept == again.pieces - 1 > 1
    assert shard.read_bytes() == good
    assert verify(ready / "out") > 2


@pytest.mark.parametrize("name", ["tokens-00000.bin", "documents.bin", "metadata.json"])
def test_cut_off_and_missing_files(ready, name):
    path = ready / "out" / "train" / name
    good = path.read_bytes()
    for damage in (lambda: path.write_bytes(good[:-2]), path.unlink):
        damage()
        with pytest.raises(UserError) as caught:
            open_data(DataSpec.parse({"train": str(ready / "out")}), "train")
        assert "prepare" in str(caught.value)
        assert "\n" not in str(caught.value)
        prepared(ready)
        assert path.read_bytes() == good


def test_a_damaged_tokenizer_is_copied_again(ready):
    (ready / "out" / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="not the one that made these tokens"):
        verify(ready / "out")
    again = prepared(ready)
    assert again.pieces_kept == again.pieces
    verify(ready / "out")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "c" / "003.txt").write_text("other"), "c/003.txt has changed"),
        (lambda f: (f / "c" / "003.txt").unlink(), "c/003.txt is gone"),
        (lambda f: (f / "c" / "new.txt").write_text("new"), "c/new.txt is new"),
        (lambda f: write_tokenizer(f / "t.json", 300), "tokenizer"),
    ],
)
def test_changed_inputs_are_refused(ready, change, message):
    before = files_of(ready / "out")
    change(ready)
    with pytest.raises(UserError, match=message) as caught:
        prepared(ready)
    assert "--overwrite" in str(caught.value)
    assert files_of(ready / "out") == before
    assert prepared(ready, overwrite=True).pieces_kept == 0


def test_changed_options_are_refused(ready):
    with pytest.raises(UserError, match=r"--valid-fraction 0\.1, now with --valid-fraction 0\.2"):
        prepared(ready, valid_fraction=0.2)
    assert prepared(ready, renew=True).pieces_kept > 0  # nothing differs
    assert prepared(ready, renew=True, valid_fraction=0.2).pieces_kept == 0


def test_a_file_that_grows_meanwhile(folder, monkeypatch):
    sizes = encode.PieceWork._documents

    def grows(self, piece):
        with open(folder / "c" / "119.txt", "a") as file:
            file.write("more")
        return sizes(self, piece)

    monkeypatch.setattr(PieceWork, "_documents", grows)
    with pytest.raises(UserError, match="changed while it was read"):
        prepared(folder)


def test_a_full_disk(made, folder, monkeypatch):
    """The third piece finds no space: one line, the first two stay, the same call goes on."""
    add = encode._SplitWriter.add

    def full(self, *arguments):
        if self.path.name == "tokens-00002.bin":
            raise OSError(errno.ENOSPC, "No space left on device", str(self.path))
        return add(self, *arguments)

    monkeypatch.setattr(encode._SplitWriter, "add", full)
    with pytest.raises(RunError, match="No space left on device") as caught:
        prepared(folder)
    assert "\n" not in str(caught.value)
    assert not list(folder.rglob("*.tmp"))
    monkeypatch.undo()
    assert prepared(folder).pieces_kept == 2
    assert files_of(folder / "out") == files_of(made / "out")


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="needs a limit on file sizes")
def test_a_real_limit_in_a_worker(folder):
    """The error of a worker's write, here by a limit on file sizes, reaches the user as one line."""
    script = (
        "import resource, signal\n"
        "from scalewright.data.prepare import prepare\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
        "    try:\n"
        "        prepare('c', 'out', tokenizer='t.json', workers=2, progress=None)\n"
        "    except Exception as error:\n"
        "        print(type(error).__name__, error)\n"
    )
    (folder / "limited.py").write_text(script)
    done = subprocess.run([sys.executable, "limited.py"], cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.stdout.startswith("RunError cannot write to out: File too large"), done.stderr
    assert len(done.stdout.splitlines()) == 1


def test_a_dead_worker(folder, monkeypatch):
    script = (
        "import os, sys\n"
        "from scalewright.data import encode, prepare\n"
        "run = encode.PieceWork.run\n"
        "def dies(self, piece):\n"
        "    if piece.number == 2:\n"
        "        os._exit(9)\n"
        "    return run(self, piece)\n"
        "encode.PieceWork.run = dies\n"
        "if __name__ == '__main__':\n"
        "    try:\n"
        "        prepare.prepare('c', 'out', tokenizer='t.json', workers=2, progress=None)\n"
        "    except Exception as error:\n"
        "        print(type(error).__name__, error)\n"
    )
    (folder / "dies.py").write_text(script)
    done = subprocess.run([sys.executable, "dies.py"], cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.stdout.startswith("RunError a worker process died"), done.stderr
    assert prepared(folder).pieces_kept >= 1


def test_two_at_once(folder):
    (folder / "out" / "pieces").mkdir(parents=True)
    started = psutil.Process().create_time()
    mark = folder / "out" / "pieces" / "lock.json"
    mark.write_text(json.dumps({"process": os.getpid(), "started": started}))
    with pytest.raises(UserError, match="is at work there"):
        prepared(folder)
    mark.write_text(json.dumps({"process": os.getpid(), "started": started - 100}))  # a killed run's
    assert prepared(folder).pieces_kept == 0
    assert not mark.exists()


@pytest.mark.slow
def test_memory_of_the_whole(tmp_path):
    """Peak memory for 24 MB is that for 3 MB: what is held doesn't depend on the input's size."""
    resource = pytest.importorskip("resource")
    assert resource
    write_tokenizer(tmp_path / "t.json")
    block = words(20_000)
    peaks = {}
    for size in (3, 24):
        with open(tmp_path / f"{size}.txt", "w") as file:
            for _ in range(size * 1_000_000 // len(block.encode())):
                file.write(block)
        script = (
            "import resource\n"
            "from scalewright.data.prepare import prepare\n"
            f"prepare('{size}.txt', 'out{size}', tokenizer='t.json', workers=1, progress=None)\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
        )
        done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=200)
        peaks[size] = int(done.stdout) / 1024
    assert peaks[24] - peaks[3] < 40, peaks  # MiB; the allocator keeps some, the input is seven times larger


def test_many_small_inputs_need_no_processes(monkeypatch, tmp_path):
    monkeypatch.setattr(workers, "_in_processes", None)  # would fail if it were called
    assert prepare(corpus(tmp_path / "c"), tmp_path / "out", vocab_size=300, progress=None).splits


@pytest.mark.parametrize("write", ["commit", "piece"])
def test_no_temporary_name_is_written_through(tmp_path, write):
    """In a folder that others may write to: a name that will be used is a link by then."""
    path, victim = tmp_path / "x.bin", tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "x.bin.tmp").symlink_to(victim)
    if write == "commit":
        commit(path, [b"abcd"])
    else:
        piece = encode._SplitWriter(path, "uint16")
        piece.add(np.array([1, 2], dtype=np.int32), 2, True)
        piece.close()
    assert victim.read_text() == "mine"
    assert (path.stat().st_size, path.is_symlink()) == (4, False)


@pytest.mark.skipif(sys.platform == "win32", reason="the lock is Unix's")
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_second_prepare_that_starts_at_the_same_moment(tmp_path, overwrite):
    (tmp_path / "a.txt").write_text(words(2000))
    quiet(tmp_path / "a.txt", tmp_path / "out")
    before = files_of(tmp_path / "out")
    with held(tmp_path / "out"), pytest.raises(UserError, match="another prepare is at work there"):
        quiet(tmp_path / "a.txt", tmp_path / "out", overwrite=overwrite)
    assert files_of(tmp_path / "out") == before
    quiet(tmp_path / "a.txt", tmp_path / "out", overwrite=overwrite)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes are Unix's")
@pytest.mark.parametrize(
    "name", ["tokenizer.json", "pieces/tokenizer.json", "pieces/00000.json", "train/tokens-00000.bin"]
)
def test_a_pipe_in_the_place_of_a_file_is_redone(tmp_path, name):
    (tmp_path / "a.txt").write_text(words(2000))
    quiet(tmp_path / "a.txt", tmp_path / "out")
    before = files_of(tmp_path / "out")
    (tmp_path / "out" / name).unlink()
    os.mkfifo(tmp_path / "out" / name)
    signal.alarm(30)
    try:
        quiet(tmp_path / "a.txt", tmp_path / "out")
    finally:
        signal.alarm(0)
    assert files_of(tmp_path / "out") == before

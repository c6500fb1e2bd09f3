"""Two commands at once on one folder, and odd moments of a run: each ends with the undisturbed run's bits, or in a line
that tells what to do.

    STARTS    a signal while local workers start
    PAIRS     the second command begins somewhere in the first's life
    MOMENTS   something is done to a run that has begun, or between its attempts
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from harness.attempts.place import LIMIT_S, Place, below
from runs import steps_done
from scalewright.checkpoint.memory import root_of

TRAIN, BUSY, READS = "train run.yaml", (0, 2), (0, 2)  # another command had the folder; there was nothing yet
WRITER = "checkpoint.writer"
MEMORY, BESIDE, STORE = "checkpoint.memory_every=1", "checkpoint.async=true", "checkpoint.store=file://HERE/store"
PREPARE = "prepare words.jsonl --out o --vocab-size 260 --workers 2"
# first command, second, codes of each, whether `out` must then end with the control's bits
PAIRS: list[tuple[str, str, tuple[int, ...], tuple[int, ...], bool]] = [
    (TRAIN, TRAIN, BUSY, BUSY, True), ("train two.yaml", "train two.yaml", BUSY, BUSY, False),
    (TRAIN, "train run.yaml resume=never", BUSY, BUSY, False), (TRAIN, f"{TRAIN} out_dir=other", (0,), (0,), True),
    (TRAIN, "checkpoint prune out --keep 1", BUSY, READS, True), (TRAIN, "convert out converted", (0,), READS, True),
    *((TRAIN, verb, (0,), READS, True) for verb in (
        "checkpoint verify out", "checkpoint ls out", "report out", "goodput out", "generate out --prompt a",
        "evaluate out --data tokens --seq-len 8 --batches 1")),
    (PREPARE, PREPARE, BUSY, BUSY, False), ("convert run o", "convert run o", BUSY, BUSY, False),
    ("report run", "report run", (0,), (0,), False),
    (f"{TRAIN} {STORE}", f"{TRAIN} {STORE} out_dir=other", (0,), READS, True),
    (f"{TRAIN} {STORE}", "checkpoint verify file://HERE/store", (0,), READS, True),
    ("sweep run.yaml optimizer.lr=0.1,0.2", "sweep run.yaml optimizer.lr=0.1,0.2", (0, 1), (0, 1), False),  # its runs
]  # fmt: skip


WAYS = ("SIGTERM", "SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1")


def while_starting(place: Place, folder: Path, number: int, draw: random.Random) -> tuple[str, str]:
    """Each fourth from Python's own start on. It leaves with 75 and saves, or as the signal ends a Python that hasn't
    begun; the same command then finishes the run with the undisturbed run's bits."""
    fresh, way = number % 4 == 0, draw.choice(WAYS)
    begun, share = time.monotonic(), draw.random()
    if fresh:
        process = place.python(folder, "train", "two.yaml")
    else:
        process = place.start(folder, "train", "two.yaml")
    usual = 8.0 if fresh else 3.0  # seconds of a start here
    while time.monotonic() < begun + share * usual and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(getattr(signal, way))
    done = place.end(process, LIMIT_S)
    what = f"{way} after {time.monotonic() - begun:.1f} s{' of a fresh Python' if fresh else ''}: {done.code}"
    early = (-getattr(signal, way), 130) if fresh else (130,)
    if problem := done.problem((0, 75, *early)):
        return what, problem
    return what, place.finish(folder, "two.yaml")


def two_at_once(place: Place, folder: Path, number: int, draw: random.Random) -> tuple[str, str]:
    """A pair, the second after a drawn time."""
    first, second, *codes, whole = PAIRS[number % len(PAIRS)]
    slow(folder, 0.15)
    delay = draw.uniform(0, 2.5)
    processes = [place.start(folder, *first.replace("HERE", str(folder)).split())]
    time.sleep(delay)
    processes.append(place.start(folder, *second.replace("HERE", str(folder)).split()))
    ends = [place.end(process) for process in processes]
    what = f"{first} + {second} after {delay:.1f} s: {[done.code for done in ends]}"
    problem = next(filter(None, (done.problem(allowed) for done, allowed in zip(ends, codes, strict=True))), "")
    if not problem and all(done.code for done in ends):
        problem = f"neither was done: {ends[0].err[-200:]} {ends[1].err[-200:]}"
    return what, problem or (place.finish(folder) if whole else "")


def slow(folder: Path, seconds: float) -> None:
    """A micro-batch's loss takes so long."""
    (folder / "marks" / "pause").write_text(str(seconds))


def begun(place: Place, folder: Path, file: str, *words: str, step: int = 3, pause: float = 0.1) -> Any:
    """A run that has done some steps."""
    slow(folder, pause)
    process, end = place.start(folder, "train", file, *words), time.monotonic() + LIMIT_S
    while steps_done(folder / "out") < step and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    return process


def kill(process: Any, folder: Path) -> None:
    """All of it at once."""
    for child in below():
        with suppress(psutil.Error):
            child.kill()
    process.wait(60)


def stop(process: Any, folder: Path) -> None:
    """Asked to leave."""
    process.send_signal(signal.SIGTERM)
    process.wait(LIMIT_S)


def pauses(processes: list[psutil.Process], seconds: float) -> None:
    """They stand still for so long."""
    for process in processes:
        process.suspend()
    time.sleep(seconds)
    for process in processes:
        with suppress(psutil.Error):
            process.resume()


def memory(folder: Path) -> Path:
    """Where the run's steps lie in memory."""
    return root_of(folder / "out")


def damage(files: list[Path], do: Callable[[bytearray], Any]) -> None:
    """Changes the content of files."""
    for file in files:
        content = bytearray(file.read_bytes())
        do(content)
        file.write_bytes(content)


def cut(content: bytearray) -> None:
    """The first bytes alone are left."""
    del content[10:]


def bit(content: bytearray) -> None:
    """A bit near the end is another."""
    content[-3] ^= 4


def newest(folder: Path, name: str) -> list[Path]:
    """Files of the store's newest checkpoint."""
    return list(sorted((folder / "store" / "checkpoints").iterdir())[-1].glob(name))


def lose(folder: Path) -> None:
    """The disk is lost."""
    shutil.rmtree(folder / "out")


def devices(process: Any, folder: Path) -> None:
    """One word after the other, each until it was looked at."""
    for text in ("²", "9" * 5000, "-1", "0", "1.5", "\x00", "two"):
        (folder / "out" / "DEVICES").write_text(text)
        end = time.monotonic() + 4
        while (folder / "out" / "DEVICES").exists() and time.monotonic() < end and process.poll() is None:
            time.sleep(0.02)


def odd_files(process: Any, folder: Path) -> None:
    """A folder and a pipe."""
    (folder / "out" / "DEVICES").mkdir()
    os.mkfifo(folder / "out" / "STOP")


def signals(process: Any, folder: Path) -> None:
    """200 within a second."""
    for number in range(200):
        process.send_signal((signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)[number % 3])
        time.sleep(0.005)


def ctrl_z(process: Any, folder: Path) -> None:
    """Ctrl-Z and fg, twice, and a Ctrl-C."""
    for _ in range(2):
        pauses([psutil.Process(process.pid)], 1.0)
    process.send_signal(signal.SIGINT)


def rename(process: Any, folder: Path) -> None:
    """The checkpoints' folder has another name."""
    with suppress(OSError):
        (folder / "out" / "checkpoints").rename(folder / "out" / "old")


def edit(process: Any, folder: Path) -> None:
    """The run file is damaged, and moved back."""
    text = (folder / "run.yaml").read_text()
    (folder / "run.yaml").write_text("damaged: [")
    process.wait(LIMIT_S)
    (folder / "run.yaml").write_text(text)


# words, the run's file and words, what is done to it (process, folder), codes of its end
Do = Callable[[Any, Path], Any]
MOMENTS: list[tuple[str, str, Do, tuple[int, ...]]] = [
    ("memory: the folder there goes", f"run.yaml {MEMORY}", lambda p, f: shutil.rmtree(memory(f)), (0,)),
    ("memory: all is killed, and a bit there is another", f"run.yaml {MEMORY}",
     lambda p, f: (kill(p, f), damage(list(memory(f).rglob("model-*")), bit)), (-9,)),
    ("memory: all is killed, and its small files are cut", f"run.yaml {MEMORY}",
     lambda p, f: (kill(p, f), damage(list(memory(f).rglob("*.json")), cut)), (-9,)),
    ("memory: two ranks are killed, and one's part is missing", f"two.yaml {MEMORY}",
     lambda p, f: (kill(p, f), [part.unlink() for part in memory(f).rglob("part-00001.json")]), (-9,)),
    ("beside: the writer is killed", f"run.yaml {BESIDE}", lambda p, f: [w.kill() for w in below(WRITER)], (0,)),
    ("beside: a writer of two is killed", f"two.yaml {BESIDE}", lambda p, f: below(WRITER)[0].kill(), (0,)),
    ("beside: the writer stands still", f"run.yaml {BESIDE}", lambda p, f: pauses(below(WRITER), 3), (0,)),
    ("beside: all is killed", f"run.yaml {BESIDE}", kill, (-9,)),
    ("beside: two ranks, memory and a store; all is killed", f"two.yaml {BESIDE} {MEMORY} {STORE}", kill, (-9,)),
    ("beside: the same, and the disk is lost, and memory", f"two.yaml {BESIDE} {MEMORY} {STORE}",
     lambda p, f: (stop(p, f), lose(f), shutil.rmtree(memory(f), ignore_errors=True)), (0, 75)),
    ("beside: the checkpoints' folder is renamed", f"run.yaml {BESIDE}", rename, (0, 1)),
    ("beside: a stop right after a save began", f"run.yaml {BESIDE}", stop, (0, 75)),
    ("store: its folder goes", f"run.yaml {STORE}", lambda p, f: shutil.rmtree(f / "store", ignore_errors=True), (0,)),
    ("store: the disk is lost, and its newest COMMIT is cut", f"run.yaml {STORE}",
     lambda p, f: (stop(p, f), lose(f), damage(newest(f, "COMMIT"), cut)), (0, 75)),
    ("store: the disk is lost, and a bit there is another", f"run.yaml {STORE}",
     lambda p, f: (stop(p, f), lose(f), damage(newest(f, "model-*"), bit)), (0, 75)),
    ("store: the disk is lost, and a file there is missing", f"run.yaml {STORE}",
     lambda p, f: (stop(p, f), lose(f), newest(f, "optimizer-*")[0].unlink()), (0, 75)),
    ("elastic: words in DEVICES that are no number", "two.yaml elastic=true", devices, (0,)),
    ("elastic: DEVICES is a folder, STOP a pipe", "two.yaml elastic=true", odd_files, (0, 75)),
    ("a laptop sleeps: two ranks stand still", f"two.yaml {BESIDE}",
     lambda p, f: pauses(below(), 5), (0,)),
    ("200 signals within a second", "two.yaml", signals, (0, 75)), ("Ctrl-Z, fg, Ctrl-C", "run.yaml", ctrl_z, (0, 75)),
    ("the run file is damaged meanwhile", f"run.yaml {BESIDE}", edit, (0,)),
    ("tokens are copied over, with other times", "run.yaml",
     lambda p, f: (stop(p, f), shutil.move(f / "tokens", f / "a"), shutil.copytree(f / "a", f / "tokens")), (0, 75)),
]  # fmt: skip


def moment(place: Place, folder: Path, what: str, run: str, do: Do, codes: tuple[int, ...]) -> str:
    """A run has begun, something is done, it ends so; and the same command then finishes it."""
    file, *words = run.replace("HERE", str(folder)).split()
    process = begun(place, folder, file, *words)
    do(process, folder)
    done = place.end(process)
    for odd in (folder / "out" / "DEVICES", folder / "out" / "STOP"):
        shutil.rmtree(odd) if odd.is_dir() else odd.unlink(missing_ok=True)
    problem = done.problem(codes) or place.finish(folder, file, *words)
    shutil.rmtree(memory(folder), ignore_errors=True)
    return problem

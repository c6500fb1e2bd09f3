"""Attempts of our own that are more than a thing done to a run: each function does one, and tells what was wrong."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from harness.attempts.moments import (
    BESIDE,
    MEMORY,
    MOMENTS,
    PREPARE,
    STORE,
    begun,
    kill,
    memory,
    moment,
    pauses,
    slow,
    stop,
)
from harness.attempts.place import LIMIT_S, Place
from harness.attempts.words import CLOCK


def memory_full(place: Place, folder: Path) -> str:
    """memory: /dev/shm is full, also for the smallest file."""
    line = f"mount -t tmpfs -o size=64k t /dev/shm; head -c 99999 /dev/zero > /dev/shm/x; sw train run.yaml {MEMORY}"
    return place.end(place.shell(folder, line)).problem((0,)) or place.differs(folder / "out")


def memory_fills(place: Place, folder: Path) -> str:
    """memory: /dev/shm fills up while the run trains, so that a new small file alone has no room."""
    slow(folder, 0.1)
    fill = (
        "until grep -q 'step\": 3' out/metrics.jsonl; do sleep 0.1; done 2>/dev/null; head -c 9M /dev/zero > /dev/shm/x"
    )
    line = f"mount -t tmpfs -o size=400k t /dev/shm; sw train run.yaml {MEMORY} & {fill}; wait $!"
    return place.end(place.shell(folder, line)).problem((0,)) or place.differs(folder / "out")


def memory_linked(place: Place, folder: Path) -> str:
    """memory: the place is a link to elsewhere."""
    (folder / "elsewhere").mkdir()
    memory(folder).symlink_to(folder / "elsewhere")
    problem = place.finish(folder, "run.yaml", MEMORY)
    memory(folder).unlink(missing_ok=True)
    return problem or ("written through the link" if any((folder / "elsewhere").iterdir()) else "")


def shadowed(place: Place, folder: Path) -> str:
    """Modules of the working folder have Python's names: two ranks, writers, prepare, a chat's template."""
    for name in ("json", "socket", "queue", "random", "numpy", "selectors", "types", "threading", "logging", "mmap"):
        (folder / f"{name}.py").write_text("raise SystemExit('a module of the working folder')\n")
    (folder / "TMP").mkdir()
    (folder / "TMP" / "sw.py").write_text("import sys\nfrom scalewright.__main__ import main\nsys.exit(main())\n")
    line = f"python TMP/sw.py {PREPARE} && python TMP/sw.py train two.yaml {BESIDE}"
    done = place.end(place.shell(folder, line))
    told = (folder / "out" / "events.jsonl").read_text() if (folder / "out").exists() else ""
    return done.problem((0,)) or ("a save failed" if '"fault"' in told else place.differs(folder / "out", "run-two"))


def beside_full(place: Place, folder: Path) -> str:
    """beside: the disk is full for all but lines."""
    run = f"sw train run.yaml {BESIDE} launch.preflight=off"
    line = f"mkdir out; mount -t tmpfs -o size=200k t out; {run}; code=$?; cat out/events.jsonl >&2; exit $code"
    done = place.end(place.shell(folder, line))
    return done.problem((0, 1)) or ("" if "no space left" in done.err else f"not told: {done.err[-300:]}")


def store_is_a_file(place: Place, folder: Path) -> str:
    """store: a file lies where its folder should be."""
    (folder / "store").write_text("x")
    return place.call(folder, "train", "run.yaml", STORE.replace("HERE", str(folder))).problem((1, 2))


def store_full(place: Place, folder: Path) -> str:
    """store: it is full."""
    run = STORE.replace("HERE", str(folder))
    done = place.end(place.shell(folder, f"mkdir store; mount -t tmpfs -o size=40k t store; sw train run.yaml {run}"))
    return done.problem((0,)) or place.differs(folder / "out")


def store_of_two(place: Place, folder: Path) -> str:
    """store: a run's folder is copied, and both go on into one store."""
    run = ("train", "run.yaml", STORE.replace("HERE", str(folder)))
    if problem := place.call(folder, *run, "--steps", "4").problem((0,)):
        return problem
    shutil.copytree(folder / "out", folder / "copy")
    done = [place.call(folder, *run, f"out_dir={name}") for name in ("copy", "out")]
    return done[0].problem() or done[1].problem((0,)) or place.differs(folder / "out")


def chaos_of_two_steps(place: Place, folder: Path) -> str:
    """chaos of runs of one step, two and three."""
    words = ("chaos", "run.yaml", "--faults", "2", "--kinds", "kill")
    ends = [place.call(folder, *words, *more) for more in (["--steps", "2"], ["train.steps=1"], ["train.steps=3"])]
    return "; ".join(filter(None, (done.problem() for done in ends)))


def chaos_kept(place: Place, folder: Path) -> str:
    """chaos twice with one folder to keep."""
    words = ("chaos", "run.yaml", "--faults", "1", "--kinds", "kill", "--keep", "kept")
    slow(folder, 0.05)
    first, second = place.call(folder, *words), place.call(folder, *words, "optimizer.lr=0.5")
    return first.problem((0,)) or second.problem((2,))


def chaos_with_store(place: Place, folder: Path) -> str:
    """chaos of a run with a store puts nothing there."""
    slow(folder, 0.05)
    words = ("chaos", "run.yaml", STORE.replace("HERE", str(folder)), "--faults", "2", "--kinds", "kill")
    done = place.call(folder, *words)
    return done.problem((0,)) or ("the store holds files" if list((folder / "store").rglob("*")) else "")


def odd_events(place: Place, folder: Path) -> str:
    """Events whose keys and kinds are of another release, or odd."""
    out = place.half(folder)
    odd = [{"kind": "fault", "failure": "x"}, {"kind": "fault", "failure": None, "step": "x", "time": "now"},
           {"time": 1}, {"kind": ["a"], "time": 5}, {"kind": "back", "aside": ".bashrc"}, {"kind": "back", "aside": 7},
           {"kind": "save", "step": None}, {"kind": "resume", "step": "4", "time": -1}, {"kind": "new", "time": 1e300},
           {"kind": "start", "peak_flops": "x", "precision": "fp32", "world": 1, "time": 3, "began": [], "load_s": "x"},
           {"kind": "fault", "failure": {}, "step": 1e400, "time": 2}]  # fmt: skip
    with (out / "events.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in odd)
    verbs = ("goodput out", "report out", "compare out run", "explain MFU --run out", "diagnose out")
    problems = [problem for verb in verbs if (problem := place.call(folder, *verb.split()).problem())]
    return "; ".join(problems) or place.finish(folder)


def aside_elsewhere(place: Place, folder: Path) -> str:
    """An event names a file elsewhere as a checkpoint that was set aside."""
    out = place.half(folder)
    (folder / "mine.txt").write_text("mine")
    rows = [{"kind": "start", "step": 0}, {"kind": "back", "aside": "../../mine.txt"}]
    rows += [{"kind": "fault", "failure": "same", "step": 5, "message": "x"}] * 3
    with (out / "events.jsonl").open("a") as file:
        file.writelines(json.dumps({"time": time.time() + n, **row}) + "\n" for n, row in enumerate(rows))
    done = place.call(folder, "train", "run.yaml")
    return done.problem() or ("" if (folder / "mine.txt").exists() else "another file was renamed")


def clock_jumps(place: Place, folder: Path) -> str:
    """The clock goes back a year between attempts, and ahead two."""
    (folder / "sitecustomize.py").write_text(CLOCK)
    path = f"{folder}:{os.environ['PYTHONPATH']}"
    for shift, last in ((0, "3"), (-31536000, "5"), (63072000, "8")):
        process = place.shell(folder, f"sw train run.yaml {MEMORY} --steps {last}", CLOCK=str(shift), PYTHONPATH=path)
        if problem := place.end(process).problem((0,)):
            return f"clock {shift}: {problem}"
    done = place.call(folder, "goodput", "out", "--json")
    return done.problem((0,)) or place.call(folder, "report", "out").problem((0,)) or place.differs(folder / "out")


def litter(place: Place, folder: Path) -> str:
    """What file managers, NFS and people leave among checkpoints and tokens."""
    out = place.half(folder)
    for home in (out / "checkpoints", out, folder / "tokens", out / "checkpoints" / "step-00000004"):
        for name in ("step-00000004 (1)", "step-00000004.bak", "step-00000099", "step-abc", "lost+found"):
            (home / name).mkdir()
        for name in (".DS_Store", "._step-00000004", "Thumbs.db", ".nfs000001", "desktop.ini"):
            (home / name).write_bytes(b"\x00\x05\x16\x07")
    problems = "".join(place.call(folder, *verb.split()).problem() for verb in ("checkpoint ls out", "report out"))
    return problems or place.finish(folder)


def copied(place: Place, folder: Path) -> str:
    """A run's folder is copied, moved, linked, and gone on with."""
    out = place.half(folder)
    shutil.copytree(out, folder / "b")
    (folder / "c").symlink_to("b")
    (folder / "d").mkdir()
    shutil.move(out, folder / "d" / "e")
    ends = [place.call(folder, "train", "run.yaml", f"out_dir={at}").problem((0,)) for at in ("c", "d/e")]
    return "; ".join(filter(None, [*ends, place.differs(folder / "b"), place.differs(folder / "d" / "e")]))


def other_tokens(place: Place, folder: Path) -> str:
    """Tokens are prepared anew, from other words, between attempts."""
    place.half(folder)
    lines = (folder / "words.jsonl").read_text().splitlines(keepends=True)
    (folder / "words.jsonl").write_text("".join(reversed(lines)))
    words = ("prepare", "words.jsonl", "--out", "tokens", "--vocab-size", "260", "--overwrite")
    return place.call(folder, *words).problem((0,)) or place.call(folder, "train", "run.yaml").problem((2,))


def killed_and_again(place: Place, folder: Path) -> str:
    """prepare and convert are killed at moments, thrice, and then finish."""
    for words in (tuple(PREPARE.split()), ("convert", "run", "converted")):
        for seconds in (0.2, 0.5, 1.0):
            process = place.start(folder, *words)
            time.sleep(seconds)
            kill(process, folder)
        done = place.call(folder, *words)
        if problem := done.problem((0,)) if words[0] == "prepare" else done.problem((0, 2)):
            return problem
    same = [(folder / "o" / path.relative_to(folder / "tokens")).read_bytes() == path.read_bytes()
            for path in (folder / "tokens").rglob("*.bin")]  # fmt: skip
    return "" if all(same) else "other tokens"


def long_run(place: Place, folder: Path) -> str:
    """A run of 100,000 events is read and gone on with."""
    with (place.half(folder) / "events.jsonl").open("a") as file:
        file.writelines(json.dumps({"time": 1.7e9 + n, "kind": "note", "step": 1}) + "\n" for n in range(100_000))
    problems = "".join(place.call(folder, *verb.split()).problem((0,)) for verb in ("report out", "goodput out"))
    return problems or place.finish(folder)


def serves(place: Place, folder: Path) -> tuple[Any, int]:
    """A server, and its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process, end = place.start(folder, "serve", "run", "--port", str(port)), time.monotonic() + LIMIT_S
    while time.monotonic() < end and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            break
        time.sleep(0.1)
    return process, port


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
RAW = [b"", b"\x00" * 400, b"GET /\r\n\r\n", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"\x16\x03\x01\x02\x00\x01",
       HEAD + b"Content-Length: 99999999999\r\n\r\n{", HEAD + b"Content-Length: -1\r\n\r\n",
       HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n", HEAD + b"X: " + b"a" * 200_000 + b"\r\n\r\n",
       b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET " + b"/x" * 40_000 + b" HTTP/1.1\r\n\r\n", HEAD * 50]  # fmt: skip


def raw_requests(place: Place, folder: Path) -> str:
    """serve: bytes that are no request, half of one, open connections; its model is removed, and it sleeps."""
    process, port = serves(place, folder)
    left, text = [], ""
    for content in RAW:
        with suppress(OSError):
            left.append(socket.create_connection(("127.0.0.1", port), timeout=5))
            left[-1].sendall(content)
    shutil.rmtree(folder / "run")
    pauses([psutil.Process(process.pid)], 2.0)
    body = json.dumps({"model": "run", "prompt": "one two", "max_tokens": 5}).encode()
    address, kind = f"http://127.0.0.1:{port}/v1/completions", {"Content-Type": "application/json"}
    with suppress(OSError), urllib.request.urlopen(urllib.request.Request(address, body, kind), timeout=120) as answer:
        text = json.loads(answer.read())["choices"][0]["text"]
    stop(process, folder)
    for link in left:
        link.close()
    return place.end(process).problem((0,)) or ("" if text else "it answers no more")


def served_twice(place: Place, folder: Path) -> str:
    """serve: two at one port, and a key from a file that is empty, a folder, or not there."""
    process, port = serves(place, folder)
    again = place.call(folder, "serve", "run", "--port", str(port)).problem((2,))
    stop(process, folder)
    (folder / "empty").write_text("")
    ends = [
        place.call(folder, "serve", "run", "--port", "0", "--api-key", key) for key in ("@empty", "@tokens", "@gone")
    ]
    return again or place.end(process).problem((0,)) or "".join(done.problem((2,)) for done in ends)


def odd_terms(place: Place, folder: Path) -> str:
    """explain: words of control characters, 100,000 signs, and runs that are none."""
    terms = [[""], [" "], ["\x1b[2J"], ["x" * 100_000], ["ZeRO"] * 500, ["\udcff"], ["%s"], ["MFU", "--run", "tokens"],
             ["MFU", "--run", "run.yaml"], ["MFU", "--run", "words.jsonl"], ["MFU", "--run", "gone"]]  # fmt: skip
    return "; ".join(problem for words in terms if (problem := place.call(folder, "explain", *words).problem()))


def too_early(place: Place, folder: Path) -> str:
    """A run is read by all verbs while its first step isn't done."""
    process, end = begun(place, folder, "run.yaml", step=0, pause=1.0), time.monotonic() + 60
    while not (folder / "out" / "events.jsonl").exists() and time.monotonic() < end:
        time.sleep(0.02)
    verbs = ("report out", "goodput out", "compare out", "explain MFU --run out", "checkpoint ls out", "diagnose out",
             "convert out c", "generate out --prompt a", "evaluate out --data tokens",
             "checkpoint prune out")  # fmt: skip
    problems = [problem for verb in verbs if (problem := place.call(folder, *verb.split()).problem())]
    stop(process, folder)
    return "; ".join(problems) or place.end(process).problem((0, 75)) or place.finish(folder)


def through_pipes(place: Place, folder: Path) -> str:
    """`yes |` before a run, `| head -1` behind it, files as pipes of the shell's."""
    slow(folder, 0.05)
    pipes = "sw report run > >(head -c 10 >/dev/null); sw read <(cat run.yaml) >/dev/null; true"
    done = place.end(place.shell(folder, f"yes | sw train run.yaml 2>&1 | head -1 >/dev/null; {pipes}"))
    return done.problem((0,)) or place.differs(folder / "out")


ALONE: list[Callable[[Place, Path], str]] = [
    memory_full, memory_fills, memory_linked, shadowed, beside_full, store_is_a_file, store_full, store_of_two,
    chaos_of_two_steps, chaos_kept, chaos_with_store, odd_events, aside_elsewhere, clock_jumps, litter, copied,
    other_tokens, killed_and_again, long_run, raw_requests, served_twice, odd_terms, too_early, through_pipes,
]  # fmt: skip


def invented(place: Place, folder: Path, number: int, draw: random.Random) -> tuple[str, str]:
    """One of MOMENTS and ALONE."""
    if number < len(MOMENTS):
        return MOMENTS[number][0], moment(place, folder, *MOMENTS[number])
    do = ALONE[number - len(MOMENTS)]
    return (do.__doc__ or "").strip().rstrip("."), do(place, folder)

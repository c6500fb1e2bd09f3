"""Every file that a verb takes, in every odd form: nothing hangs, fills memory or ends in a traceback.

    VERBS (arguments with a FILE among them)  x  KINDS (what lies there)  ->  exit code 0, 1 or 2, one line

The call is in this process, under an alarm and a limit of memory: a pipe that is opened blocks, and /dev/zero
never ends.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pipes, devices and limits are Linux's")

SECONDS = 60
PLAN = "--cluster dgx-h100 --devices 8 --seq-len 128 --global-batch 8 --fix tp=1,pp=1"
VERBS = {
    "doctor FILE.yaml": 2,
    "presets models FILE.json": 2,
    "presets clusters FILE.yaml": 2,
    f"plan FILE.json {PLAN}": 2,
    f"plan gpt2 {PLAN} --cluster FILE.yaml": 2,
    "plan --from FILE.sh --cluster dgx-h100": 2,
    f"plan gpt2 {PLAN} --out FILE.yaml": None,
    "predict FILE.json --cluster dgx-h100 --devices 8 --seq-len 128": 2,
    "predict --batch FILE.csv": 2,
    "predict --from FILE.json --cluster dgx-h100": 2,
    "score FILE.csv": 2,
    "score rows.csv --oom FILE.csv": 2,
    "calibrate run --cluster FILE.yaml": 2,
    "diagnose FILE.json": 2,
    "diagnose example-log --from FILE.sh": 2,
    "diagnose example --against FILE.json": 2,
    "diagnose example --perfetto FILE.json": None,
    "prepare FILE.txt --out o": 2,
    "train FILE.yaml": 2,
    "train good.yaml model=FILE.json --dry-run": 2,
    "sweep FILE.yaml optimizer.lr=1,2": 2,
    "launch slurm FILE.yaml --print": 2,
    "checkpoint ls FILE": 2,
    "parity FILE.yaml": 2,
    "emit megatron FILE.yaml": 2,
    "read FILE.sh": 2,
    "read FILE.toml": 2,
    "compare FILE run": 2,
    "report FILE.json": 2,
    "report FILE": 2,
    "report run:metrics.jsonl": None,
    "compare run:run.yaml run": None,
    "evaluate FILE": 2,
    "generate FILE --prompt a": 2,
    "convert FILE o": 2,
}
ALWAYS = ("pipe", "endless", "circle", "long name")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def full(path: Path) -> None:
    path.symlink_to("/dev/full")


def circle(path: Path) -> None:
    path.symlink_to(path.name)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)


def holds(content: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content) and None


KINDS: dict[str, Callable[[Path], Any]] = {
    "pipe": pipe,
    "endless": endless,
    "full": full,
    "circle": circle,
    "socket": unix_socket,
    "folder": Path.mkdir,
    "long name": lambda path: None,
    "empty": holds(b""),
    "deep": holds(b"[" * 100_000),
    "deep keys": holds(b'{"a":' * 50_000),
    "digits": holds(b'{"version": ' + b"9" * 10_000 + b"}"),
    "utf-16": holds("a: 1\n".encode("utf-16")),
    "bytes": holds(bytes(range(256)) * 20),
    "surrogate": holds(b'{"name": "\\ud800", "model": "\\ud800"}'),
}


@pytest.fixture
def bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with what the verbs need beside the odd file, to work in for a limited time and memory."""
    import resource

    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"kind": "train", "step": 1, "loss": 2.0}\n')
    (tmp_path / "good.yaml").write_text("model: gpt2\ndata: nowhere\n")
    (tmp_path / "rows.csv").write_text("id,model,device\n1,gpt2,h100\n")

    def late(*_: object) -> None:
        raise TimeoutError(f"not done after {SECONDS} s")

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGALRM, late)
    resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30), hard))
    signal.alarm(SECONDS)
    yield tmp_path
    signal.alarm(0)
    signal.signal(signal.SIGALRM, handler)
    resource.setrlimit(resource.RLIMIT_AS, (before, hard))


# Lines of many logs begin with a bracket: an answer, that nothing is understood.
A_LINE = ("diagnose FILE.json", "deep")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in ALWAYS else pytest.mark.slow) for kind in KINDS]
)
@pytest.mark.parametrize("verb", VERBS)
def test_an_odd_file_is_one_line(call_cli: Callable[..., Any], bounded: Path, verb: str, kind: str) -> None:
    words = verb.split()
    place = next(word for word in words if "FILE" in word or ":" in word)
    if ":" in place:  # a file in a folder that is named
        file = bounded / place.replace(":", "/")
        file.unlink(missing_ok=True)
        words[words.index(place)] = place.split(":")[0]
    else:
        name = "x" * 300 if kind == "long name" else "odd"
        words = [word.replace("FILE", name) for word in words]
        file = bounded / place.split("=")[-1].replace("FILE", name)
    KINDS[kind](file)
    answer = call_cli(*words)
    expected = 1 if (verb, kind) == A_LINE else VERBS[verb]
    assert answer.code in ((0, 1, 2) if expected is None else (expected, 0)), answer.err
    assert not any(word in answer.err for word in ("unexpected", "Traceback")), answer.err
    if answer.code and (verb, kind) != A_LINE:
        errors = [line for line in answer.err.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1, answer.err
        assert len(errors[0]) < 1000


@pytest.mark.parametrize(
    ("arguments", "content"),
    [
        ("read", "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 2 "
         "--seq-length 128 --micro-batch-size 1 --vocab-size 100"),
        ("predict --batch", "id,model,device,n_devices,seq_len\n1,gpt2,h100-sxm,8,128\n"),
    ],
)  # fmt: skip
def test_a_pipe_of_the_shells_is_read(
    run_cli: Callable[..., Any], tmp_path: Path, arguments: str, content: str
) -> None:
    """`scalewright read <(command)`."""
    reading, writing = os.pipe()
    os.write(writing, content.encode())
    os.close(writing)
    import subprocess

    done = subprocess.run(
        [sys.executable, "-m", "scalewright", *arguments.split(), f"/dev/fd/{reading}"],
        pass_fds=[reading], cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    os.close(reading)
    assert (done.returncode, bool(done.stdout)) == (0, True), done.stderr
    assert "not a regular file" not in done.stdout

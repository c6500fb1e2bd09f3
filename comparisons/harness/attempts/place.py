"""What every attempt has: a folder with data, a run file and half a run; commands in it; and how their ends are judged.

    made/   words.jsonl  tokens/  run.yaml  two.yaml (two ranks)  half/ (5 of 8 steps)  run/, run-two/ (controls)
            marks/pause: seconds that a step's loss takes
    call    a command, forked from a server that has imported it     fresh: `python -m scalewright`, behind shell words

The driver adopts whatever its commands leave behind, so that nothing which still runs is overlooked.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from harness.facts import ROOT

sys.path += [str(ROOT), str(ROOT / "tests")]
from forked import fork_cli
from runs import bits, start_cli, weights

LIMIT_S = 240.0  # of a command, on a machine that others keep busy
LEAVE_S = 20.0  # that processes may take to leave after their command's end
GOOD = (0, 1, 2)
MODEL = {"vocab_size": 260, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
         "num_attention_heads": 2, "num_key_value_heads": 1, "context": 64}  # fmt: skip
RUN: dict[str, Any] = {
    "name": "tiny", "out_dir": "out", "device": "cpu", "model": MODEL,
    "layout": {"devices": 1, "global_batch": 4, "micro_batch": 2, "precision": "fp32"},
    "data": {"train": "tokens", "valid": "tokens", "seq_len": 32}, "optimizer": {"lr": 0.01},
    "loss": {"python": "parts:watched", "folder": "marks"}, "checkpoint": {"every": 2, "keep": 3},
    "train": {"steps": 8, "valid_every": 4, "valid_batches": 1},
}  # fmt: skip
TWO = {**RUN, "layout": {**RUN["layout"], "devices": 2, "zero_stage": 1}}


@dataclass(frozen=True)
class Done:
    """A command's end; code None: it was still running after the limit. Negative for a signal."""

    code: int | None
    out: str
    err: str

    def problem(self, codes: tuple[int, ...] = GOOD) -> str:
        """What is wrong with it; "" where nothing is."""
        text = self.err[-400:]
        if self.code is None:
            return f"still running after {LIMIT_S:g} s: {text}"
        if self.code not in codes:
            return f"exit code {self.code}: {text}"
        if bad := re.search(
            r"Traceback|error: unexpected [A-Z]\w+|Exception ignored|Fatal Python", self.err + self.out[:2000]
        ):
            return f"{bad[0]}: {self.err[-500:]}"
        errors = [line for line in self.err.splitlines() if line.startswith("error: ")]
        if self.code == 2 and (len(errors) != 1 or len(errors[0]) > 2100):
            return f"{len(errors)} lines of errors: {text}"
        return ""


class Place:
    """The folder below which attempts happen, and the processes of the one under way."""

    def __init__(self, root: Path) -> None:
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "src")])
        self.root, self.made = root, root / "made"
        (self.made / "marks").mkdir(parents=True)
        letters = random.Random(0)
        lines = (" ".join(letters.choices(["one", "two", "three", "four", "five"], k=30)) for _ in range(300))
        (self.made / "words.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
        for name, run in (("run.yaml", RUN), ("two.yaml", TWO)):
            (self.made / name).write_text(json.dumps(run, indent=1))
        self._must("prepare", "words.jsonl", "--out", "tokens", "--vocab-size", "260", "--workers", "1")
        self._must("train", "two.yaml", "out_dir=run-two")
        self._must("train", "run.yaml", "out_dir=run")
        self._must("train", "run.yaml", "out_dir=half", "--steps", "5")
        KEPT.update(process.pid for process in below())
        self.control = {name: ends(self.made / name) for name in ("run", "run-two")}

    def _must(self, *words: str) -> None:
        done = self.call(self.made, *words)
        if done.code:
            raise RuntimeError(f"{words}: {done.err}")

    def new(self, name: str) -> Path:
        """A folder of its own, with what was made but for the trained runs."""
        folder = self.root / name
        shutil.copytree(self.made, folder, ignore=shutil.ignore_patterns("run-two", "half"))
        return folder

    def half(self, folder: Path) -> Path:
        """The run that is half done, as `out` in an attempt's folder."""
        shutil.copytree(self.made / "half", folder / "out")
        return folder / "out"

    def remove(self, folder: Path, keep: bool = False) -> None:
        """Takes an attempt's folder away."""
        if not keep:
            subprocess.run(["rm", "-rf", str(folder)], check=False)

    def start(self, folder: Path, *words: str, **environ: str) -> Any:
        """A command, not waited for."""
        temporary = folder / "tmp"
        temporary.mkdir(exist_ok=True)
        return fork_cli(folder, *words, **{"TMPDIR": str(temporary), "COLUMNS": "100", **environ})

    def shell(self, folder: Path, command: str, **environ: str) -> subprocess.Popen[str]:
        """Lines of bash in which `sw` is a fresh `python -m scalewright`, with mounts of their own; not waited for."""
        line = f'sw() {{ $WRAP "{sys.executable}" -m scalewright "$@"; }}\n{command}'
        return subprocess.Popen(
            ["unshare", "--mount", "bash", "-c", line], cwd=folder, env={**os.environ, **environ},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
            start_new_session=True,
        )  # fmt: skip

    def python(self, folder: Path, *words: str) -> Any:
        """A fresh `python -m scalewright`, not waited for; signals reach it itself."""
        return start_cli(folder, *words)

    def end(self, process: Any, limit: float = LIMIT_S) -> Done:
        """Waits for a command."""
        try:
            out, err = process.communicate(timeout=limit)
            return Done(process.returncode, out, err)
        except subprocess.TimeoutExpired:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                return Done(None, *process.communicate(timeout=20))
            return Done(None, "", "")

    def call(self, folder: Path, *words: str, limit: float = LIMIT_S, **environ: str) -> Done:
        """A command, until its end."""
        return self.end(self.start(folder, *words, **environ), limit)

    def finish(self, folder: Path, file: str = "run.yaml", *words: str) -> str:
        """Starts a run again until it has ended by itself, and compares it with the undisturbed one."""
        codes = list[int | None]()
        while len(codes) < 4:
            done = self.call(folder, "train", file, *words)
            codes.append(done.code)
            if done.code == 0:
                return self.differs(folder / "out", "run-two" if file == "two.yaml" else "run")
        return f"it didn't come to its end: {codes} {done.err[-300:]}"

    def differs(self, out: Path, control: str = "run") -> str:
        """How a run's end differs from a control's; "" where it has the same bits."""
        mine, theirs = ends(out), self.control[control]
        if mine["lines"] != theirs["lines"]:
            return "its numbers differ from the undisturbed run's"
        same = mine["tensors"].keys() == theirs["tensors"].keys()
        same = same and all(tensor.equal(theirs["tensors"][name]) for name, tensor in mine["tensors"].items())
        return "" if same else "its weights differ from the undisturbed run's"

    def end_all(self) -> list[str]:
        """Commands of processes that are left after an attempt, once they had time to leave; they are killed."""
        limit = time.monotonic() + LEAVE_S
        while (left := below()) and time.monotonic() < limit:
            time.sleep(0.1)
        names = []
        for process in left:
            with suppress(psutil.Error):
                names.append(" ".join(process.cmdline())[-120:])
                process.kill()
        return names


KEPT: set[int] = set()  # the fork server and its tracker, which outlive attempts


def below(name: str = "") -> list[psutil.Process]:
    """The processes of the attempt under way, of a name; ranks are children of the server that all are forked from."""
    alive = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if child.pid not in KEPT and child.status() != psutil.STATUS_ZOMBIE and name in " ".join(child.cmdline()):
                alive.append(child)
    return alive


def ends(out: Path) -> dict[str, Any]:
    """A run's numbers and tensors."""
    return {"lines": bits(out), "tensors": weights(out, optimizer=True)}

"""Hostile words in every field of every target: refused in one line, or passed on exactly, and nothing runs.

    word + field ──► LaunchSpec, Job ──► write ──► the script, run by bash with stand-ins for all programs
                                                   (what they were called with, NUL-separated, in `calls`)

A manifest is read back as its service reads it, and its commands are run the same way. bash is the judge: a
word that it would expand, split or run isn't among the recorded ones, or leaves a file `canary`.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.launch.targets.sites import job

from scalewright.launch.job import LaunchJob, Written
from scalewright.launch.targets import TARGETS, find_target
from scalewright.spec.errors import UserError
from scalewright.spec.launch import LaunchSpec

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None or os.name == "nt", reason="bash isn't here")

FEW = ["$(touch canary)", "x\ntouch canary\n", "'; touch canary; '\"", "-x$HOME", "$$ ${{ run.args }} $(RANK) \\"]
MANY = [
    *FEW, "`touch canary`", "${PATH}", "a\\'b", "a\\\\b", "; touch canary #", "| touch canary",
    "&& touch canary", "> canary", "<(touch canary)", "*", "~", "{a,b}", "!!", "# x", " a  b ", "--x=y",
    "a=b", "\x1b]0;x\x07", "é\u202e中", "x\nON_EVERY_HOST\ntouch canary\n", "x\n#SBATCH --wrap=canary\n",
    "$'\\n'", "$((1))", "\t", "\r\n", "\x85", "\u2028", "%h", "- a: &b", "'", '"', "\\", "\n", "${", "$é",
    "}}", "<<", "1e3", "y", "@",
]  # fmt: skip

# A stand-in: its name, its words, its variables and its folder; what is typed into it, a host's script, runs.
RECORD = """#!/bin/bash
{ printf '%s\\0' "${0##*/}" "$@" "$PWD"; env -0; } >> "$CALLS"
case ${0##*/} in
mpirun) [ "$1" = --version ] && echo "$MPI" ;;
srun) while [[ $1 == -* ]]; do shift; done; [ "$1" = bash ] && exec "$@" ;;
esac
[[ " $* " != *" scalewright.launch.over_ssh "* ]] || NODE=0 bash /dev/stdin
exit 0
"""
CD = """() { printf '%s\\0' "$@" >> "$CALLS"; builtin cd "$@" 2>/dev/null || true; }"""
PROGRAMS = ("python", "srun", "scontrol", "mpirun", "apptainer", "module", "ssh", "torchrun", "sleep", "rm")
SHELL = ("setup",)  # is shell, by its meaning
TEXTS = [
    name
    for name, field in LaunchSpec.model_fields.items()
    if isinstance(getattr(LaunchSpec(), name), (tuple, dict)) or "str" in str(field.annotation)
    if "Literal" not in str(field.annotation) and name not in SHELL and not field.metadata
]
FIELDS = [*TEXTS, "env name", "claim", "run_file", "override", "out_dir"]
ROOTED = ("workdir", "mounts", "claims")  # paths that containers want from / on


def value(field: str, word: str, target: str) -> str:
    """The word, and the field's name behind it, by which it is known again."""
    rooted = field in ROOTED and target not in ("slurm", "local", "torchrun", "mpi", "ssh")
    ending = {"constraint": "=a", "rdma": "/rdma", "override": "", "run_file": ".yaml"}
    text = f"{'/' if rooted else ''}{word}{field.replace(' ', '_')}{ending.get(field, '')}"
    return f"/w:{text}" if field == "mounts" else text


def hostile(target: str, words: dict[str, str]) -> LaunchJob:
    """A job with these values of fields; raises UserError where one is refused."""
    keys: dict[str, Any] = {"container": None if target == "slurm" else "img:1", "claims": {"data": "/data"}}
    keys |= {"gpu": "H100"} if target in ("skypilot", "dstack", "runpod") else {}
    keys |= {"workdir": "/w"} if target == "ray" else {}
    keys |= {"hosts": ("node-a", "node-b")} if target in ("torchrun", "ssh", "mpi") else {}
    for field, text in words.items():
        if field == "hosts":
            keys["hosts"] = (text, "node-b")
        elif field in ("env", "claims"):
            keys.setdefault(field, {})["DATA" if field == "env" else "data"] = text
        elif field in ("env name", "claim"):
            keys.setdefault("env" if "env" in field else "claims", {})[text] = "/other"
        elif field in LaunchSpec.model_fields:
            keys[field] = (text,) if isinstance(getattr(LaunchSpec(), field), tuple) else text
    site = LaunchSpec.parse(keys)
    made = replace(job(1 if target == "local" else 2), site=site, device="cuda")
    override = (f"data={words['override']}",) if "override" in words else ()
    return replace(
        made, run_file=words.get("run_file", "run.yaml"), overrides=override, out_dir=words.get("out_dir", "")
    )


def accepted(target: str, words: dict[str, str]) -> Written | None:
    """What the target writes; None where the words are refused, in one line."""
    try:
        return find_target(target)(hostile(target, words))
    except UserError as error:
        return None if error.what and error.how else pytest.fail(repr(error))


# -- reading as the services do -------------------------------------------------------------------------


def kubelet(text: str) -> str:
    """kubernetes/third_party/forked/golang/expansion: `$(NAME)` by the container's variables, `$$` as `$`."""
    return re.sub(
        r"\$(\$|\(([^)]*)\)|.)", lambda m: "$" if m[1] == "$" else "7" if m[2] in POD else m[0], text, flags=re.S
    )


POD = ("RANK", "JOB_COMPLETION_INDEX", "MASTER_ADDR", "MASTER_PORT")


def dstack(text: str) -> str:
    """dstack's VariablesInterpolator: `$$` as `$` until the first `$` alone, and `${{ }}` by a value."""
    done, start = "", 0
    while start < len(text):
        dollar = text.find("$", start)
        if dollar in (-1, len(text) - 1):
            return done + text[start:]
        if text[dollar + 1] == "$":
            done, start = done + text[start : dollar + 1], dollar + 2
            continue
        opening = text.find("${{", start)
        if opening == -1:
            return done + text[start:]
        done, start = done + text[start:opening] + "VALUE", text.index("}}", opening) + 2
    return done


def strings(body: Any) -> Iterator[str]:
    """All texts of a document, keys too."""
    if isinstance(body, str):
        yield body
    elif isinstance(body, dict):
        for key, item in body.items():
            yield from (*strings(key), *strings(item))
    elif isinstance(body, list):
        for item in body:
            yield from strings(item)


def commands(body: Any) -> Iterator[list[str]]:
    """Commands of containers, as the kubelet starts them."""
    if isinstance(body, dict):
        if isinstance(body.get("command"), list):
            yield [kubelet(word) for word in body["command"]]
        for item in body.values():
            yield from commands(item)
    elif isinstance(body, list):
        for item in body:
            yield from commands(item)


def expanded(body: Any) -> Any:
    """The document with variables' values as the kubelet sets them, and without the commands."""
    if isinstance(body, dict):
        rest = {key: expanded(item) for key, item in body.items() if key != "command"}
        return rest | ({"value": kubelet(body["value"])} if isinstance(body.get("value"), str) else {})
    return [expanded(item) for item in body] if isinstance(body, list) else body


class Folder:
    """Where scripts run, with the stand-ins in front of PATH."""

    def __init__(self, path: Path, words: dict[str, str]) -> None:
        self.path, self.calls = path, path / "calls"
        self.bin = path / "bin"
        self.bin.mkdir()
        (self.bin / "record").write_text(RECORD)
        (self.bin / "record").chmod(0o755)
        for name in (*PROGRAMS, words.get("python", "python")):
            (self.bin / name).unlink(missing_ok=True)
            (self.bin / name).symlink_to("record")
        if words.get("workdir", "/").strip("/") and not words["workdir"].startswith("/"):
            (path / words["workdir"]).mkdir()

    def run(self, command: list[str], mpi: str = "Open MPI") -> None:
        """Runs it; a syntax error of bash's is a failure of the test."""
        done = subprocess.run(
            command, cwd=self.path, timeout=60, capture_output=True, stdin=subprocess.DEVNULL,
            env={"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": "/home", "CALLS": str(self.calls), "MPI": mpi,
                 "BASH_FUNC_cd%%": CD,
                 "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n", "SLURM_PROCID": "7",
                 "SKYPILOT_NODE_IPS": "a", **dict.fromkeys(POD, "7")},
        )  # fmt: skip
        assert b"syntax error" not in done.stderr, done.stderr
        assert b"unexpected" not in done.stderr, done.stderr

    def texts(self) -> list[str]:
        """What the stand-ins recorded."""
        return self.calls.read_bytes().decode().split("\0") if self.calls.exists() else []


def run_all(folder: Folder, target: str, written: Written) -> list[str]:
    """Runs what the target wrote; every text that reached a program or a service."""
    for name, text in written.files.items():
        (folder.path / name).write_text(text)
    name, text = next(iter(written.files.items()))
    if target == "ray":
        return [str(node.value) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
    if target == "runpod":
        body = json.loads(text)
        folder.run(shlex.split(body["args"]))
        return [*strings(body), *folder.texts()]
    if target in ("kubernetes", "skypilot", "dstack"):
        bodies = list(yaml.safe_load_all(text))
        if target == "kubernetes":
            for command in commands(bodies):
                folder.run([str(folder.bin / "record"), *command[1:]] if command[0] != "bash" else command)
                folder.calls.open("a").write("\0" + "\0".join(command))
            return [*strings(expanded(bodies)), *folder.texts()]
        script = bodies[0].get("run") or "\n".join(map(dstack, bodies[0]["commands"]))
        folder.run(["bash", "-c", script])
        return [*strings(bodies), *folder.texts()]
    numbers = ["0"] if target == "torchrun" else []
    folder.run(["bash", name, *numbers])
    if target == "mpi":
        folder.run(["bash", name], mpi="HYDRA")
    lines = [line[8:] for line in text.split("\n") if line.startswith("#SBATCH ")]
    files = [line for other in list(written.files)[1:] for line in written.files[other].split()]
    ssh = [word.removeprefix("--ssh=") for word in folder.texts() if word.startswith("--ssh=")]
    return [*folder.texts(), *lines, *files, *(word for line in [*lines, *ssh] for word in split(line))]


def split(text: str) -> list[str]:
    """A directive's words; none where an option, which is written as it is, closes no quote."""
    try:
        return shlex.split(text)
    except ValueError:
        return []


def reached(text: str, texts: list[str]) -> bool:
    """Whether it is one of the texts, or what follows a name, a folder or a colon in one."""
    return any(
        seen == text or (seen.endswith(text) and seen[-len(text) - 1] in "=/:@")
        or seen.startswith((f"{text}:", f"{text}=")) or f":{text}:" in seen
        for seen in texts
    )  # fmt: skip


def check(folder: Path, target: str, words: dict[str, str]) -> None:
    """Runs the job with these accepted words; each has reached something, and nothing else ran."""
    written, plain = accepted(target, words), accepted(target, {})
    assert written is not None
    made = Folder(folder, words)
    texts = run_all(made, target, written)
    left = {path.name for path in folder.rglob("*canary*")} - set(map(os.path.basename, words.values()))
    assert not left
    assert "touch" not in made.texts()
    for field, text in words.items():
        key = {"env name": "env", "claim": "claims"}.get(field, field)
        if key in written.unused or (key in TEXTS and accepted(target, {key: "plain"}) == plain):
            continue
        if field == "out_dir" and target not in ("mpi", "ray"):
            continue  # ranks find it in the run file
        assert reached(shown(field, text, target), texts), (target, field, text)


def shown(field: str, text: str, target: str) -> str:
    """A field's word as the target has it."""
    if field == "options" and target in ("skypilot", "dstack"):
        return text.partition("=")[2]
    if field == "mounts":
        return text.partition(":")[2]
    if field == "constraint" and target == "kubernetes":
        return text.partition("=")[0]
    return {"override": f"data={text}", "out_dir": f"{text}/STOP" if target == "mpi" else text}.get(field, text)


SLOW = [pytest.param(word, marks=pytest.mark.slow) for word in MANY if word not in FEW]


@pytest.mark.parametrize("word", [*FEW, *SLOW])
@pytest.mark.parametrize("target", [name for name in TARGETS if name != "dvc"])  # it reads the run file: test_dvc.py
def test_a_hostile_word_in_every_field(tmp_path: Path, target: str, word: str) -> None:
    words = {field: value(field, word, target) for field in FIELDS}
    words = {field: text for field, text in words.items() if accepted(target, {field: text}) is not None}
    assert {"run_file", "override"} <= words.keys()
    check(tmp_path, target, words)

"""Hostile paths in a run: every trainer's files are still its own, read back exactly, and run nothing."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scalewright.emit.emitted import Emitted
from scalewright.emit.settings import settings_of
from scalewright.emit.trainers import TRAINERS
from scalewright.emit.write import emit
from scalewright.spec.run import RunSpec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

WORDS = [
    "$(touch canary)", "`touch canary`", "'; touch canary; '\"", '"""\nimport os\n"""', "x\ntouch canary\n",
    "-x$HOME\\", "# a: - b", "\x1b[2J\x85\u2028\x7fé", "{{ x }} {% y %}",
    "\x85a", "a\u2028b", "1e3", "\r\na",
]  # fmt: skip


def emitted(trainer: str, word: str) -> Emitted:
    """The run with the word in its folders, for a trainer."""
    run = RunSpec.parse({
        "model": "llama-3.2-1b", "data": {"train": f"{word}data", "valid": f"{word}valid", "seq_len": 64},
        "out_dir": f"{word}out", "layout": {"devices": 1, "global_batch": 4}, "train": {"steps": 4},
    })  # fmt: skip
    name, _, version = trainer.partition(" ")
    settings = settings_of(run)
    settings.version = version or None
    return emit(name, settings)


def texts(name: str, text: str, folder: Path) -> Iterator[str]:
    """All texts that a file holds for the program that reads it."""
    if name.endswith(".py"):
        yield from (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)
                    if isinstance(node.value, str))  # fmt: skip
    elif name.endswith(".sh"):
        yield from of_script(text, folder)
    else:
        loads = {".toml": tomllib.loads, ".json": json.loads}.get(Path(name).suffix, yaml.safe_load)
        yield from leaves(loads(text))


def of_script(text: str, folder: Path) -> Iterator[str]:
    """What torchrun is called with when bash runs the script."""
    (folder / "torchrun").write_text(f"#!/bin/bash\nprintf '%s\\0' \"$@\" > '{folder}/calls'\n")
    (folder / "torchrun").chmod(0o755)
    work = folder / "work"
    work.mkdir()
    path = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": "/home"}
    subprocess.run(["bash"], input=text, text=True, cwd=work, env=path, check=True, timeout=60)
    assert not list(work.iterdir())
    yield from (folder / "calls").read_bytes().decode().split("\0")


def leaves(body: Any) -> Iterator[str]:
    """All texts of a document."""
    for item in body.values() if isinstance(body, dict) else body if isinstance(body, list) else ():
        yield from leaves(item)
    if isinstance(body, str):
        yield body


@pytest.mark.skipif(shutil.which("bash") is None or os.name == "nt", reason="bash isn't here")
@pytest.mark.parametrize("word", WORDS, ids=ascii)
@pytest.mark.parametrize("trainer", [*TRAINERS, "torchtitan 0.2"])
def test_a_hostile_folder_is_a_folder(tmp_path: Path, trainer: str, word: str) -> None:
    plain, written = emitted(trainer, "plain-"), emitted(trainer, word)
    assert (written.command, written.files.keys()) == (plain.command, plain.files.keys())
    for number, name in enumerate(written.files):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "plain").mkdir()
        found = [text.replace(word, "plain-") for text in texts(name, written.files[name], folder)]
        assert found == list(texts(name, plain.files[name], folder / "plain")), name

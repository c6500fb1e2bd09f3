"""The syntax tree of a bash script, by shfmt (mvdan/sh): its JSON, node by node.

{"Type": "CallExpr", "Assigns": [...], "Args": [word, ...]}        word: {"Parts": [{"Type": "Lit", "Value": "a"}, ...]}

https://pkg.go.dev/mvdan.cc/sh/v3/syntax describes the nodes.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from scalewright.spec.common.untrusted import parse_json
from scalewright.spec.errors import UserError

Node: TypeAlias = Any  # of shfmt's tree
SECONDS, BYTES, LONGEST = 20, 3 << 30, 1_000_000  # of shfmt; characters of a script
COMMENT = re.compile(r"(?m)^([ \t]*#.*)\\$")  # which ends with its line, whatever its last character


@lru_cache(64)
def parse(text: str, where: str) -> list[Node]:
    """The statements of a script; raises UserError where bash itself would refuse it."""
    deep = UserError("its statements lie too deep in each other", where, "give the command line itself")
    if len(text) > LONGEST:
        raise UserError(f"it has more than {LONGEST:,} characters", where, "give the command line itself")
    text = COMMENT.sub(r"\1 ", text)
    words = [_shfmt(), "-ln", "bash", "--to-json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe) as program:
        _limit(program)
        try:
            tree, errors = program.communicate(text.encode(errors="replace"), SECONDS)
        except subprocess.TimeoutExpired:
            program.kill()
            how = "give the command line itself"
            raise UserError(f"this script isn't parsed within {SECONDS} s", where, how) from None
    if program.returncode:
        error = (errors.decode(errors="replace").strip() or f"shfmt ended with {program.returncode}").splitlines()[0]
        if "out of memory" in error or "max depth" in error:
            raise deep
        match = re.fullmatch(r"(?:<standard input>:)?(\d+):\d+: (.*)", error)
        line = f"line {match[1]}: {match[2]}" if match else error
        raise UserError(f"bash couldn't read this script: {line}", where, "check it with `bash -n`")
    try:
        return list(parse_json(tree).get("Stmts") or [])
    except ValueError:
        raise deep from None


def _limit(program: subprocess.Popen[bytes]) -> None:
    """Bound shfmt's memory before it is given a text: JSON of nested statements grows with the square of their depth.

    Not by `preexec_fn`: with that, Python copies the page tables of a process that may hold a model.
    """
    if sys.platform == "linux":
        import resource

        resource.prlimit(program.pid, resource.RLIMIT_AS, (BYTES, BYTES))


def _shfmt() -> str:
    """shfmt's program, of the package shfmt-py: beside this Python, or on the PATH."""
    beside = Path(sys.executable).with_name("shfmt.exe" if sys.platform == "win32" else "shfmt")
    path = str(beside) if beside.exists() else shutil.which("shfmt")
    if path is None:
        raise UserError("scripts are read with shfmt, which isn't installed", "shfmt", "pip install shfmt-py")
    return path


def source(text: bytes, node: Node) -> str:
    """The text of a node."""
    return text[node["Pos"]["Offset"] : node["End"]["Offset"]].decode(errors="replace").rstrip(" ;")


def line_of(node: Node) -> int:
    """The line on which a node begins."""
    return int(node["Pos"]["Line"])

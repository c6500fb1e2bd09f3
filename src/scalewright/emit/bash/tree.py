"""The syntax tree of a bash script, by shfmt (mvdan/sh): its JSON, node by node.

{"Type": "CallExpr", "Assigns": [...], "Args": [word, ...]}        word: {"Parts": [{"Type": "Lit", "Value": "a"}, ...]}

https://pkg.go.dev/mvdan.cc/sh/v3/syntax describes the nodes.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, TypeAlias

from scalewright.spec.errors import UserError

Node: TypeAlias = Any  # of shfmt's tree
SECONDS = 20


def parse(text: str, where: str) -> list[Node]:
    """The statements of a script; raises UserError where bash itself would refuse it."""
    done = subprocess.run(
        [_shfmt(), "-ln", "bash", "--to-json"], input=text.encode(), capture_output=True, timeout=SECONDS, check=False
    )
    if done.returncode:
        error = done.stderr.decode(errors="replace").strip().splitlines()[0]
        match = re.fullmatch(r"(?:<standard input>:)?(\d+):\d+: (.*)", error)
        line = f"line {match[1]}: {match[2]}" if match else error
        raise UserError(f"bash couldn't read this script: {line}", where, "check it with `bash -n`")
    tree: Node = json.loads(done.stdout)
    return list(tree.get("Stmts") or [])


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

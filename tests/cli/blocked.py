"""Runs the command line in a process where torch can't be imported, as in the base install."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import importlib.abc, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "safetensors", "tokenizers", "pyarrow"):
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)

sys.meta_path.insert(0, Absent())
from scalewright.cli import main
for arguments in %r:
    code = main(arguments)
    assert code == 0, (arguments, code)
"""


def run_without_torch(*commands: list[str]) -> subprocess.CompletedProcess[str]:
    """The commands, one after another in one process; the first that fails ends it."""
    script = SCRIPT % (list(commands),)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200)

"""Python imports this file at its start when its folder is on PYTHONPATH: how `scalewright record` gets in.

A sitecustomize that the environment has of its own still runs: it is the next one on the path. Nothing but
the standard library is imported, since every Python process of the command comes through here.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

HERE = str(Path(__file__).resolve().parent)


def _next_one() -> None:
    """Runs the sitecustomize that this one hides, if there is any."""
    others = [folder for folder in sys.path if str(Path(folder or ".").resolve()) != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _start() -> None:
    from scalewright_recorder import start  # type: ignore[import-not-found]

    start()


if __name__ == "sitecustomize":
    _start()
    _next_one()

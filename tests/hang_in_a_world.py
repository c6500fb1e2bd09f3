"""A test that hangs, for those that end it (test_worlds.py); not collected by its name."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from worlds import run_world


def hang(mesh: Any, layout: Any, folder: str) -> None:
    """Rank 1 never comes to the sum of the others."""
    (Path(folder) / str(os.getpid())).touch()
    if mesh.rank == 1:
        time.sleep(600)


def test_hangs() -> None:
    run_world(hang, {"devices": 2}, os.environ["HANGS_IN"])

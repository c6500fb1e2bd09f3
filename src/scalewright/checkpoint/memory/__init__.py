"""The newest steps of a run in its nodes' memory, each node's on another one, too: what a restart goes on from.

    node 0   ranks ─► own steps ◄──────── courier ─► copies of node 3's
                          ▲                              of the run's folder: /dev/shm/scalewright-memory-USER-HASH/
    node 1   ranks ─► own steps    courier ─► copies of node 0's

tier.py   a rank's own steps      nodes.py     which node keeps whose copies, and how they reach each other
courier.py   the process beside a rank that fetches and serves copies     recall.py   the newest sound step anywhere
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from scalewright.launch.settings import memory_folder

PREFIX = "scalewright-memory"


def root_of(folder: Path) -> Path:
    """Where a run's steps lie in memory, by its folder."""
    return memory_folder() / f"{PREFIX}-{os.getuid()}-{sha256(str(folder.resolve()).encode()).hexdigest()[:16]}"

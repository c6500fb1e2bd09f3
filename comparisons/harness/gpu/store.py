"""Results on disk and ends of processes, without torch: a file is whole or as it was, whatever ends."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any


def write_json(path: Path, data: Any) -> None:
    """Replaces the file in one move, synced."""
    write_text(path, json.dumps(data, indent=1, default=str) + "\n")


def write_text(path: Path, text: str) -> None:
    """The same for text."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_json(path: Path) -> dict[str, Any]:
    """The file's data; empty where there is none."""
    if not path.exists():
        return {}
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


def end_with_parent() -> None:
    """From now on, ends this process and its group when the one that started it is gone."""

    def watch(parent: int) -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os.killpg(0, 9) if os.getpgrp() == os.getpid() else os._exit(5)

    threading.Thread(target=watch, args=(os.getppid(),), daemon=True).start()

"""`scalewright ARGUMENTS` in a process that leaves when its parent does, even when that is killed.

parent ── stdin, a pipe that nobody writes to ──► end of file: leave at once
"""

from __future__ import annotations

import os
import runpy
import threading


def main() -> None:
    """Runs the command line, and watches stdin meanwhile."""
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    runpy.run_module("scalewright", run_name="__main__", alter_sys=True)


def _leave_with_parent() -> None:
    if not os.read(0, 1):  # not sys.stdin: its lock would be held at the end of Python
        os._exit(1)


if __name__ == "__main__":
    main()

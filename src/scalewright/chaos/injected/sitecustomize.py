"""Python imports this file at its start when its folder is on PYTHONPATH: faults inside a rank come from here.

It is copied beside a folder `commands`, where a thread of each process looks for a file with its process's number, and
does what stands there:

    memory    raises MemoryError in the main thread, as an allocation that fails does: no memory is taken
    nan       makes a number of a trained weight NaN, found through the frames of the main thread

Forked processes have no threads of their parent's, so that each starts its own. A sitecustomize that the environment
has of its own still runs.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

HERE = str(Path(__file__).resolve().parent)
EVERY_S = 0.05


def _look() -> None:
    path = os.path.join(HERE, "commands", str(os.getpid()))
    while True:
        time.sleep(EVERY_S)
        if os.path.exists(path):
            what = Path(path).read_text()
            os.unlink(path)
            _do(what)


def _do(what: str) -> None:
    main = threading.main_thread().ident or 0
    if what == "memory":
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), ctypes.py_object(MemoryError))
        return
    end = time.monotonic() + 30
    while time.monotonic() < end:
        session = _local(sys._current_frames().get(main), "session")
        if session is not None and hasattr(session, "parallel"):
            weights = [weight for weight in session.parallel.weights.trained() if weight.master.numel()]
            if weights:
                weights[len(weights) // 2].master.data.view(-1)[0] = float("nan")
                return
        time.sleep(0.005)


def _local(frame: Any, name: str) -> Any:
    """The value of a local variable in the innermost frame that has it."""
    while frame is not None:
        if name in frame.f_locals:
            return frame.f_locals[name]
        frame = frame.f_back
    return None


def _listen() -> None:
    threading.Thread(target=_look, daemon=True, name="chaos").start()


def _next_one() -> None:
    """Runs the sitecustomize that this one hides, if there is any."""
    others = [folder for folder in sys.path if str(Path(folder or ".").resolve()) != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "sitecustomize":
    _listen()
    os.register_at_fork(after_in_child=_listen)
    _next_one()

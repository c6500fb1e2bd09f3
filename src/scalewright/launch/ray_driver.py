"""What Ray's driver does while Ray trains: asked to stop, it lets the ranks save, and leaves with their code.

    `ray job stop`, TERM, USR1, USR2, Ctrl-C ──► driver ──► out_dir/STOP ──► rank 0: one step, save, 75
    a second Ctrl-C ──► the driver leaves at once, and Ray ends the workers

Ray by itself would end the workers with the driver, and nothing would be saved. `fit` runs in a thread: in
the main thread it would take Ctrl-C for itself.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from scalewright.launch.stop import STOP_FILE, stop_signals


class Trainer(Protocol):
    """What is used of Ray Train's trainers."""

    def fit(self) -> Any: ...


def fit(trainer: Trainer, out: str) -> int:
    """Trains; returns the code to leave with: 0, 75 after a stop, or 2. Raises what `trainer.fit` raises.

    `out`: the run's folder, as this process and rank 0 see it.
    """
    file = Path(out) / STOP_FILE
    asked: list[int] = []
    ended: list[Any] = []  # its result, or what it raised

    def train() -> None:
        try:
            ended.append(trainer.fit().return_value)
        except BaseException as error:
            ended.append(error)

    def forget() -> None:
        with suppress(OSError):  # a run that ended before it saw the file would stop at its next start
            file.unlink(missing_ok=True)

    def ask(number: int) -> None:
        asked.append(number)
        if asked.count(signal.SIGINT) > 1:
            forget()
            os._exit(128 + signal.SIGINT)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()

    thread = threading.Thread(target=train, daemon=True)
    with stop_signals(ask):
        thread.start()
        thread.join()
    if asked:
        forget()
    if isinstance(ended[0], BaseException):
        raise ended[0]
    return int(ended[0])

"""Parts share one deadline; each has a limit of its own, and what is cut or fails says so.

A part gets `Check` and puts numbers into its dictionary as it goes; the result file is written after each.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from harness.result import Result


class OutOfTime(Exception):
    """A part has used up its time."""


@dataclass
class Check:
    """What every part works with."""

    device: torch.device
    quick: bool
    result: Result
    end: float  # of everything, on the monotonic clock
    until: float = 0.0  # of the part that runs now
    part: dict[str, Any] = field(default_factory=dict)

    @property
    def left(self) -> float:
        """Seconds that the running part still has."""
        return min(self.until, self.end) - time.monotonic()

    def need(self, seconds: float, what: str) -> None:
        """Raises OutOfTime when less than that is left."""
        if self.left < seconds:
            raise OutOfTime(f"{what} was left out: {self.left:.0f} s left, {seconds:.0f} s wanted")

    def note(self, key: str, value: Any) -> None:
        """Stores a number of this part and writes the result."""
        self.part[key] = value
        self.result.write()

    @contextmanager
    def trying(self, what: str) -> Iterator[None]:
        """One measurement that may be impossible here: its error becomes the answer, the part goes on."""
        try:
            yield
        except OutOfTime:
            raise
        except (
            RuntimeError,
            TypeError,
            ValueError,
            NotImplementedError,
            AttributeError,
            ImportError,
        ) as error:
            self.note(what, {"error": _short(error)})
            if self.device.type == "cuda":
                torch.cuda.synchronize(
                    self.device
                )  # a broken context shows itself here, not in the next part
                torch.cuda.empty_cache()


def run_part(check: Check, name: str, limit_s: float, part: Callable[[Check], None]) -> None:
    """Runs one part; whatever happens, the result says how it ended."""
    started = time.monotonic()
    check.until, check.part = started + limit_s, {}
    check.result.data[name] = check.part
    print(f"== {name}", flush=True)
    try:
        check.need(1.0, name)
        part(check)
        status = "done"
    except OutOfTime as error:
        status = f"cut: {error}"
    except Exception as error:  # the next part may still work, and what was measured stands
        status = f"failed: {_short(error)}"
        check.part["traceback"] = traceback.format_exc()[-4000:]
    check.part["status"] = status
    check.note("seconds", round(time.monotonic() - started, 2))
    print(f"   {name}: {status} ({check.part['seconds']} s)", flush=True)


def watchdog(check: Check, grace_s: float = 10.0) -> threading.Timer:
    """Ends the process a little after the deadline, should a part hang; the result is on disk by then."""

    def bark() -> None:
        check.part["status"] = "cut: it hung past the deadline"
        check.result.write()
        print("out of time; the result holds what was measured", flush=True)
        os._exit(3)

    timer = threading.Timer(max(1.0, check.end - time.monotonic() + grace_s), bark)
    timer.daemon = True
    timer.start()
    return timer


def _short(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:300] if text else ''}"

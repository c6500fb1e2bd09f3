"""What a part of the GPU check works with: values by key, each on disk before the next is measured.

want(key)?  no: an earlier visit has it, or it ended the process twice
    │ yes: `at` = key is written, so that whoever outlives this process knows what ended it
trying(key) an exception becomes the value
note(key, value) ──► part.json, written and synced
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from harness.gpu.store import write_json

MOST_DEATHS = 2  # processes that a measurement may end before it is left out


class OutOfTime(Exception):
    """A part has used up its time."""


@dataclass
class Check:
    """A part's device, its file, and what it has so far."""

    device: torch.device
    quick: bool
    file: Path
    name: str = ""
    end: float = 0.0  # on the monotonic clock
    record: dict[str, Any] = field(default_factory=lambda: {"values": {}})
    matmul_flops: float = 0.0  # measured before the part's own work: what a step may be held against

    @property
    def part(self) -> dict[str, Any]:
        """Values by key."""
        values: dict[str, Any] = self.record["values"]
        return values

    @property
    def left(self) -> float:
        """Seconds that the part still has."""
        return self.end - time.monotonic()

    @property
    def folder(self) -> Path:
        """Where results lie."""
        return self.file.parent

    def want(self, key: str, seconds: float = 1.0) -> bool:
        """Whether `key` is still to be measured; raises OutOfTime when there is less than `seconds` left."""
        if key in self.part:
            return False
        deaths = self.record.get("deaths", {}).get(key, [])
        if len(deaths) >= MOST_DEATHS:
            self.note(key, {"error": f"it ended the process {len(deaths)} times: {deaths[-1]}"})
            return False
        if self.left < seconds:
            raise OutOfTime(f"{key} waits: {self.left:.0f} s left, {seconds:.0f} s wanted")
        self.record["at"] = key
        self.write()
        return True

    def note(self, key: str, value: Any) -> None:
        """Stores a value and writes the file."""
        self.part[key] = value
        if self.record.get("at") == key:
            del self.record["at"]
        self.write()

    def write(self) -> None:
        """Replaces the part's file."""
        write_json(self.file, {"name": self.name, "record": self.record})

    @contextmanager
    def trying(self, key: str) -> Iterator[None]:
        """One measurement that may be impossible here: its error becomes the value, the part goes on.

        A CUDA context that is broken raises again at the synchronization: then the process has to end.
        """
        try:
            yield
        except OutOfTime:
            raise
        except Exception as error:  # an AssertionError or OSError of one racer is no reason to lose the others
            self.note(key, {"error": short(error)})
            if self.device.type == "cuda":
                del error
                torch.cuda.synchronize(self.device)
                torch.cuda.empty_cache()


def short(error: BaseException) -> str:
    """An exception in a line."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:300] if text else ''}"

"""Functions of a caller that get each row of a run in this process, and how the run ended, from its newest rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scalewright.spec.errors import UserError

STOP = "stop"
Callback = Callable[[dict[str, object]], Any]


class Callbacks:
    """A caller's functions; whether one of them has asked to stop, and the newest row of each kind."""

    def __init__(self, on_step: Callback | None, on_valid: Callback | None, on_event: Callback | None) -> None:
        self._functions = {"train": on_step, "valid": on_valid, "event": on_event}
        for name, function in self._functions.items():
            if function is not None and not callable(function):
                raise UserError(
                    f"the callback for {name} rows is {type(function).__name__}", "train", "give a function"
                )
        self.last: dict[str, Mapping[str, Any]] = {}
        self.stopped = False

    def __bool__(self) -> bool:
        return any(function is not None for function in self._functions.values())

    def __call__(self, kind: str, row: Mapping[str, Any]) -> bool:
        """Hands a row to its function; whether it is the first that asks the run to save and stop."""
        self.last[row["kind"]] = row
        function = self._functions[kind]
        asks = function is not None and function(dict(row)) == STOP
        first, self.stopped = asks and not self.stopped, self.stopped or asks
        return first

    def result(self, out_dir: str, seconds: float) -> dict[str, Any]:
        """How a run that a callback has stopped ended, with the keys of `Result`."""
        step = int(self.last.get("train", {}).get("step", 0))
        return answer(out_dir, step, self.last, self.last.get("resume", {}).get("step"), seconds)


def answer(
    out_dir: str, step: int, last: Mapping[str, Mapping[str, Any]], resumed: int | None, seconds: float
) -> dict[str, Any]:
    """How a run ended, from its newest row of each kind, with the keys of `Result`."""
    row, valid = last.get("train", {}), last.get("valid", {})
    return {
        "out_dir": out_dir, "step": step, "loss": row.get("loss"), "valid_loss": valid.get("loss"),
        "bits_per_byte": valid.get("bits_per_byte"), "tokens_per_s": row.get("tokens_per_s"),
        "resumed_from": resumed, "seconds": seconds,
    }  # fmt: skip

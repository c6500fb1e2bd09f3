"""What another trainer's configuration asks the planner: a model, a layout, a length, and whose step time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scalewright.emit.emitted import Unread
from scalewright.emit.read import read_argv, read_file
from scalewright.emit.run_file import as_run
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.run import PythonRef


@dataclass(frozen=True)
class Question:
    """A run of another trainer, as the planner takes it."""

    model: str | ModelSpec
    layout: Layout
    seq_len: int
    trainer: str  # its name in the planner's table
    assumed: tuple[str, ...]
    unread: tuple[Unread, ...]

    def resized(self, devices: int | None, global_batch: int | None) -> Layout:
        """The same layout on other devices, or with another batch; raises UserError where it can't be."""
        sizes = {"devices": devices, "global_batch": global_batch}
        changed = {key: value for key, value in sizes.items() if value is not None}
        return Layout.parse({**self.layout.dump(), **changed}, "layout")


def question(source: str, model: str | None = None, overrides: Sequence[str] = ()) -> Question:
    """The question of a file, or of a pasted command line; raises UserError.

    `model`: in the place of theirs; a DeepSpeed JSON has none.
    """
    pasted = " --" in source
    reading = read_argv(source) if pasted else read_file(source)
    changes = (*overrides, *([f"model={model}"] if model else []))
    run = as_run(reading, "the command line" if pasted else source, changes)
    assert not isinstance(run.model, PythonRef)  # no reader makes one
    layout = run.layout
    if layout.stage_layers is not None and len(set(layout.stage_layers)) == 1:
        layout = Layout.parse({**layout.dump(), "stage_layers": None})  # as that trainer cuts by itself
    return Question(run.model, layout, run.seq_len, reading.trainer, reading.assumed, reading.unread)

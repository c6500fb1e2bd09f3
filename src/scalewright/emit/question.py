"""What a configuration asks the planner: a model, a layout, a length, and whose step time.

pretrain.sh, ds_config.json ──► read.py ──► Question(trainer "megatron", "deepspeed")
run.yaml, our own ────────────────────────► Question(trainer "scalewright")
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalewright.emit.emitted import Reading, Unread
from scalewright.emit.read import read_argv, read_file
from scalewright.emit.run_file import as_run
from scalewright.spec.base import read_yaml
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.run import PythonRef, RunSpec

OURS = "scalewright"


@dataclass(frozen=True)
class Question:
    """A run, as the planner takes it."""

    model: str | ModelSpec
    layout: Layout
    seq_len: int
    trainer: str  # its name in the planner's table
    assumed: tuple[str, ...]
    unread: tuple[Unread, ...]
    guessed: Mapping[str, str]  # sizes of the layout, as devices aren't known -> their line of `assumed`

    def resized(self, devices: int | None, global_batch: int | None) -> Layout:
        """The same layout on other devices, or with another batch; raises UserError where it can't be.

        A micro-batch that was guessed is what is left of the batch for a rank, as such trainers take it.
        """
        keys = self.layout.dump()
        keys["devices"] = devices or keys["devices"]
        ranks = max(1, keys["devices"] // (self.layout.tp * self.layout.pp * self.layout.cp))
        if "global_batch" in self.guessed:
            keys["global_batch"] = keys["micro_batch"] * ranks
        keys["global_batch"] = global_batch or keys["global_batch"]
        if "micro_batch" in self.guessed and keys["global_batch"]:
            keys["micro_batch"] = max(1, keys["global_batch"] // ranks)
        return Layout.parse(keys, "layout")

    def notes(self, sizes: Collection[str]) -> tuple[str, ...]:
        """What was assumed, but for those of the `sizes` that are given after all."""
        known = {line for key, line in self.guessed.items() if key in sizes or "devices" in sizes}
        return tuple(line for line in self.assumed if line not in known)


def question(source: str, model: str | None = None, overrides: Sequence[str] = ()) -> Question:
    """The question of a file, or of a pasted command line; raises UserError.

    Another trainer's, or a run file of ours.

    `model`: in the place of theirs; a DeepSpeed JSON has none.
    """
    pasted = " --" in source
    reading = read_argv(source) if pasted else _own(source) or read_file(source)
    changes = (*overrides, *([f"model={model}"] if model else []))
    run = as_run(reading, "the command line" if pasted else source, changes)
    if isinstance(run.model, PythonRef):
        how = "give a model of this shape: scalewright plan MODEL --from FILE"
        raise UserError("a module of your own has no operators to price", source, how)
    layout = run.layout
    if layout.stage_layers is not None and len(set(layout.stage_layers)) == 1:
        layout = Layout.parse({**layout.dump(), "stage_layers": None})  # as that trainer cuts by itself
    return Question(run.model, layout, run.seq_len, reading.trainer, reading.assumed, reading.unread,
                    reading.guessed)  # fmt: skip


def _own(path: str) -> Reading | None:
    """A run file of ours; None for another file."""
    if not path.endswith((".yaml", ".yml")) or not Path(path).is_file():
        return None
    try:
        keys = read_yaml(path)
    except UserError:
        return None  # a template, perhaps: the reader of another trainer tells
    own = isinstance(keys, dict) and "model" in keys and keys.keys() <= RunSpec.model_fields.keys()
    return Reading(OURS, keys) if own and {"layout", "data"} & keys.keys() else None

"""The question of a file: a whole run, of another trainer's configuration or a run file of ours.

pretrain.sh, ds_config.json ──► read.py ──► Question(trainer "megatron", "deepspeed")
run.yaml, our own ────────────────────────► Question(trainer: the run's engine)
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from scalewright.emit.emitted import Reading, yaml_text
from scalewright.emit.read import read_argv, read_file
from scalewright.spec.base import read_yaml
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.question import DATA, OURS, Question
from scalewright.spec.run import DataSpec, RunSpec, apply_override


def question(source: str, model: str | None = None, overrides: Sequence[str] = ()) -> Question:
    """The question of a file, or of a pasted command line; raises UserError.

    `model`: in the place of the file's; a DeepSpeed JSON has none.
    """
    pasted = " --" in source
    reading = read_argv(source) if pasted else _run_file(source) or read_file(source)
    changes = (*overrides, *([f"model={model}"] if model else []))
    asked = question_of(reading, "the command line" if pasted else source, changes)
    return replace(asked, source=source)


def question_of(reading: Reading, where: str, overrides: Sequence[str] = ()) -> Question:
    """The question of what was read; raises UserError where it is no valid run, or the user's own module."""
    if reading.other:
        how = "price the training of all weights: the file without this, or `scalewright predict MODEL`"
        raise UserError(f"it trains {reading.other}; priced here are all weights of a decoder", where, how)
    run = as_run(reading, where, overrides)
    layout = run.layout
    if layout.stage_layers is not None and len(set(layout.stage_layers)) == 1:
        keys = {**layout.stated(), "stage_layers": None}  # as that trainer cuts by itself
        run = run.model_copy(update={"layout": Layout.parse(keys)})
    trainer = None if reading.trainer == OURS else reading.trainer
    asked = Question(
        run, trainer=trainer, version=reading.version, assumed=reading.assumed, unread=reading.unread,
        guessed=reading.guessed, source=where, form=trainer, options=reading.options,
    )  # fmt: skip
    _ = asked.model  # a module of the user's own is refused here
    return asked


def _run_file(path: str) -> Reading | None:
    if not path.endswith((".yaml", ".yml")) or not Path(path).is_file():
        return None
    try:
        keys = read_yaml(path)
    except UserError:
        return None  # a template, perhaps: the reader of another trainer tells
    ours = isinstance(keys, dict) and "model" in keys and keys.keys() <= RunSpec.model_fields.keys()
    return Reading(OURS, keys) if ours and {"layout", "data"} & keys.keys() else None


def as_run(reading: Reading, where: str, overrides: Sequence[str] = ()) -> RunSpec:
    """The run that was read, with `key=value` overrides; raises UserError where it isn't a valid one."""
    keys: dict[str, Any] = deepcopy(dict(reading.run))
    keys.setdefault("data", {}).setdefault("train", DATA)
    for override in overrides:
        apply_override(keys, override)
    if "model" not in keys:
        how = "add model=llama-3.1-8b, or another model"
        raise UserError("the model isn't in this configuration", where, how)
    return RunSpec.parse(keys, where=where)


def as_text(reading: Reading, run: RunSpec) -> str:
    """The run file: keys that differ from defaults, and what wasn't understood as comments."""
    keys = {**run.written(), "layout": run.layout.written()}
    lines = [f"Read from a configuration of {reading.trainer}."]
    lines += [f"It trains {reading.other}, which isn't in this run."] if reading.other else []
    lines += [f"assumed: {text}" for text in reading.assumed]
    lines += [f"not read: {item} ({item.why})" for item in reading.unread]
    lines += [f"priced alone, by --options: {name}={value}" for name, value in reading.options.items()]
    paths = [source.path for source in run.data.train] if isinstance(run.data, DataSpec) else []
    if any(path == DATA or "$" in path for path in paths):
        lines.append("data.train: name your token shards here")
    ordered = {key: keys[key] for key in RunSpec.model_fields if keys.get(key)}
    return yaml_text(lines, ordered)

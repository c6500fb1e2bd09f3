"""Megatron-LM's arguments as a run: from a command line, a script, a test's YAML, or as its log prints them.

torchrun ... pretrain_gpt.py --num-layers 32 ...     words
GPT_ARGS=(--num-layers 32 ...)                       a script (shell.py)
MODEL_ARGS: {--num-layers: 32}                       a functional test's model_config.yaml
  num_layers ...................... 32               between `---- arguments ----` in a log
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from scalewright.emit.arguments import flags, ranks, split_launch
from scalewright.emit.emitted import Reading
from scalewright.emit.megatron.layout import read_layout
from scalewright.emit.megatron.model import read_model
from scalewright.emit.megatron.training import read_training
from scalewright.emit.megatron.words import ASIDE
from scalewright.emit.shell import read_script
from scalewright.emit.theirs import Theirs
from scalewright.spec.errors import UserError

PRINTED = re.compile(r"^\s*(?:\[[^\]]*\]:?\s*)?(\w+) \.{3,} ?(.*)$", re.MULTILINE)
MARK = "tensor-model-parallel-size"


def read_argv(words: Sequence[str]) -> Reading:
    """A pasted command line, with or without its launcher."""
    before, _, after = split_launch(words)
    return _read(flags(after), ranks(before, {}))


def read_text(text: str, where: str) -> Reading:
    """A script; the longest of its launch lines counts."""
    script = read_script(text)
    commands = [command for command in script.commands if any(word.startswith("--") for word in command)]
    if not commands:
        how = 'paste the command line itself: scalewright read --argv "torchrun ... pretrain_gpt.py ..."'
        raise UserError("no command line of a Python program in this script", where, how)
    before, _, after = split_launch(max(commands, key=len))
    return _read(flags(after), ranks(before, script.variables))


def read_test(document: Mapping[str, Any]) -> Reading:
    """A functional test's `MODEL_ARGS`."""
    values = {}
    for name, value in document["MODEL_ARGS"].items():
        if value is not False:
            values[str(name).lstrip("-").replace("_", "-")] = value
    return _read(values, None)


def read_printed(text: str) -> Reading:
    """The arguments that Megatron prints when it starts: all that are set."""
    values: dict[str, Any] = {}
    for name, value in PRINTED.findall(text):
        value = value.strip()
        if value not in ("None", "False", "[]", ""):
            values[name.replace("_", "-")] = True if value == "True" else value
    world = values.pop("world-size", None)
    return _read(values, int(world) if str(world).isdecimal() else None)


def read_arguments(theirs: Theirs, world: int | None) -> dict[str, Any]:
    """A run of arguments by their names; `world`: ranks, None where the launch line doesn't tell."""
    run: dict[str, Any] = {}
    read_model(theirs, run)
    read_layout(theirs, run, world)
    read_training(theirs, run)
    _fit_batch(theirs, run["layout"])
    return run


def _read(values: dict[str, Any], world: int | None) -> Reading:
    theirs = Theirs(values, ASIDE)
    run = read_arguments(theirs, world)
    return theirs.reading("megatron", run)


def _fit_batch(theirs: Theirs, layout: dict[str, Any]) -> None:
    """The global batch where it isn't given: a micro-batch of every data-parallel rank."""
    dp = layout["devices"] // (layout["tp"] * layout["pp"] * layout["cp"])
    if "global_batch" not in layout:
        layout["global_batch"] = layout["micro_batch"] * max(dp, 1)
        theirs.guess("global_batch", layout["global_batch"], ": one micro-batch of each data-parallel rank")

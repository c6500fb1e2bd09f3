"""A file of any trainer as a run of ours: its form is recognised by what it holds.

.yaml .json .toml   a document, whose keys tell the trainer
anything else       text: a script, a Python configuration, a log with printed arguments
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from scalewright.emit.command_lines import read_words
from scalewright.emit.emitted import Reading
from scalewright.emit.launch_script import is_script, read_launch
from scalewright.emit.trainers import TRAINERS, checked, file_text, module_of
from scalewright.spec.base import parse_yaml
from scalewright.spec.errors import UserError

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib


def read_file(path: str | Path) -> Reading:
    """A configuration or script of another trainer; raises UserError for one that no reader recognises."""
    return read_text(file_text(path), Path(path).suffix.lower(), str(path))


def read_text(text: str, suffix: str, where: str) -> Reading:
    """The same of a text; its suffix tells how it is parsed."""
    document = parse(text, suffix, where)
    printed = document is None and module_of("megatron").is_printed(text)
    if document is None and not printed and suffix != ".py" and is_script(text, suffix):
        return read_launch(text, where, read_text)
    for name, trainer in TRAINERS.items():
        if trainer.reads and module_of(name).recognises(document, text):
            return read_own(name, text, suffix, where)
    titles = ", ".join(trainer.title for trainer in TRAINERS.values() if trainer.reads)
    raise UserError("no trainer's configuration that is known here", where, f"it reads {titles}")


def read_own(name: str, text: str, suffix: str, where: str) -> Reading:
    """A file of this trainer, as its reader takes it; raises UserError."""
    document = parse(text, suffix, where)
    printed = document is None and module_of("megatron").is_printed(text)
    if document is None and not printed and suffix != ".py" and is_script(text, suffix):
        return read_launch(text, where, partial(read_own, name), name)
    read = partial(module_of(name).read, document, text, where)
    return checked(name, read, where)


def read_argv(line: str | Sequence[str]) -> Reading:
    """A command line: Megatron-LM's, or another's with a configuration among its words."""
    from scalewright.emit.megatron.files import read_argv as read_megatron

    words = read_words(line) if isinstance(line, str) else list(line)
    return checked("megatron", lambda: read_megatron(words), "the command line")


def parse(text: str, suffix: str, where: str) -> Any:
    """Parsed YAML, JSON or TOML; None for other texts."""
    if suffix in (".yaml", ".yml"):
        return parse_yaml(text, where, yaml.SafeLoader)
    try:
        if suffix == ".json":
            return json.loads(text)
        if suffix == ".toml":
            return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        what = f"it is no {suffix[1:].upper()}: {str(error).splitlines()[0]}"
        raise UserError(what, where, "give the file as the trainer takes it") from None
    return None

"""A file of any trainer as a run of ours: its form is recognised by what it holds.

.yaml .json .toml   a document, whose keys tell the trainer
anything else       text: a script, a Python configuration, a log with printed arguments

The trainers that runs are written for and read from, by name; a module is imported when it is asked for.

module            write(settings) -> Emitted
                  recognises(document, text) -> bool,  read(document, text, where) -> Reading
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import yaml

from scalewright.emit.command_lines import read_words
from scalewright.emit.emitted import Reading
from scalewright.spec.base import parse_yaml
from scalewright.spec.common.untrusted import read_bytes
from scalewright.spec.errors import UserError, reason

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

LIMIT = 20 << 20  # bytes of a configuration


def read_file(path: str | Path) -> Reading:
    """A configuration or script of another trainer; raises UserError for one that no reader recognises."""
    return read_text(file_text(path), Path(path).suffix.lower(), str(path))


def file_text(path: str | Path, strict: bool = False) -> str:
    """The text of a configuration; raises UserError where it can't be read.

    `strict`: the text will be written again, so that no byte of it may be lost.
    """
    try:
        return read_bytes(path, LIMIT, stream=True).decode(errors="strict" if strict else "replace")
    except UnicodeDecodeError as error:
        how = "convert it first: iconv -f latin1 -t utf-8"
        raise UserError(f"byte {error.start} isn't UTF-8, and an edit would lose it", str(path), how) from None
    except FileNotFoundError:
        how = "check the path; a pasted command line goes in quotes, with its --flags"
        raise UserError("no such file", str(path), how) from None
    except (OSError, ValueError) as error:
        raise UserError(f"it can't be read: {reason(error)}", str(path), "give a configuration or a script") from None


def read_text(text: str, suffix: str, where: str) -> Reading:
    """The same of a text; its suffix tells how it is parsed."""
    document = parse(text, suffix, where)
    for name, trainer in TRAINERS.items():
        if trainer.reads and module_of(name).recognises(document, text):
            return read_own(name, text, suffix, where)
    titles = ", ".join(trainer.title for trainer in TRAINERS.values() if trainer.reads)
    raise UserError("no trainer's configuration that is known here", where, f"it reads {titles}")


def read_own(name: str, text: str, suffix: str, where: str) -> Reading:
    """A file of this trainer, as its reader takes it; raises UserError."""
    read = partial(module_of(name).read, parse(text, suffix, where), text, where)
    return checked(name, read, where)


def read_argv(line: str | Sequence[str]) -> Reading:
    """A command line: Megatron-LM's, or another's with a configuration among its words."""
    from scalewright.emit.megatron.files import read_argv as read_megatron

    words = read_words(line) if isinstance(line, str) else list(line)
    return checked("megatron", lambda: read_megatron(words), "the command line")


def checked(trainer: str, read: Callable[[], Reading], where: str) -> Reading:
    """A reading; a value of another kind than the trainer takes there, as a UserError."""
    try:
        return read()
    except UserError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
        how = "check the file with the trainer itself"
        raise UserError(f"a value isn't one that {TRAINERS[trainer].title} takes: {error}"[:300], where, how) from None


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


class Trainer(NamedTuple):
    """A trainer: its name in its own spelling, and its module here."""

    title: str
    module: str
    reads: bool = True  # whether its configurations are read, too


TRAINERS: dict[str, Trainer] = {
    "megatron": Trainer("Megatron-LM", "megatron.files"),
    "megatron-bridge": Trainer("Megatron-Bridge", "bridge.files"),
    "torchtitan": Trainer("torchtitan", "torchtitan.files"),
    "deepspeed": Trainer("DeepSpeed", "deepspeed.read"),
    "accelerate": Trainer("Accelerate", "accelerate"),
    "transformers": Trainer("Transformers", "transformers.arguments"),
    "nanotron": Trainer("nanotron", "nanotron.run"),
    "litgpt": Trainer("litgpt", "litgpt"),
    "gpt-neox": Trainer("GPT-NeoX", "gpt_neox"),
    "colossalai": Trainer("Colossal-AI", "colossalai", reads=False),
    "axolotl": Trainer("Axolotl", "axolotl"),
    "llama-factory": Trainer("LLaMA-Factory", "llama_factory"),
    "maxtext": Trainer("MaxText", "maxtext.run"),
    "levanter": Trainer("Levanter", "levanter"),
}
ALIASES = {"megatron-lm": "megatron", "hf": "transformers", "trainer": "transformers", "neox": "gpt-neox"}


def module_of(name: str) -> ModuleType:
    """A trainer's module."""
    return import_module(f"scalewright.emit.{TRAINERS[name].module}")

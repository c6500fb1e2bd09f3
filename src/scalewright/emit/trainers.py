"""The trainers that runs are written for and read from, by name; a module is imported when it is asked for.

module            write(settings) -> Emitted
                  recognises(document, text) -> bool,  read(document, text, where) -> Reading
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import yaml

from scalewright.emit.emitted import Reading
from scalewright.spec.base import parse_yaml
from scalewright.spec.common.untrusted import read_bytes
from scalewright.spec.errors import UserError, reason

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

LIMIT = 20 << 20  # bytes of a configuration


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

"""A file of any trainer as a run of ours: its form is recognised by what it holds.

.yaml .json .toml   a document, whose keys tell the trainer
anything else       text: a script, a Python configuration, a log with printed arguments
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from scalewright.emit.command_lines import read_words
from scalewright.emit.emitted import Reading
from scalewright.emit.launch_script import is_script, read_launch
from scalewright.emit.trainers import TRAINERS, checked, file_text, module_of, parse
from scalewright.spec.errors import UserError


def read_file(path: str | Path) -> Reading:
    """A configuration or script of another trainer; raises UserError for one that no reader recognises."""
    return read_text(file_text(path), Path(path).suffix.lower(), str(path))


def read_text(text: str, suffix: str, where: str) -> Reading:
    """The same of a text; its suffix tells how it is parsed."""
    document = parse(text, suffix, where)
    if _starts(document, text, suffix):
        return read_launch(text, where, read_text)
    for name, trainer in TRAINERS.items():
        if trainer.reads and module_of(name).recognises(document, text):
            return read_own(name, text, suffix, where)
    if is_script(command := _command(document)):
        return read_launch(command, where, read_text)
    titles = ", ".join(trainer.title for trainer in TRAINERS.values() if trainer.reads)
    raise UserError("no trainer's configuration that is known here", where, f"it reads {titles}")


def _command(document: object, depth: int = 20) -> str:
    """What a job's description starts: Kubernetes' `command` and `args`, SkyPilot's `run`, Azure ML's `command`."""
    inner: list[Any] = document if isinstance(document, list) else []
    if isinstance(document, dict):
        command, more = document.get("command", document.get("run", "")), document.get("args") or []
        if isinstance(command, list) and isinstance(more, list):
            command = shlex.join(map(str, [*command, *more]))
        inner = [command, *document.values()]
    texts = (_command(each, depth - 1) for each in inner if depth)
    return document if isinstance(document, str) and is_script(document) else next(filter(None, texts), "")


def read_own(name: str, text: str, suffix: str, where: str) -> Reading:
    """A file of this trainer, as its reader takes it; raises UserError."""
    document = parse(text, suffix, where)
    if _starts(document, text, suffix):
        return read_launch(text, where, partial(read_own, name), name)
    read = partial(module_of(name).read, document, text, where)
    return checked(name, read, where)


def _starts(document: object, text: str, suffix: str) -> bool:
    """Whether a text is a script, and no log that has a launch line beside printed arguments."""
    is_text = document is None and suffix != ".py"
    return is_text and is_script(text, suffix) and not module_of("megatron").is_printed(text)


def read_argv(line: str | Sequence[str]) -> Reading:
    """A command line: Megatron-LM's, or another's with a configuration among its words."""
    from scalewright.emit.megatron.files import read_argv as read_megatron

    words = read_words(line) if isinstance(line, str) else list(line)
    return checked("megatron", lambda: read_megatron(words), "the command line")

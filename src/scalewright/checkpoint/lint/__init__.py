"""What an engine would trip over in a Hugging Face folder: read from its files, without torch and without loading it.

    folder.py   the files, read once: JSON, safetensors' headers      config.py   config.json
    weights.py  shards, index, names, shapes, types                   numbers.py  NaN, and a head that is stored twice
    ends.py     tokenizer, generation, what ends a text               chat.py     the template, rendered in a process

A `problem` fails in an engine, or computes or stops otherwise than was trained; a `warn` may; a `note` couldn't be
looked at. Rules mirror what transformers 5 and vLLM 0.32 do with these files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from scalewright.checkpoint.lint import chat, config, ends, numbers, weights
from scalewright.checkpoint.lint.folder import Export
from scalewright.checkpoint.lint.folder import read as read_folder
from scalewright.spec.errors import SEVERITIES, Finding, UserError


def lint(folder: str | Path, code: bool = False, values: bool = True) -> list[Finding]:
    """What is wrong with a Hugging Face folder, the gravest first; empty where nothing is.

    `code`: files of code that came along are meant. `values`: read all the weights, too, for NaN and infinity.
    Raises UserError where there is no folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError("no such folder", str(folder), "give a Hugging Face folder")
    export = read_folder(folder)
    findings = [*export.damaged, *config.check(export), *ends.check(export), *chat.check(export)]
    findings += [*weights.check(export), *(numbers.check(export) if values else ()), *_code(export, code)]
    placed = [replace(finding, where=str(folder / finding.where)) for finding in findings]
    return sorted(placed, key=lambda finding: -SEVERITIES.index(finding.severity))


def _code(export: Export, meant: bool) -> Iterator[Finding]:
    """Programs that come along: an engine runs them, or refuses the folder."""
    if meant:
        return
    for name in sorted(name for name in export.json if "auto_map" in export.json[name]):
        how = "remove auto_map where transformers has the family itself; --code if it is meant"
        yield Finding("code", "auto_map", "problem", "auto_map names code to load the model with", how, where=name)
    for name in sorted(name for name in export.files if name.endswith(".py")):
        what, how = "code comes along with the weights", "remove it, or check with --code if it is meant"
        yield Finding("code", "python", "problem" if "config.json" in export.files else "warn", what, how, where=name)

"""A layout put into a user's own file: the lines that change, and all others as they are.

their file, their layout ──emit──► words before ┐ the words that differ ──► edits of their file ──► read back
their file, the new one ───emit──► words after  ┘                          must be the run in the new layout

A script's flag keeps its place; a variable that alone states it is set where it is defined. A file in which
the words aren't found, or that doesn't read back as the run, is written whole by its trainer's emitter.
"""

from __future__ import annotations

import difflib
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path, PurePath
from typing import Any

from scalewright.emit.bash.script import read_script
from scalewright.emit.command_lines import flags, nodes_of, split_launch
from scalewright.emit.edits import SIGNS, changed_literals, named, put_literals, put_values
from scalewright.emit.emitted import Emitted
from scalewright.emit.question import as_run
from scalewright.emit.read import read_own
from scalewright.emit.settings import settings_of
from scalewright.emit.trainers import file_text, parse
from scalewright.emit.write import UNSIGNED, emit, save
from scalewright.spec.base import parse_yaml
from scalewright.spec.common.files import check_replaceable
from scalewright.spec.common.formatting import flat
from scalewright.spec.common.shell import line
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.question import Question
from scalewright.spec.run import RunSpec

VERSIONS = {".toml": ("0.2", "0.1")}  # of torchtitan, whose newest release has Python in TOML's place
WORD = r"(?!--)[^\s\\#)]+"  # of a value, in a script
COMMENTED = (".sh", ".py", ".yaml", ".yml", ".toml")  # a checksum as a last comment is none of the run's
FSDP, CONNECTIONS = "--use-megatron-fsdp", "CUDA_DEVICE_MAX_CONNECTIONS"
LAUNCH = ("nnodes", "nproc-per-node")  # of torchrun, the launcher that emitters write


def check_rewrite(model: object, out: str | Path | None, data: str | None, force: bool) -> None:
    """Raises UserError where there is no file to give back, or a place that is taken."""
    if not isinstance(model, Question) or model.source is None:
        raise UserError("nothing to emit", "--emit", "give your trainer's file with --from, or use `emit`")
    if data is not None:
        raise UserError("--data is for our run file", "--emit", "leave one of them out")
    if out is not None and not {Path(out).suffix, Path(model.source).suffix} & {*UNSIGNED}:
        check_replaceable(Path(out), force)


@dataclass(frozen=True)
class Rewritten:
    """A file in another layout: whole, and what changed in it."""

    files: Mapping[str, str]  # name -> text; the first one is the user's own, or stands in its place
    diff: str  # unified; of the user's own file
    emitted: Emitted | None = None  # the same run as its emitter writes it; null: a run file of ours
    why: str | None = None  # the file was written anew; null: it is the user's own, edited
    notes: tuple[str, ...] = ()  # what changes beside the layout, or is left to the user

    @property
    def in_place(self) -> bool:
        """Whether the user's own file was edited."""
        return self.why is None

    def save(self, path: Path, force: bool, source: str | None = None) -> list[Path]:
        """Writes the first file alone, with the mode of its source. Raises UserError for one that is there.

        Others would lie beside the user's own files of these names: `emit` writes them to a folder.
        """
        name, text = next(iter(self.files.items()))
        save({path.name: text}, path.parent, force, signed=PurePath(name).suffix in COMMENTED)
        if source is not None and Path(source).is_file():
            shutil.copymode(source, path)  # a script stays executable
        return [path]

    def dump(self) -> dict[str, object]:
        """As `plan --json` has it: `emit`'s keys, and what changed in the user's own file."""
        keys = self.emitted.dump() if self.emitted else {}
        assumed = () if self.in_place or self.emitted is None else self.emitted.assumed
        keys |= {"files": dict(self.files), "diff": self.diff, "in_place": self.in_place, "why": self.why}
        return {**keys, "assumed": [*self.notes, *assumed]}


def rewrite(question: Question, layout: Layout, run_yaml: str | None = None) -> Rewritten:
    """The file that a question was read from, in another layout. Raises UserError where that can't be run.

    `run_yaml`: the planned run file, for a question of ours.
    """
    source = question.source or ""
    name = "script.sh" if " --" in source else PurePath(source).name
    text = source if " --" in source else file_text(source, strict=True)
    if question.form is None:
        return _rewrite_ours(question, (name, text), layout, run_yaml or "")
    why = "its words for the layout aren't in the file as they could be edited"
    suffix = PurePath(name).suffix
    for version in VERSIONS.get(suffix, (question.version,)):
        try:
            before, after = (_emit(asked, version) for asked in (question, question.with_layout(layout)))
        except UserError as error:  # another release may have the words, or the emitter below refuses
            why = error.what
            continue
        wanted = _wanted(question, before, after, layout)
        for edited in _edits(text, suffix, before, after, layout.devices):
            if edited is None:
                continue
            edited = _with_connections(text, edited)
            differing = _differing(question, (name, text), (name, edited), wanted)
            if differing is None:
                first = (
                    question.form == "megatron" and layout.tp * layout.cp > 1 == question.layout.tp * question.layout.cp
                )
                notes = _notes(text, edited, first)
                return Rewritten({name: edited}, _diff(name, text, edited), after, notes=notes)
            why = f"edited, it would read back with another {differing}"
    after = _emit(question.with_layout(layout), question.version)
    others = ", ".join(list(after.files)[1:])
    command = f"scalewright emit {question.form} PLAN.json --out DIR"
    notes = (f"{others} aren't written beside it: `{command}` has all files",) if others else ()
    return Rewritten(after.files, _diff(name, text, _main(after)[1]), after, why, notes)


def _with_connections(text: str, edited: str) -> str:
    """With CUDA_DEVICE_MAX_CONNECTIONS as Megatron-LM's arguments.py asks for: never 1 with its FSDP; else tp and cp
    want 1 on a Hopper or older. 8 is CUDA's default."""
    before, after = (FSDP in _without_comments(script) for script in (text, edited))
    if before == after:
        return edited
    edited = edited if after else edited.replace(f"unset {CONNECTIONS}", f"export {CONNECTIONS}=1")
    return re.sub(rf"(\b{CONNECTIONS}(?:=|: *|:-)[\"']?)\d+", rf"\g<1>{8 if after else 1}", edited)


def _notes(text: str, edited: str, first: bool) -> tuple[str, ...]:
    """What an edit changes for a run that goes on from its checkpoints, and what the `first` tp or cp of one needs."""
    text, edited = (_without_comments(script) for script in (text, edited))
    old, new = (re.findall(r"--ckpt-format[=: ]+(\S+)", script) for script in (text, edited))
    asks = f"export {CONNECTIONS}=1: Megatron-LM asks for it with tp or cp, up to Hopper"
    needs = (asks,) if first and CONNECTIONS not in edited and FSDP not in edited else ()
    if new in ([], old) or not re.search(r"--(load|save)\b", text):
        return needs
    return (*needs, f"--ckpt-format is {new[0]}: checkpoints of {old[0] if old else 'torch_dist'} aren't loaded by it")


def _rewrite_ours(question: Question, file: tuple[str, str], layout: Layout, run_yaml: str) -> Rewritten:
    """A run file of ours with the keys of its layout changed; the planned one where that can't be."""
    name, text = file
    old, new = (flat({"layout": candidate.written()}) for candidate in (question.layout, layout))
    whole = flat({"layout": layout.dump()})
    new = {**{key: whole[key] for key in old if key in whole}, **new}  # a default is written where it was
    for edited in put_values(text, ".yaml", _changed(old, new)):
        with suppress(UserError):
            run = RunSpec.parse(parse_yaml(edited, name), where=name)
            if run.layout.dump() == layout.dump() and _rest(run) == _rest(question.run):
                return Rewritten({name: edited}, _diff(name, text, edited))
    why = "its layout isn't written key by key"
    return Rewritten({name: run_yaml}, _diff(name, text, run_yaml), why=why)


def _wanted(question: Question, before: Emitted, after: Emitted, layout: Layout) -> dict[str, object]:
    """The layout that an edited file must have: what the trainer states as before stays as the file has it.

    So `auto` stays. Without a cut of the stages in the layout the file's own, or the trainer's, will do.
    """
    stated = question.layout.dump()
    old, new = (_read(files.trainer, _main(files), question).layout.dump() for files in (before, after))
    wanted = {key: stated[key] if old[key] == new[key] else new[key] for key in stated}
    unstated = {"stage_layers"} if layout.stage_layers is None else set()
    if "devices" in question.guessed:  # in no word of the file; nor is then a batch that grows with them
        unstated |= {"devices"} | ({"global_batch"} & question.guessed.keys())
    return {key: value for key, value in wanted.items() if key not in unstated}


def _emit(question: Question, version: str | None) -> Emitted:
    settings = settings_of(question.run)
    settings.version = version
    return emit(question.form or question.framework, settings)


def _main(emitted: Emitted) -> tuple[str, str]:
    """The name and the text of the file that a trainer is started with."""
    return next(iter(emitted.files.items()))


def _differing(
    question: Question, file: tuple[str, str], edited: tuple[str, str], wanted: Mapping[str, Any]
) -> str | None:
    """What of an edited file isn't the question's run in this layout; None where all of it is."""
    trainer = question.form or question.framework
    try:
        before, after = (_read(trainer, either, question) for either in (file, edited))
    except UserError as error:
        return f"meaning ({error.what})"
    keys = after.layout.dump()
    rest, asked = _rest(after), _rest(question.run)  # whose length or optimizer the user may have changed
    other = [f"layout.{key}" for key in wanted if keys[key] != wanted[key]]
    other += [key for key in rest if rest[key] != asked.get(key)] + ["model"] * (after.model != before.model)
    return other[0] if other else None


def _read(trainer: str, file: tuple[str, str], question: Question) -> RunSpec:
    name, text = file
    reading = read_own(trainer, text, PurePath(name).suffix, question.source or name)
    run = {"model": question.model.dump(), **reading.run}
    return as_run(replace(reading, run=run), name)


def _rest(run: RunSpec) -> dict[str, object]:
    return {key: value for key, value in run.dump().items() if key not in ("layout", "model", "name", "out_dir")}


def _diff(name: str, before: str, after: str) -> str:
    lines = (before.splitlines(), after.splitlines())
    return "\n".join(difflib.unified_diff(*lines, f"{name} (yours)", f"{name} (planned)", lineterm="", n=1))


def _edits(text: str, suffix: str, before: Emitted, after: Emitted, devices: int) -> Iterator[str | None]:
    """Edited texts, the one that keeps most of the file first; None where a word isn't there to be edited."""
    written = PurePath(_main(before)[0]).suffix
    if suffix in SIGNS and written in SIGNS:
        old, new = (flat(parse(text, PurePath(name).suffix, name)) for name, text in map(_main, (before, after)))
        yield from put_values(text, suffix, _changed(old, new))
    elif written == ".py":
        literals = changed_literals(_main(before)[1], _main(after)[1])
        if suffix == ".py":
            yield put_literals(text, literals)
        elif suffix in SIGNS:  # NeMo's YAML has the names of the recipe's keywords
            yield from put_values(text, suffix, named(text, suffix, literals))
    elif written == ".sh":
        old, new = (_flags(_main(emitted)[1]) for emitted in (before, after))
        changed = _changed(old, new)
        if suffix in SIGNS:  # a functional test of Megatron-LM's
            plain = {key: parse_yaml(word) if isinstance(word, str) else word for key, word in changed.items()}
            yield from put_values(text, suffix, {f"MODEL_ARGS.--{key}": word for key, word in plain.items()})
            return
        changed |= _launch(text, devices)
        for variables, quoted in product((True, False), (True, False)):
            edited = _put_flags(text, old, changed, variables, quoted)
            yield edited if edited is not None and _same_words(text, edited, changed) else None


def _same_words(text: str, edited: str, changed: Mapping[str, Any]) -> bool:
    """Whether all words of an edited script's launch line are as they were, but for flags that changed."""
    lines = [max(_commands(script), key=len, default=[]) for script in (text, edited)]
    kept = [
        [{name: words for name, words in flags(part).items() if name not in changed} for part in (before, after)]
        for before, _, after in map(split_launch, lines)
    ]
    return kept[0] == kept[1]


def _flags(script: str) -> dict[str, object]:
    """The program's flags in a script that an emitter wrote."""
    _, _, words = split_launch(max(_commands(script), key=len))
    return flags(words)


def _launch(text: str, devices: int) -> dict[str, object]:
    """torchrun's numbers for so many devices, where the script's own make another product."""
    commands = _commands(text)
    launch = flags(split_launch(max(commands, key=len))[0]) if commands else {}
    each, nodes = (str(launch.get(key, "")) for key in ("nproc-per-node", "nnodes"))
    if not each.isdecimal() or int(each) * (int(nodes) if nodes.isdecimal() else 1) == devices:
        return {}
    count = (devices // int(each), int(each)) if devices % int(each) == 0 else nodes_of(devices)
    stated = {"nnodes": str(count[0]), "nproc-per-node": str(count[1])}
    return {key: value for key, value in stated.items() if key in launch}


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, object]:
    """Words of the new layout that differ; None for one that it hasn't."""
    return {key: new.get(key) for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)}


def _put_flags(
    text: str, old: Mapping[str, Any], changed: Mapping[str, Any], variables: bool, quoted: bool
) -> str | None:
    """A script with flags set, added or taken out; `variables`: where one that states a flag is defined.

    `old`: the flags before; of one that is taken out, as many words go as it had there. `quoted`: values as a
    shell needs them where they don't stand in a quoted text already.
    """
    anchor = re.compile(r"(?<![\w-])--[a-z][\w-]*(?:[= ]+[^-\s\\#)\"'][^\s\\#)\"']*)?")
    added = ""
    for name, value in changed.items():
        spelled, kinds = name.replace("-", "[-_]"), (old.get(name), value)
        more = rf"(?: +{WORD})*" if any(isinstance(kind, list) for kind in kinds) else ""
        takes = "" if True in kinds else rf"(?:[= ]+(?P<value>{WORD}{more}))?"
        match = re.search(rf"(?<![\w-])--{spelled}(?![\w-]){takes}", _without_comments(text))
        listed = [str(item) for item in (value if isinstance(value, list) else [value])]
        words = "" if value is True or value is None else line(listed) if quoted else " ".join(listed)
        if match is None:
            added += f" --{name}{' ' + words if words else ''}" if value is not None else ""
        elif value is None:
            text = _without(text, *match.span())
        elif value is True:
            continue
        elif match["value"] is None:
            text = f"{text[: match.end()]} {words}{text[match.end() :]}" if words else text
        else:
            inner = re.fullmatch(r'"?\$\{?(\w+)\}?"?', match["value"])
            defined = _definition(text, inner[1]) if inner and variables else None
            start, end = defined or match.span("value")
            text = text[:start] + words + text[end:]
    if not added:
        return text
    place = _place(anchor, _without_comments(text), changed)
    return None if place is None else text[:place] + added + text[place:]


def _without(text: str, start: int, end: int) -> str:
    """The text without a flag, and without its line where nothing else is on it."""
    first, last = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    last = len(text) if last < 0 else last
    if text[first:start].strip():
        return text[:start].rstrip(" ") + text[end:]
    if text[end:last].strip() not in ("", "\\"):
        return text[:start] + text[end:].lstrip(" ")
    head = text[:first]
    if not text[end:last].strip() and head.endswith("\\\n"):  # the last line of a command: the one before is now
        head = head[:-2].rstrip(" ") + "\n"
    return head + text[last + 1 :]


def _place(anchor: re.Pattern[str], text: str, changed: Mapping[str, Any]) -> int | None:
    """Where a flag is added in a script without comments: behind one that stays, of parallelism at best."""
    matches = {re.split(r"[= ]", m[0][2:])[0].replace("_", "-"): m for m in anchor.finditer(text)}
    staying = [name for name in matches if name not in changed and name not in LAUNCH]
    for words in (("parallel",), ("batch-size",), ("num-layers", "size")):
        for name in staying:
            if any(word in name for word in words):
                return matches[name].end()
    return None


def _definition(text: str, variable: str) -> tuple[int, int] | None:
    """Where a variable's only definition has its plain value."""
    pattern = rf"(?m)(?:^|;)\s*(?:export\s+|local\s+)?{variable}=\"?(?:\$\{{\w+:-)?(\d+)"
    matches = list(re.finditer(pattern, text))
    return matches[0].span(1) if len(matches) == 1 else None


def _without_comments(text: str) -> str:
    """The same text, each comment blanked, so that positions stay."""
    return re.sub(r"(?m)(?:^|(?<=\s))#.*$", lambda match: " " * len(match[0]), text)


def _commands(text: str) -> list[list[str]]:
    """The commands of a script that name a Python program; none of a text that is no script."""
    with suppress(UserError):
        script = read_script(text)
        words = [script.shown(command.words) for command in script.commands]
        return [command for command in words if any(word.endswith(".py") or word == "-m" for word in command)]
    return []

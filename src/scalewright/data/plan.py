"""The plan of a `prepare`, written into OUT before work starts: a rerun compares its own with it.

OUT/pieces/plan.json holds the options, every input's name, size and stamp, and the command's words. A run that finds
another plan there refuses, and names the difference: finished tokens are never deleted or mixed by accident.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from scalewright.data.inputs import InputFile
from scalewright.data.metadata import METADATA, SPLITS
from scalewright.data.shards import commit_json
from scalewright.spec.common.files import lock_folder
from scalewright.spec.common.untrusted import read_json
from scalewright.spec.ends import COMPANIONS
from scalewright.spec.errors import UserError

PLAN_VERSION = 1
DEFAULT_VALID_FRACTION = 0.1
_WAIT = "wait for it, or choose another --out"
_CHOICES = "use another --out, or --overwrite to delete what is there"


@dataclass(frozen=True)
class Options:
    """The options that, besides the inputs, decide the result."""

    vocab_size: int | None
    tokenizer: str | None  # path as given; its content counts, by checksum
    tokenizer_sha256: str | None
    valid_fraction: float
    text_key: str
    eod: str | None
    skip_bad: bool
    bos: str | None = None  # always, never; None: as the tokenizer does
    special_tokens: list[str] | None = None

    def plain(self) -> dict[str, object]:
        """The options to compare: all but the tokenizer's path, and `skip_bad`.

        That changes only pieces with bad lines (`encode.finished` checks those): a command that such a line
        stopped goes on from there with --skip-bad.
        """
        kept = {key: value for key, value in asdict(self).items() if key not in ("tokenizer", "skip_bad")}
        absent = [key for key in ("bos", "special_tokens") if kept[key] is None]  # as in an older release
        return {key: value for key, value in kept.items() if key not in absent}

    def flags(self) -> list[str]:
        """The options as flags of `prepare`, without its defaults."""
        words: list[str] = []
        usual = {"valid_fraction": DEFAULT_VALID_FRACTION, "text_key": "text"}
        for key, value in asdict(replace(self, tokenizer_sha256=None)).items():
            if value is not None and value is not False and value != usual.get(key):
                flag = "--" + key.replace("_", "-")
                given = value if isinstance(value, list) else [value]
                words += [word for each in given for word in ((flag,) if each is True else (flag, str(each)))]
        return words


def settle(
    out: Path, files: Sequence[InputFile], options: Options, inputs: Sequence[str] = (), renew: bool = False
) -> None:
    """Makes OUT ready for this plan: new, or as before. Raises UserError if it holds something else, or, to `renew`,
    deletes that. `inputs` are the texts as they were named."""
    path = out / "pieces" / "plan.json"
    listed: dict[str, list[Any]] = {}
    for file in files:  # paths may change, except where two files have one name
        listed[file.path if file.name in listed else file.name] = [file.size, file.stamp]
    command = [*inputs, *options.flags()]
    plan = {"version": PLAN_VERSION, "options": options.plain(), "files": listed, "command": command}
    if path.is_file():
        try:
            _compare(path, plan)
            return
        except UserError:
            if not renew and ((out / METADATA).exists() or any(path.parent.glob("[0-9]*.json"))):
                raise
        clear(out)  # or a first try that stopped before it had finished anything: there is nothing to keep
    others = [name for name in (*SPLITS, METADATA, "tokenizer.json") if (out / name).exists()]
    if others:
        how = f"choose another --out, or delete {others[0]}"
        raise UserError(f"the folder already holds {others[0]}, and no plan of an earlier `prepare`", str(out), how)
    path.parent.mkdir(parents=True, exist_ok=True)
    commit_json(path, plan)


def clear(out: Path) -> None:
    """Deletes the files of an earlier `prepare` in OUT, and nothing else."""
    if not (out / "pieces" / "plan.json").is_file():
        return
    for name in (METADATA, "tokenizer.json", *COMPANIONS):
        (out / name).unlink(missing_ok=True)
    for name in (*SPLITS, "pieces"):
        shutil.rmtree(out / name, ignore_errors=True)


def sweep(out: Path) -> None:
    """Deletes half-written files; only for the run that is at work there."""
    for name in (METADATA, "tokenizer.json"):
        (out / f"{name}.tmp").unlink(missing_ok=True)
    for folder in (*SPLITS, "pieces"):
        for path in (out / folder).glob("*.tmp"):
            path.unlink(missing_ok=True)


@contextmanager
def held(out: Path) -> Iterator[None]:
    """Keeps two that start at the same moment out of OUT, by a lock that dies with its process.

    Raises UserError. Without locks (Windows, some network disks) `at_work` is all there is.
    """
    if out.exists() and not out.is_dir():
        raise UserError("a file, not a folder", str(out), "choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    try:
        handle = lock_folder(out)
    except BlockingIOError:
        raise UserError("another prepare is at work there", str(out), _WAIT) from None
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


@contextmanager
def at_work(out: Path) -> Iterator[None]:
    """Keeps a second `prepare` out of OUT, by a UserError; the mark of a killed run counts for nothing."""
    path = out / "pieces" / "lock.json"
    try:
        mark = read_json(path)
        if psutil.Process(mark["process"]).create_time() == mark["started"]:
            raise UserError(f"another prepare, process {mark['process']}, is at work there", str(out), _WAIT)
    except UserError:
        raise
    except (OSError, KeyError, TypeError, ValueError, psutil.Error):
        pass
    commit_json(path, {"process": os.getpid(), "started": psutil.Process().create_time()})
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _compare(path: Path, plan: Mapping[str, Any]) -> None:
    out = str(path.parent.parent)
    try:
        before = read_json(path)
        options, files = before["options"], before["files"]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"the plan of the earlier run is damaged: {error}", str(path), _CHOICES) from None
    for key in {**options, **plan["options"]}:
        value = plan["options"].get(key)
        if options.get(key) != value:
            flag = "--tokenizer (its content)" if key == "tokenizer_sha256" else "--" + key.replace("_", "-")
            how = f"give the same, {_CHOICES}"
            raise UserError(f"begun with {_given(flag, options.get(key))}, now with {_given(flag, value)}", out, how)
    now = plan["files"]
    for name in [*now, *files]:
        if files.get(name) != now.get(name):
            change = "has changed" if name in files and name in now else "is new" if name in now else "is gone"
            raise UserError(f"the input {name} {change} since the earlier run", out, _CHOICES)


def _given(flag: str, value: Any) -> str:
    return f"{flag} {value}" if value is not None else f"no {flag}"

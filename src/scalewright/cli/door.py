"""The one place where an error leaves the program: one line on stderr, and an exit code.

    UserError, a wrong flag          2     error: WHAT is wrong (WHERE): HOW to fix it
    RunError, a full disk            1
    Stopped by a signal, and saved   75    "requeue me"
    Ctrl-C                           130
    a reader that went away          141   nothing is printed (as `... | head` wants it)
    a path that can't be used        2     a link in a circle, a name too long, a folder in a file's place
    stdout that can't be written     1     one that is closed is no error, and neither is anything on stderr
    anything else: a bug of ours     1     one line, and the file that the traceback went to

`--debug`, before or after the verb, shows the traceback instead.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from pathlib import Path
from typing import Any

import typer

from scalewright.cli.numbers import plain_numbers
from scalewright.cli.words import like_option
from scalewright.spec.common.formatting import printable
from scalewright.spec.common.ports import port_is_taken
from scalewright.spec.errors import RunError, Stopped, UserError, install, shortened

# typer's, wherever this version of it keeps that
UsageError: type[Exception] = typer.BadParameter.__bases__[0]
INTERRUPTED = 130
READER_GONE = 141

_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
# What is wrong with a path that the user gave, and what is wrong with the machine.
_PATH = {
    errno.EEXIST, errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENODEV, errno.ENOTDIR,
    errno.ENOTEMPTY, errno.ENXIO, errno.EPERM, errno.EROFS,
}  # fmt: skip
_MACHINE = {errno.EAGAIN, errno.EBADF, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ETIMEDOUT}
# The complaints of Python itself about a path; those of newer versions are OSErrors.
_PATHLIB = ("Symlink loop from", "Could not determine home", "Can't determine home", "embedded null")

_NO_TEMPORARY = "No usable temporary directory"

# The extra that installs a missing module.
_EXTRAS = {
    "torch": "train", "safetensors": "train", "tokenizers": "train", "pyarrow": "train", "mlflow": "track",
    "tensorboard": "track", "wandb": "track", "ray": "ray", "mpi4py": "mpi", "lm_eval": "evaluate",
    "scipy": "budget", "matplotlib": "budget",
}  # fmt: skip


def run_behind_door(command: Any, arguments: list[str]) -> int:
    """Runs the command of all verbs and returns the exit code; prints an error as one line on stderr."""
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a console without our box characters is no reason to fail
    end = arguments.index("--") if "--" in arguments else len(arguments)  # what follows is left alone
    kept = [word for word in arguments[:end] if word != "--debug"]
    arguments, debug = kept + arguments[end:], len(kept) < end
    try:
        code = _invoke(command, arguments or ["--help"])
        sys.stdout.flush()
        return code
    except BaseException as error:
        unwritten = _flush_or_discard()
        if _reader_gone(error) or isinstance(unwritten, BrokenPipeError):
            return READER_GONE
        if isinstance(error, SystemExit):
            return error.code if isinstance(error.code, int) else int(error.code is not None)
        if debug and not isinstance(error, (KeyboardInterrupt, typer.Abort)):
            import traceback

            lines = traceback.format_exception(type(error), error, error.__traceback__)
            print(printable("".join(lines)), end="", file=sys.stderr)
        return _tell(error, debug)


class _Unfailing(io.FileIO):
    """stderr: what can't be written there is lost, and ends no run."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            return len(data)


def _open_streams() -> None:
    """Makes stdin, stdout and stderr usable where they were closed (`>&-`) or can't be written. A closed one becomes
    the null device: else the next file that is opened gets its number, and with it whatever a library prints."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    if sys.__stderr__ is not None and sys.stderr is sys.__stderr__ and os.name == "posix":
        raw = io.BufferedWriter(_Unfailing(2, "w", closefd=False))
        sys.stderr = io.TextIOWrapper(raw, sys.__stderr__.encoding, line_buffering=True)


def _flush_or_discard() -> OSError | None:
    """Writes what stdout still holds; where that fails, drops it, as Python's own flush at exit complains."""
    try:
        sys.stdout.flush()
    except OSError as error:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    return None


FLAGS = ("--json", "--all", "--markdown")


def _diagnose(words: list[str]) -> int:
    """`diagnose PATH...` with nothing but FLAGS: typer's conversions import pydantic, a third of a tiny trace's."""
    from scalewright.cli.verbs.diagnose import diagnose

    json, everything, markdown = (flag in words for flag in FLAGS)
    try:
        diagnose(_paths(words), json=json, everything=everything, markdown=markdown)
    except typer.Exit as end:
        return end.exit_code
    return 0


def _paths(words: list[str]) -> list[Path]:
    return [Path(word) for word in words if word not in FLAGS]


def _invoke(command: Any, arguments: list[str]) -> int:
    verb, *words = arguments
    if verb == "diagnose" and _paths(words) and all(word in FLAGS or not word.startswith("-") for word in words):
        return _diagnose(words)
    program = Path(sys.argv[0]).stem
    name = program if program in {"scalewright", "swr"} else "scalewright"
    arguments = plain_numbers(command, arguments)
    result = command.main(args=arguments, prog_name=name, standalone_mode=False)
    code = result if isinstance(result, int) else 0
    if code == INTERRUPTED:  # newer typer answers a Ctrl-C with this code instead of an exception
        raise KeyboardInterrupt
    return code


def _tell(error: BaseException, debug: bool) -> int:
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        return _say("interrupted", INTERRUPTED, prefix="")
    if isinstance(error, Stopped):
        text = str(error) or "stopped by a signal, state saved: start it again to go on"
        return _say(text, Stopped.exit_code, prefix="")
    if isinstance(error, (UserError, RunError)):
        mistaken = isinstance(error.__cause__, OSError) and error.__cause__.errno in _PATH
        return _say(str(error), UserError.exit_code if mistaken else error.exit_code)
    if type(error).__name__ == "NoArgsIsHelpError":  # a group without a command: its help is the answer
        print(error, file=sys.stderr)
        return UserError.exit_code
    if isinstance(error, UsageError):
        return _say(str(usage_error(error)), UserError.exit_code)
    if isinstance(error, (RuntimeError, OSError)) and (taken := port_is_taken(error)) is not None:
        return _say(str(taken), UserError.exit_code)
    module = str(getattr(error, "name", "")).split(".")[0]
    if isinstance(error, ModuleNotFoundError) and module in _EXTRAS:
        fix = install(_EXTRAS[module])
        return _say(f"this command needs {module}, which is not installed: {fix}", UserError.exit_code)
    if isinstance(error, FileNotFoundError) and _NO_TEMPORARY in str(error):
        return _say("no folder for temporary files can be written: set TMPDIR to one that can", UserError.exit_code)
    if isinstance(error, OSError) and error.errno in _FULL:
        where = error.filename or "while writing"
        return _say(f"the disk is full ({where}): free some space and run it again", 1)
    if isinstance(error, PermissionError) and error.filename:
        return _say(f"no permission ({error.filename}): choose a path that you may use", UserError.exit_code)
    if isinstance(error, OSError) and error.errno in _PATH and error.filename:
        return _say(f"{error.strerror} ({error.filename}): choose another path", UserError.exit_code)
    if isinstance(error, OSError) and error.errno in _MACHINE:
        where = error.filename or "while reading or writing"
        return _say(f"{error.strerror} ({where}): mend it and run it again", 1)
    if isinstance(error, MemoryError):
        return _say("this machine's memory is not enough: give it less to do, or more memory", 1)
    if isinstance(error, UnicodeEncodeError):
        what = f"{error.object[:60]!r} can't be written as {error.encoding}"
        return _say(f"{what}: use names that are {error.encoding} text", UserError.exit_code)
    if isinstance(error, (RuntimeError, ValueError)) and str(error).startswith(_PATHLIB):
        return _say(f"a path can't be used: {error}: choose another path", UserError.exit_code)
    return _tell_bug(error, debug)


def _tell_bug(error: BaseException, debug: bool) -> int:
    import tempfile
    import traceback

    what = f"{type(error).__name__}: {error}".rstrip(": ")
    if debug:
        return _say(f"unexpected {what}", 1)
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="scalewright-error-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            file.writelines(traceback.format_exception(type(error), error, error.__traceback__))
        hint = f"the traceback is in {file.name}; --debug shows it"
    except OSError:
        hint = "run it again with --debug to see the traceback"
    return _say(f"unexpected {what}: {hint}", 1)


def _say(text: str, code: int, prefix: str = "error: ") -> int:
    _flush_or_discard()
    with contextlib.suppress(OSError, ValueError):  # a terminal that was closed; the code counts
        print(prefix + printable(shortened(" ".join(text.split()), 2000)), file=sys.stderr, flush=True)
    return code


def usage_error(error: Any) -> UserError:
    """typer's complaint about the command line as one of ours, with the nearest valid names."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "scalewright"
    see = f"see `{path} --help`"
    kind, option = type(error).__name__, getattr(error, "option_name", None)
    if kind == "NoSuchOption":
        takes_keys = context is not None and any(p.name == "overrides" for p in context.command.params)
        keys = f"a run file's keys have no dashes: layout.tp=2; {see}"
        how = like_option(str(option), _options_of(context)) or (keys if takes_keys else see)
        return UserError(f"unknown option {option}", path, how)
    if kind == "MissingParameter":
        return _missing(error, context, path)
    message = str(getattr(error, "message", error)).rstrip(".")
    if (parameter := getattr(error, "param", None)) is not None:
        if message.startswith("Input should be"):  # newer typer lets pydantic speak
            message = f"{_shown(parameter)} should be" + message.removeprefix("Input should be").split(",")[0]
            return UserError(message, path, see)
        return UserError(message, f"{path} {_shown(parameter)}", see)
    return UserError(message[:1].lower() + message[1:], path, see)


def _missing(error: Any, context: Any, path: str) -> UserError:
    missing = _shown(error.param) if error.param is not None else str(error.param_hint)
    required = [p for p in context.command.params if p.required] if context else []
    words = [f"{_shown(p)} ..." if _shown(p).startswith("--") else _shown(p) for p in required]
    return UserError(f"{missing} is missing", path, "write `" + " ".join([path, *words]) + "`")


def _shown(parameter: Any) -> str:
    """A parameter as the user writes it: `--steps`, or RUN for an argument."""
    options = [o for o in getattr(parameter, "opts", []) if o.startswith("--")]
    return options[0] if options else str(getattr(parameter, "metavar", None) or parameter.name.upper())


def _options_of(context: Any) -> list[str]:
    known = {"--help", "--debug"}
    for parameter in context.command.params if context is not None else ():
        known.update(o for o in [*parameter.opts, *parameter.secondary_opts] if o.startswith("-"))
    return sorted(known)


def _reader_gone(error: BaseException) -> bool:
    """Whether whoever read our output closed the pipe (typer turns that into SystemExit)."""
    return isinstance(error.__context__ if isinstance(error, SystemExit) else error, BrokenPipeError)

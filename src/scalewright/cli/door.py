"""The one place where an error leaves the program: one line on stderr, and an exit code.

    UserError, a wrong flag          2     error: WHAT is wrong (WHERE): HOW to fix it
    RunError, a full disk            1
    Stopped by a signal, and saved   75    "requeue me"
    Ctrl-C                           130
    a reader that went away          141   nothing is printed (as `... | head` wants it)
    anything else: a bug of ours     1     one line, and the file that the traceback went to

`--debug`, before or after the verb, shows the traceback instead.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer

from scalewright.spec.errors import RunError, Stopped, UserError, install, nearest
from scalewright.spec.text.words import printable

# typer's, wherever this version of it keeps that
UsageError: type[Exception] = typer.BadParameter.__bases__[0]
INTERRUPTED = 130
READER_GONE = 141

# The extra that installs a missing module.
_EXTRAS = {
    "torch": "train", "safetensors": "train", "tokenizers": "train", "pyarrow": "train", "joblib": "train",
    "mlflow": "track", "tensorboard": "track", "wandb": "track", "ray": "launch", "mpi4py": "launch",
    "lm_eval": "evaluate",
}  # fmt: skip


def run_behind_door(app: typer.Typer, arguments: list[str]) -> int:
    """Runs the application and returns the exit code; prints an error as one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a console without our box characters is no reason to fail
    arguments, debug = _take_debug(arguments)
    try:
        code = _invoke(app, arguments or ["--help"])
        sys.stdout.flush()
        return code
    except BaseException as error:
        if _reader_gone(error):
            # Python's own flush at exit would complain of a dead stdout.
            with contextlib.suppress(OSError, ValueError, AttributeError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return READER_GONE
        if isinstance(error, SystemExit):
            return error.code if isinstance(error.code, int) else int(error.code is not None)
        if debug and not isinstance(error, (KeyboardInterrupt, typer.Abort)):
            import traceback

            lines = traceback.format_exception(type(error), error, error.__traceback__)
            print(printable("".join(lines)), end="", file=sys.stderr)
        return _tell(error, debug)


def _take_debug(arguments: list[str]) -> tuple[list[str], bool]:
    """The arguments without `--debug`, and whether it was there; what follows `--` is left alone."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    kept = [a for a in arguments[:end] if a != "--debug"]
    return kept + arguments[end:], len(kept) < end


def _invoke(app: typer.Typer, arguments: list[str]) -> int:
    program = Path(sys.argv[0]).stem
    name = program if program in {"scalewright", "swr"} else "scalewright"
    result = typer.main.get_command(app).main(args=arguments, prog_name=name, standalone_mode=False)
    code = result if isinstance(result, int) else 0
    if code == INTERRUPTED:  # newer typer answers a Ctrl-C with this code instead of an exception
        raise KeyboardInterrupt
    return code


def _tell(error: BaseException, debug: bool) -> int:
    """Prints the line for an error and returns its exit code."""
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        return _say("interrupted", INTERRUPTED, prefix="")
    if isinstance(error, Stopped):
        return _say(
            str(error) or "stopped by a signal, state saved: start it again to go on",
            Stopped.exit_code,
            prefix="",
        )
    if isinstance(error, (UserError, RunError)):
        return _say(str(error), error.exit_code)
    if isinstance(error, UsageError):
        return _say(str(usage_error(error)), UserError.exit_code)
    module = str(getattr(error, "name", "")).split(".")[0]
    if isinstance(error, ModuleNotFoundError) and module in _EXTRAS:
        fix = install(_EXTRAS[module])
        return _say(f"this command needs {module}, which is not installed: {fix}", UserError.exit_code)
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}:
        where = error.filename or "while writing"
        return _say(f"the disk is full ({where}): free some space and run it again", 1)
    if isinstance(error, PermissionError) and error.filename:
        return _say(f"no permission ({error.filename}): choose a path that you may use", UserError.exit_code)
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
    sys.stdout.flush()
    print(prefix + printable(" ".join(text.split())), file=sys.stderr, flush=True)
    return code


def usage_error(error: Any) -> UserError:
    """typer's complaint about the command line as one of ours, with the nearest valid names."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "scalewright"
    see = f"see `{path} --help`"
    option = getattr(error, "option_name", None)
    kind = type(error).__name__
    if kind == "NoSuchOption":
        near = nearest(str(option), _options_of(context), 2)
        how = ("did you mean " + " or ".join(near) + "?") if near else see
        return UserError(f"unknown option {option}", path, how)
    if kind == "MissingParameter":
        return _missing(error, context, path)
    message = str(getattr(error, "message", error)).rstrip(".")
    parameter = getattr(error, "param", None)
    if parameter is not None:
        if message.startswith("Input should be"):  # newer typer lets pydantic speak
            message = f"{_shown(parameter)} should be" + message.removeprefix("Input should be").split(",")[0]
            return UserError(message, path, see)
        return UserError(message, f"{path} {_shown(parameter)}", see)
    return UserError(message[:1].lower() + message[1:], path, see)


def _missing(error: Any, context: Any, path: str) -> UserError:
    """A required argument or option that wasn't given, with the shortest command that would do."""
    missing = _shown(error.param) if error.param is not None else str(error.param_hint)
    required = [p for p in context.command.params if p.required] if context else []
    words = [f"{_shown(p)} ..." if _shown(p).startswith("--") else _shown(p) for p in required]
    return UserError(f"{missing} is missing", path, "write `" + " ".join([path, *words]) + "`")


def _shown(parameter: Any) -> str:
    """A parameter as the user writes it: `--steps`, or RUN for an argument."""
    options = [o for o in getattr(parameter, "opts", []) if o.startswith("--")]
    return options[0] if options else str(getattr(parameter, "metavar", None) or parameter.name.upper())


def _options_of(context: Any) -> Iterable[str]:
    known = {"--help", "--debug"}
    if context is not None:
        for parameter in context.command.params:
            known.update(o for o in [*parameter.opts, *parameter.secondary_opts] if o.startswith("-"))
    return sorted(known)


def _reader_gone(error: BaseException) -> bool:
    """Whether whoever read our output closed the pipe (typer turns that into SystemExit)."""
    seen: BaseException | None = error
    if isinstance(error, SystemExit):
        seen = error.__context__
    return isinstance(seen, BrokenPipeError)

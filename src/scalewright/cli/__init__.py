"""The command line: `scalewright <verb> ...`, and `swr`, which is the same command.

    arguments --app--> verb (verbs/<name>.py) --imports what it needs, then--> the folder that does the work
                          │ raises
                          ▼
                     door.py: one line on stderr and an exit code

A verb's file holds its flags (shared ones: options.py, numbers.py) and nothing heavy: `--help` must answer before
torch, pydantic or numpy could even be imported. output.py prints.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

import typer

from scalewright.cli.door import run_behind_door
from scalewright.cli.options import flag
from scalewright.cli.verbs import Root


def _show_version(asked: bool) -> None:
    if asked:
        from scalewright import __version__

        print(f"scalewright {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, flag("Print the version and stop.", "--version", callback=_show_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, flag("Show the traceback of an error; goes before or after the verb.", "--debug")] = False,
) -> None:
    """Plan a language-model run, run it, and prove where its time went."""


@cache  # for those who call `main` more than once, as a notebook or the tests do
def build_app() -> Any:
    """The command of all verbs."""
    # Plain help: rich's panels would take half of the 0.3 s that `--help` may take.
    app = typer.Typer(cls=Root, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.callback()(_root)
    return typer.main.get_command(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line (`sys.argv` when none is given) and returns its exit code."""
    from scalewright.launch.settings import keep_few_kernels

    keep_few_kernels()  # for verbs that compute, and for processes that they start
    return run_behind_door(build_app(), list(sys.argv[1:] if arguments is None else arguments))

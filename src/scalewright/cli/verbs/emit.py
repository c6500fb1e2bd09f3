"""`scalewright emit TRAINER RUN`: a run, or a served model, in another program's words."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalewright.cli.options import Force, Json, argument, flag, option
from scalewright.cli.output import print, print_exact, print_json
from scalewright.spec.common.shell import operand, quote
from scalewright.spec.errors import UserError, shortened

if TYPE_CHECKING:
    from scalewright.emit.emitted import Emitted


def emit(
    trainer: Annotated[
        str, argument("TRAINER", "megatron, torchtitan, ...; vllm, sglang, trtllm, llama.cpp, dynamo, kserve.")
    ],
    run: Annotated[str, argument("RUN", "A run file, or what `plan --json` or `inference --json` printed.")],
    overrides: Annotated[
        list[str] | None, argument("KEY=VALUE...", "Keys to change: layout.tp=2; engines: checkpoint, draft, max_len.")
    ] = None,
    out: Annotated[Path | None, option("DIR", "Where to write; default: NAME-TRAINER.")] = None,
    show: Annotated[bool, flag("Print the files and write nothing.", "--print")] = False,
    strict: Annotated[bool, flag("Exit with 1 when a setting was dropped or changed.", "--strict")] = False,
    software_version: Annotated[
        str | None, flag("The trainer's release: torchtitan 0.2.", "--software-version")
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Write a run, or a served model, in another program's words, with its launch line.

    \b
    scalewright emit megatron run.yaml
    scalewright emit torchtitan plan.json --out titan --strict
    scalewright emit vllm served.json --out serve
    """
    from scalewright.emit.serving.write import is_target
    from scalewright.emit.write import save

    name, emitted = (_served if is_target(trainer) else _trained)(trainer, run, overrides or [], software_version)
    refused = strict and not emitted.exact
    folder = out or Path(f"{name}-{emitted.trainer}")
    written = [] if show or refused else save(emitted.files, folder, force)
    if json:
        print_json({**emitted.dump(), "written": [str(path) for path in written]})
    else:
        _show(emitted, folder, show, refused)
    if refused:
        raise typer.Exit(1)


def _trained(trainer: str, run: str, overrides: list[str], version: str | None) -> tuple[str, Emitted]:
    from scalewright.emit.source import in_own_file, load_settings
    from scalewright.emit.write import emit as write

    settings = load_settings(run, overrides)
    settings.version = version
    emitted = write(trainer, settings)
    if not overrides and version is None:
        emitted = in_own_file(run, trainer, emitted)
    return settings.run.name, emitted


def _served(engine: str, answer: str, overrides: list[str], version: str | None) -> tuple[str, Emitted]:
    from scalewright.emit.serving.write import emit_served

    if version is not None:
        how = f"leave it out: {engine} is written in the words of one release, which --json names"
        raise UserError("engines have no other release here", "--software-version", how)
    return Path(answer).stem, emit_served(engine, answer, overrides)


def _show(emitted: Emitted, folder: Path, show: bool, refused: bool) -> None:
    for name, text in emitted.files.items() if show else ():
        print_exact(f"# ---- {name}\n{text}" if len(emitted.files) > 1 else text)
    notes = sys.stderr if show else sys.stdout
    if not show and not refused:
        print(f"wrote {', '.join(str(folder / name) for name in emitted.files)}")
        print(f"run   cd {quote(operand(str(folder)))} && {emitted.command}")
    for key, value, why in emitted.dropped:
        print(f"dropped   {shortened(f'{key} {value}', 80)}: {why}", file=notes)
    for key, value, written, why in emitted.changed:
        print(f"changed   {key} {value} -> {written}: {why}", file=notes)
    for text in emitted.assumed:
        print(f"assumed   {text}", file=notes)
    if refused:
        print("nothing written: --strict, and a setting was dropped or changed", file=sys.stderr)

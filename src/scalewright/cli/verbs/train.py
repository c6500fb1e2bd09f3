"""`scalewright train RUN.yaml [key=value ...]`: trains, or goes on training, what a run file describes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import Force, Json, Overrides, RunFile
from scalewright.cli.output import only_answer, print, print_json, working
from scalewright.spec.errors import RunError, Stopped, UserError, nearest

SUFFIXES = (".yaml", ".yml")


def train(
    run: RunFile,
    overrides: Overrides = None,
    steps: Annotated[int | None, typer.Option(min=0, help="Stop at this step; a later call goes on.")] = None,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Take CPU processes for devices that aren't here.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what each rank would hold, send and compute; needs no devices.")
    ] = False,
    force: Force = False,
    memory_check: Annotated[
        bool,
        typer.Option("--memory-check/--no-memory-check", help="Refuse a run that needs more memory than is free here."),
    ] = True,
    json: Json = False,
) -> None:
    """Train what a run file describes, or go on with it.

    \b
    scalewright train run.yaml
    scalewright train run.yaml layout.devices=4 optimizer.lr=3e-4
    scalewright train run.yaml layout.devices=512 layout.tp=8 --dry-run
    """
    if not run.is_file():
        raise missing_run(run)
    if dry_run:
        rehearse(run, overrides or [], json)
        return
    from scalewright.api import train as train_run
    from scalewright.launch.rank import find_context

    with only_answer(json):
        try:
            result = train_run(
                run,
                tuple(overrides or ()),
                steps=steps,
                simulate=simulate,
                quiet=json,
                memory_check=memory_check,
                force=force,
            )
        except Stopped:
            if find_context().rank:  # all ranks stop alike, and rank 0 prints it
                raise typer.Exit(Stopped.exit_code) from None
            raise
        except RunError:
            if find_context().rank == 0:
                write_failed_page(run, overrides or [])
            raise
        if find_context().rank == 0:
            write_page(Path(result.out_dir), force)
    if json and find_context().rank == 0:  # under torchrun every rank is here; one answers
        print_json(result.dump())


def rehearse(run: Path, overrides: list[str], json: bool) -> None:
    from scalewright.cli.dry_run import show_dry_run
    from scalewright.dry_run.dry_run import dry_run

    with only_answer(json), working("playing one rank of every kind"):
        document = dry_run(run, overrides).dump()
    print_json(document) if json else show_dry_run(document)


def write_page(folder: Path, force: bool = False) -> None:
    """The run's report.html, and a copy for MLflow; a run that trained well doesn't fail for its report."""
    from scalewright.launch.settings import tracking_variables
    from scalewright.report.run import write_report
    from scalewright.track.attach import attach

    try:
        page = write_report(folder, force=force)
    except (UserError, RunError) as error:
        print(f"no report: {error}", file=sys.stderr)
        return
    attach(folder, [page], tracking_variables())


def write_failed_page(run: Path, overrides: list[str]) -> None:
    """The report of a run that failed, where it got as far as having numbers: it shows what went wrong."""
    from scalewright.spec.run import load_run

    folder = load_run(run, overrides).folder
    if (folder / "metrics.jsonl").exists():
        write_page(folder)


def missing_run(run: Path) -> UserError:
    """The error for a run file that isn't there, with the files beside it that have nearly its name."""
    if "=" in run.name:
        return UserError("RUN.yaml is missing", "scalewright train", f"write `scalewright train RUN.yaml {run}`")
    if run.is_dir():
        return UserError("this is a folder, not a run file", str(run), f"name a file, such as {run / 'run.yaml'}")
    places = (run.parent if run.parent.is_dir() else Path(), Path())
    files = {str(path) for place in places for path in place.glob("*.y*ml") if path.suffix in SUFFIXES}
    near = nearest(str(run), files) or sorted(files)[:3]
    how = "check the path; `scalewright demo` writes a run file to start from"
    if near:
        how = "did you mean " + " or ".join(f"'{name}'" for name in near) + "?"
    return UserError("no such file", str(run), how)

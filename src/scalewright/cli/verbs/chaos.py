"""`scalewright chaos RUN.yaml [key=value ...]`: does the run come back from faults, to the same weights?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import Force, Json, Overrides, RunFile, flag, option
from scalewright.cli.output import only_answer, print_json, working
from scalewright.cli.terminal import show
from scalewright.cli.verbs.train import missing_run


def chaos(
    run: RunFile,
    overrides: Overrides = None,
    faults: Annotated[int, flag("Faults in all; runs are started as often as they take.", min=1)] = 10,
    seed: Annotated[int, flag("The same faults for the same seed, kinds and steps.")] = 0,
    kinds: Annotated[
        str | None,
        flag(
            "Of kill, launcher, node, stop, memory, nan, preempt, damage, disk, storage, network, slow; default: all."
        ),
    ] = None,
    steps: Annotated[int | None, flag("Of each run; default: the file's, at most 60.", min=3)] = None,
    out: Annotated[Path | None, option("FILE", "A page: the faults in time, recoveries, what was lost.")] = None,
    keep: Annotated[Path | None, option("DIR", "Keep the runs there.")] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Disturb copies of a run on this machine, start them again, and compare their weights with an undisturbed run's.

    \b
    scalewright chaos run.yaml --faults 20
    scalewright chaos run.yaml layout.devices=4 device=cpu --kinds kill,disk,damage --seed 7 --out chaos.html

    Nothing is written to the run's own folder or trackers. Exit code 1 where a run didn't come back, or differs.
    """
    if not run.is_file():
        raise missing_run(run)
    with only_answer(json), working("reading the run") as tell:
        from scalewright.chaos.chaos import chaos as disturb
        from scalewright.report.answer import write_answer
        from scalewright.report.present import show_answer
        from scalewright.spec.run import load_run

        chosen = [kind.strip() for kind in (kinds or "").split(",") if kind.strip()]
        spec = load_run(run, overrides or [])
        answer = disturb(spec, faults=faults, seed=seed, kinds=chosen, steps=steps, keep=keep, tell=tell)
        if out is not None:
            write_answer(answer, out, force)
    print_json(answer) if json else show(show_answer(answer), True)
    if not answer["equal"] or answer["recovered"] < len(answer["faults"]) or answer["orphans"]:
        raise typer.Exit(1)

"""`scalewright compare A B ...`: runs side by side, on the terminal or as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from scalewright.cli.options import Json, argument
from scalewright.cli.output import print, print_json, working
from scalewright.cli.terminal import print_table
from scalewright.spec.common.formatting import count, decimal

if TYPE_CHECKING:
    from scalewright.report.runs import Comparison


def compare(
    runs: Annotated[list[Path], argument("RUN_DIR...", "Folders of runs, or of folders of runs.")], json: Json = False
) -> None:
    """Compare runs: settings that differ, losses, speed, memory.

    \b
    scalewright compare runs/a runs/b
    scalewright compare runs/run-sweep
    """
    from scalewright.report.runs import compare as lay_side_by_side
    from scalewright.report.runs import find_runs

    with working("reading the runs"):
        comparison = lay_side_by_side(find_runs(runs))
    print_json(comparison) if json else _show(comparison)


def _show(comparison: Comparison) -> None:
    from scalewright.report.runs import UNREMARKABLE, cells, setting

    names = [entry.name for entry in comparison.runs]
    rows = [
        [f"{entry.name} (best)" if entry.name == comparison.best else entry.name, *cells(entry).values()]
        for entry in comparison.runs
    ]
    print_table(["run", *cells(comparison.runs[0])], rows)
    for entry in comparison.runs:
        if entry.status not in UNREMARKABLE:
            print(f"{entry.name}: {entry.status}, at step {entry.steps:,}")
        for problem in entry.problems:
            print(f"{entry.name}: {problem}")
    if comparison.differences:
        print()
        differing = [[key, *(setting(value) for value in values)] for key, values in comparison.differences.items()]
        print_table(["what differs", *names], differing)
    else:
        print("\nall settings are the same")
    if comparison.aligned_tokens:
        print()
        rows = [
            [f"at {count(tokens)} tokens", *(decimal(losses[place]) for losses in comparison.aligned_loss)]
            for place, tokens in enumerate(comparison.aligned_tokens)
        ]
        print_table(["training loss, smoothed", *names], rows)
    if comparison.by == "loss":
        print("\nbest by training loss, as not all of them validate (train.valid_every)")

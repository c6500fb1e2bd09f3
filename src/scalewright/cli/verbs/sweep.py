"""`scalewright sweep RUN.yaml key=value,value ...`: every combination of the values, as runs of their own."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from scalewright.cli.options import Json, argument, flag
from scalewright.cli.output import only_answer, print, print_json, working
from scalewright.cli.terminal import print_table
from scalewright.cli.verbs.train import missing_run
from scalewright.spec.common.formatting import count, counted, decimal
from scalewright.spec.errors import RunError, Stopped

if TYPE_CHECKING:
    from scalewright.train.sweep import Row, Sweep


def sweep(
    run: Annotated[Path, argument("RUN.yaml", "The run file.")],
    values: Annotated[list[str], argument("KEY=VALUE,…", "Values to try, such as optimizer.lr=1e-4,3e-4.")],
    jobs: Annotated[
        int | None, flag("Runs at a time; default: what this machine has cores or GPUs for.", min=1)
    ] = None,
    json: Json = False,
) -> None:
    """Train every combination of some values, and compare them in one table.

    Finished runs are not run again: the same command goes on with a sweep that was stopped.

    \b
    scalewright sweep run.yaml optimizer.lr=1e-4,3e-4,1e-3
    scalewright sweep run.yaml optimizer.lr=1e-4,3e-4 layout.micro_batch=1,2 train.steps=200
    """
    if not run.is_file():
        raise missing_run(run)
    from scalewright.train.sweep import sweep as run_sweep

    with only_answer(json), working("starting the runs") as at:

        def tell(done: int, total: int, row: Row) -> None:
            _tell(done, total, row)
            at(f"{done} of {counted(total, 'runs')} done")

        result = run_sweep(run, values, jobs=jobs, tell=tell)
    print_json(result) if json else _show(result)
    count = Counter(row.status for row in result.rows)
    if count["stopped"]:
        unfinished = counted(count["stopped"], "runs")
        raise Stopped(f"stopped with {unfinished} left; the same command goes on from there")
    if count["failed"]:
        total = counted(len(result.rows), "runs")
        raise RunError(f"{count['failed']} of {total} failed; the same command tries again")


def _tell(done: int, total: int, row: Row) -> None:
    """One line as a run ends, on stderr; the table at the end has the whole error."""
    loss = row.valid_loss if row.valid_loss is not None else row.loss
    word = row.error.split("; ")[0] if row.error else (f"loss {loss:.4f}" if loss is not None else row.status)
    print(f"{done}/{total}  {row.run}: {word}{'' if row.again else ' (finished before)'}", file=sys.stderr, flush=True)


def _show(result: Sweep) -> None:
    keys = list(result.rows[0].values)
    last = [key.rpartition(".")[2] for key in keys]  # as in the runs' labels; whole where two would be the same
    names = last if len(set(last)) == len(last) else keys
    columns = [*names, "valid loss", "loss", "step", "tokens/s", "GiB", "status"]
    table = []
    for row in result.rows:
        losses = [decimal(loss, 5) for loss in (row.valid_loss, row.loss)]
        status = "best" if row.run == result.best else row.status
        rate, memory = count(row.tokens_per_s), decimal(row.memory_gib, 3)
        table.append([*row.values.values(), *losses, row.step, rate, memory, status])
    print_table(columns, table)
    for line in (*(f"{row.run}: {row.error}" for row in result.rows if row.error), *result.notes):
        print(line)
    if result.best is not None:
        training = "training loss, as not all runs validate (train.valid_every)"
        print(f"best by {'validation loss' if result.by == 'valid_loss' else training}: {result.best}")
        print(f"one page about all of them: scalewright report {result.folder}")

"""`scalewright score [FILE]`: predictions beside what was measured, source by source."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

from scalewright.cli.options import Json, argument, flag, option
from scalewright.cli.output import only_answer, print, print_json, working
from scalewright.cli.terminal import show
from scalewright.spec.errors import UserError

if TYPE_CHECKING:
    from scalewright.plan.fitting.runs import Runs

Row = dict[str, object]


def score(
    file: Annotated[
        str | None, argument("FILE", "Runs as CSV or JSON lines, - is stdin; else the 2,501 bundled ones.")
    ] = None,
    oom: Annotated[str | None, option("FILE", "Layouts that ran out of memory, as CSV.")] = None,
    fit: Annotated[int | None, option("K", "Fit a profile on K of the runs, score the rest.", min=1)] = None,
    left_out: Annotated[
        bool, flag("Predict each source by constants fitted without it (minutes).", "--left-out")
    ] = False,
    json: Json = False,
) -> None:
    """Compare predictions with measured runs: error, bias, band, ranking, memory.

    \b
    scalewright score
    scalewright score my-runs.csv --fit 8
    """
    from scalewright.report.present.score import show_score

    with only_answer(json), working("pricing measured runs"):
        figures = compare(file, oom, fit, left_out)
    print_json(figures) if json else show(show_score(figures), everything=True)


def compare(file: str | None, oom: str | None, fit: int | None, left_out: bool) -> Row:
    """The figures of a table, or of the bundled one; raises UserError where nothing can be compared."""
    from scalewright.plan.fitting.runs import MEASURED, OUT_OF_MEMORY, read_table, runs_of
    from scalewright.plan.fitting.score import score as score_runs

    rows, broken = (read_table(MEASURED), []) if file is None else _read(file)
    failed = read_oom(oom) if oom else read_table(OUT_OF_MEMORY) if file is None else None
    runs = runs_of(rows)
    _check_measured(runs, file or "the bundled table", fit)
    seconds, errors = _left_out(runs) if left_out else (None, None)
    figures = score_runs(rows, failed, seconds=seconds, fit=fit)
    if broken:
        figures["refused"] = [*figures["refused"], *broken]
        figures["expressed_pct"] *= figures["rows"] / (figures["rows"] + len(broken))
        figures["rows"] += len(broken)
    if errors:
        figures["left_out"] = errors
    return figures


def _read(path: str) -> tuple[list[Row], list[dict[str, str]]]:
    """The rows of a file, and those that couldn't be read with the reason."""
    from scalewright.cli.batch import BROKEN, opened, read_rows

    with opened(path) as file:
        rows = list(read_rows(file, path, lambda text: print(text, file=sys.stderr)))
    broken = [{"id": row["id"], "error": row[BROKEN]} for row in rows if BROKEN in row]
    return [row for row in rows if BROKEN not in row], broken


def _check_measured(runs: Runs, where: str, fit: int | None) -> None:
    """Raises UserError when nothing was measured, or when too little is left beside a fit."""
    import numpy as np

    if not len(runs):
        why = f": {runs.refused[0]['error']}" if runs.refused else ""
        raise UserError(f"no row can be expressed{why}", where, "`predict --batch` says why, row by row")
    timed = int(np.isfinite(runs.seconds).sum())
    if not timed and not np.isfinite(runs.memory).any():
        how = "fill step_time_s, tokens_per_s_per_device or peak_mem_gib"
        raise UserError("no row has a measured time or memory", where, how)
    usable = int((np.isfinite(runs.seconds) & ~runs.apart & ~runs.converted).sum())
    if fit is not None and fit >= usable:
        how = f"use --fit {max(1, usable // 2)}" if usable > 1 else "give more rows"
        raise UserError(f"--fit {fit} leaves none of {usable} timed rows to compare", where, how)


def _left_out(runs: Runs) -> tuple[Any, dict[str, float]]:
    """Seconds predicted without each row's source, and the mean errors without each kind of group."""
    import numpy as np

    from scalewright.plan.fitting.fit import LEFT_OUT, left_out, mean_error

    timed = np.isfinite(runs.seconds) & ~runs.apart & ~runs.converted
    if len(set(runs.source[timed])) < 3:
        raise UserError("fewer than three sources", "--left-out", "give a table of several, with `source` filled")
    predicted = {kind: left_out(runs, kind) for kind in LEFT_OUT}
    return predicted["source"], {kind: mean_error(runs, seconds) for kind, seconds in predicted.items()}


def read_oom(path: str) -> list[dict[str, str]]:
    """The rows of a table in the columns of the bundled one of runs out of memory; raises UserError."""
    from scalewright.plan.fitting.runs import OUT_OF_MEMORY, read_table

    needed = [name for name in read_table(OUT_OF_MEMORY)[0] if name != "source_ref"]
    if not (rows := read_table(path)):
        raise UserError("the file is empty", path, "give a CSV file with a header: " + ", ".join(needed))
    missing = [name for name in needed if name not in rows[0]]
    if missing:
        what = f"the column {missing[0]} is missing"
        what += f", and so are {', '.join(missing[1:])}" if missing[1:] else ""
        raise UserError(what, path, "the columns are " + ", ".join(needed))
    numbers = [name for name in needed if name not in ("id", "outcome")]
    for line, row in enumerate(rows, 2):
        for name in numbers:
            if not _is_number(row[name]):
                raise UserError(f"{name} is {row[name]!r}", f"{path} line {line}", "give a number")
    return rows


def _is_number(text: str | None) -> bool:
    try:
        return float(text or "") >= 0
    except ValueError:
        return False

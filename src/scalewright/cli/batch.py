"""`predict --batch FILE`: rows of a table in, a JSON line a row out, some thousand rows at a time.

    CSV with a header, or JSON lines ──► rows ──► predict_rows ──► {"id": ..., "step_time_s": ..., ...}
                                          │ a row that can't be expressed
                                          └──────────────────────► {"id": ..., "error": ...}

A fault of the whole file is an error of the command; a fault of one row is that row's answer.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from scalewright.cli.output import progress
from scalewright.spec.common.untrusted import open_regular
from scalewright.spec.errors import UserError, nearest, shortened, unknown

LONGEST = 1 << 20  # characters of a line: a device has no end
CHUNK = 2000  # rows priced together
STDIN = "-"
BROKEN = "_problem"  # marks a row that couldn't be read, with the reason
Row = dict[str, Any]


def run_batch(
    path: str,
    out: TextIO,
    notify: Callable[[str], None] = lambda text: None,
    price: Callable[[list[Row]], Iterable[Row]] | None = None,
    known: list[str] | None = None,
) -> int:
    """Writes the answer to every row of a file (`-`: stdin) on `out`; returns how many there were.

    `notify` gets notes on the file as a whole; `price` answers some rows, of the columns `known`: those of training
    runs unless given. Raises UserError for a file without rows.
    """
    done, price = 0, price or answers
    with opened(path) as file:
        rows = read_rows(file, path, notify, known)
        with progress("predicting rows") as tell:
            while chunk := list(itertools.islice(rows, CHUNK)):
                for answer in price(chunk):
                    out.write(line(answer))
                out.flush()
                done += len(chunk)
                tell(done, None)
    if not done:
        raise UserError("there are no rows", path, "give a header and at least one row")
    return done


def answers(rows: list[Row]) -> Iterator[Row]:
    """Each row's answer in order; what breaks the pricing of a chunk is found by pricing it row by row."""
    from scalewright.plan.predict import predict_rows

    sound = [row for row in rows if BROKEN not in row]
    try:
        priced = iter(predict_rows(sound))
    except (ArithmeticError, ValueError, IndexError, KeyError, MemoryError):
        priced = iter([_alone(row) for row in sound])
    for row in rows:
        name = row.get("id")
        yield {"id": name, "error": row[BROKEN]} if BROKEN in row else {**next(priced), "id": name}


def _alone(row: Row) -> Row:
    from scalewright.plan.predict import predict_rows

    try:
        return predict_rows([row])[0]
    except Exception as error:  # the other rows are fine
        return {"error": f"can't be priced: {type(error).__name__}: {error}"}


def line(answer: Row) -> str:
    """An answer as one line of JSON, its id first."""
    answer = {"id": answer.pop("id"), **answer}
    try:
        return json.dumps(answer, allow_nan=False) + "\n"
    except ValueError:
        return json.dumps({"id": answer["id"], "error": "the cost is not a finite number"}) + "\n"


@contextlib.contextmanager
def opened(path: str) -> Iterator[Iterator[str]]:
    """The lines of the file, or of stdin; raises UserError when it can't be read, or has an endless line."""
    try:
        with contextlib.nullcontext(sys.stdin) if path == STDIN else _text(path) as file:
            yield _bounded(file, path)
    except UnicodeDecodeError:
        raise UserError("this is not text", path, "give a CSV file with a header, or JSON lines") from None
    except FileNotFoundError:
        folder = Path(path).parent
        near = nearest(Path(path).name, [p.name for p in folder.iterdir()]) if folder.is_dir() else []
        how = f"did you mean '{folder / near[0]}'?" if near else "check the path; `-` reads stdin"
        raise UserError("no such file", path, how) from None


def _text(path: str) -> TextIO:
    return io.TextIOWrapper(open_regular(path, stream=True), encoding="utf-8-sig", newline="")


def _bounded(file: TextIO, path: str) -> Iterator[str]:
    while text := file.readline(LONGEST):
        if len(text) == LONGEST:
            raise UserError(f"a line of more than {LONGEST:,} characters", path, "end its lines")
        yield text


def read_rows(
    file: Iterable[str], path: str, notify: Callable[[str], None], known: list[str] | None = None
) -> Iterator[Row]:
    """The rows of CSV text or of JSON lines, each with an id: its own, or its number; `known`: their columns."""
    lines, known = iter(file), known or columns()
    if not (first := next((text for text in lines if text.strip()), "")):
        raise UserError("the file is empty", path, "give a CSV file with a header, or JSON lines")
    text = itertools.chain([first], lines)
    rows: Iterator[Row]
    if first.lstrip()[0] in "{[":
        keys = [*known, BROKEN]
        rows = (_json_row(entry, keys) for entry in text if entry.strip())
    else:
        rows = _csv_rows(text, path, notify, known)
    for number, row in enumerate(rows, 1):
        name = row.get("id")
        row["id"] = str(number) if name is None or str(name).strip() == "" else str(name).strip()
        yield row


def columns() -> list[str]:
    """The columns of the bundled table of measured runs: the keys that a row may have."""
    from scalewright.plan.fitting.runs import MEASURED

    with open(MEASURED, newline="", encoding="utf-8") as file:
        return next(csv.reader(file))


def _csv_rows(text: Iterable[str], path: str, notify: Callable[[str], None], known: list[str]) -> Iterator[Row]:
    reader = csv.DictReader(text, restkey="_more")
    try:
        names = [name.strip() for name in reader.fieldnames or ()]
        reader.fieldnames = names
        _check_header(names, known, path, notify)
        for row in reader:
            if row.pop("_more", None):
                row[BROKEN] = "the row has more cells than the header: quote cells that hold a comma"
            yield row
    except csv.Error as error:
        raise UserError(f"this is not CSV: {error}", f"{path} line {reader.line_num}", "quote its cells") from None


def _check_header(names: list[str], known: list[str], path: str, notify: Callable[[str], None]) -> None:
    """Raises UserError for a header that isn't one, a misspelt column, or the same twice."""
    if not set(names) & set(known) - {"id"}:
        some = ", ".join(known[4:12])
        raise UserError("the first line is no header", path, f"name the columns, separated by commas: {some}, ...")
    if twice := next((name for name in names if name and names.count(name) > 1), None):
        raise UserError(f"the column {twice} is there twice", path, "keep one")
    strange = [name for name in names if name and name not in known]
    for name in strange:
        if _misspelt(name, known):
            raise unknown("column", name, known, path)
    if strange:
        notify(f"note: columns that say nothing to a prediction: {shortened(', '.join(strange))}")


def _misspelt(name: str, known: Iterable[str]) -> bool:
    """Whether it is so like a column that it must be meant for one."""
    import difflib

    return bool(difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.85))


def _json_row(text: str, known: list[str]) -> Row:
    """A line of JSON as a row, or as the reason why it isn't one."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        return {BROKEN: f"not JSON: {error}"}
    if not isinstance(row, dict):
        return {BROKEN: f"not an object of JSON but {type(row).__name__}: write a line for each row"}
    for key, value in row.items():
        if key not in known and _misspelt(key, known):
            return {"id": row.get("id"), BROKEN: str(unknown("column", key, known))}
        if isinstance(value, (dict, list)):
            return {"id": row.get("id"), BROKEN: f"{key} is {json.dumps(value)[:40]}: give a number or text"}
    return {key: int(value) if isinstance(value, bool) else value for key, value in row.items()}

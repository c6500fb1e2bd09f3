"""Thousands of odd moments, files, words, environments and neighbours, each done to the real commands: who holds?

    python comparisons/attempts.py --seconds 600    goes on where the last call stopped, for so long
    --class environments                            that class alone          --again    those that failed, once more
    python comparisons/attempts.py --show           the table of what was done so far

Each attempt has a class and a number, and draws what it does from these two: the same attempt on any tree. It runs
below a folder of its own, in processes of its own, within a limit that a slow machine keeps. It holds when its exit
code is one that the moment allows, an error is one line with a way out, nothing is left running, nothing is written
elsewhere, and a run that was disturbed ends, when it is started again, with the undisturbed run's bits.

What is done is in harness/attempts/; classes that a test or a dated result covers are cited with their numbers.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing.forkserver as server
import os
import random
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from harness.attempts.alone import ALONE, invented
from harness.attempts.files import damaged
from harness.attempts.moments import MOMENTS, two_at_once, while_starting
from harness.attempts.place import Place
from harness.attempts.words import ENVIRONMENTS, attack, bad_input, environment
from harness.facts import facts, load_average
from harness.result import Result, facts_text, table

# class -> (attempts of 2026-11-26 and how many held, attempts here, what does them)
CLASSES: dict[str, tuple[str, int, Any]] = {
    "TERM while workers start": ("16 / 29", 58, while_starting),
    "damaged data and run files": ("two kinds accepted silently", 160, damaged),
    "bad input": ("419 / 433", 900, bad_input),
    "environments": ("60 / 76", 3 * len(ENVIRONMENTS), environment),
    "security": ("349 / 357", 240, attack),
    "concurrency": ("11 / 16", 36, two_at_once),
    "of our own": ("new", len(MOMENTS) + len(ALONE), invented),
}
# class, how many held on 2026-11-26, what has tried it since
CITED = [
    ("random faults on layouts", "52 / 57", "172 signals at random moments (2026-11-26-moments), 100 stops of 13 "
     "launchers (2026-11-25-stops), 26 faults and more since (2026-11-28-chaos): all ended bitwise"),
    ("TERM while workers start", "16 / 29", "87 of those signals came before the first step, 48 of them to local "
     "workers or torchrun's: all left with a code that the moment allows"),
    ("checkpoint damage", "68 / 68", "1,000 damages and 1,480 ends of a save (2026-11-28-checkpoint-damage)"),
    ("bad input", "419 / 433", "35 uses of a file by verbs, each in 14 odd forms (tests/cli/test_odd_paths.py): 490"),
    ("environments", "60 / 76", "10 verbs with 8 kinds of streams (tests/cli/test_streams.py), variables of 23 "
     "starters (tests/launch/environments): 103"),
    ("security", "349 / 357", "41 words in every text of 10 launch targets, 13 in runs for each trainer "
     "(test_hostile.py), 94 changed files (tests/test_malicious.py), 39 verbs (tests/cli/test_escapes.py)"),
]  # fmt: skip
NAME = "attempts"


def main() -> None:
    """Attempts until the time is over; then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=420.0)
    parser.add_argument("--class", dest="chosen", choices=CLASSES)
    parser.add_argument("--first", type=int, default=0, help="begin with this one of the class")
    parser.add_argument("--again", action="store_true", help="those that failed")
    parser.add_argument("--number", type=int, help="this one of the class, and tell what it printed")
    parser.add_argument("--quick", action="store_true", help="two of each class")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--state", type=Path, default=Path(tempfile.gettempdir()) / "scalewright-attempts.jsonl")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    names = [options.chosen] if options.chosen else list(CLASSES)
    if not options.show:
        _preload()
        with tempfile.TemporaryDirectory(prefix="scalewright-attempts-", ignore_cleanup_errors=True) as folder:
            place = Place(Path(folder))
            for name in names:
                for number in _wanted(name, options):
                    if time.monotonic() > end:
                        break
                    row = attempt(name, number, place)
                    if options.number is None:
                        with options.state.open("a") as file:
                            file.write(json.dumps(row) + "\n")
                    if row["problem"] or options.number is not None:
                        print(json.dumps(row), flush=True)
    if options.number is None:
        write(_newest(options.state), options.out)


def _preload() -> None:
    """Commands are forked from a server that has imported what they import."""
    choose = server.set_forkserver_preload
    verbs = ("scalewright.api", "scalewright.cli", "scalewright.serve.load", "scalewright.report.page")
    server.set_forkserver_preload = lambda names: choose([*names, *verbs])  # type: ignore[assignment]


def _wanted(name: str, options: argparse.Namespace) -> list[int]:
    """The numbers of the attempts to do."""
    if options.number is not None:
        return [options.number]
    done = {number: row for (of, number), row in _newest(options.state).items() if of == name}
    if options.again:
        return [number for number, row in done.items() if row["problem"]]
    numbers = range(options.first, 2 if options.quick else CLASSES[name][1])
    return [number for number in numbers if number not in done]


def attempt(name: str, number: int, place: Place) -> dict[str, Any]:
    """One attempt: what it was, and what was wrong with its end; "" where it held."""
    folder, began = place.new(f"{name.replace(' ', '-')}-{number}"), time.monotonic()
    what, problem = "", ""
    try:
        what, problem = CLASSES[name][2](place, folder, number, random.Random(f"{name}/{number}"))
    except Exception as error:  # of the attempt itself: it proves nothing
        problem = f"no attempt: {type(error).__name__}: {error}"
    left = place.end_all()
    problem = problem or (f"left running: {left}" if left else "")
    place.remove(folder, keep=bool(problem) and "SCALEWRIGHT_KEEP" in os.environ)
    seconds = round(time.monotonic() - began, 2)
    return {"class": name, "number": number, "what": what, "problem": problem[-600:], "seconds": seconds}


def _newest(state: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """The newest outcome of each attempt; those that failed once have `failed`."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for line in state.read_text().splitlines() if state.exists() else []:
        row = json.loads(line)
        before = rows.get((row["class"], row["number"]), {})
        failed = before.get("failed") or before.get("problem", "")
        rows[row["class"], row["number"]] = {**row, "failed": failed or row["problem"]}
    return rows


def write(rows: dict[tuple[str, int], dict[str, Any]], out: Path | None) -> None:
    """The dated result."""
    result = Result(NAME, "Odd moments, files, words, environments and neighbours", facts(), out)
    result.say("Hardware and versions:", "", facts_text(result.data["facts"]))
    by_class: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows.values():
        by_class[row["class"]].append(row)
    lines = []
    for name, (before, wanted, _) in CLASSES.items():
        mine = by_class[name]
        held, first = (sum(not row[key] for row in mine) for key in ("problem", "failed"))
        lines.append([name, before, f"{first} / {len(mine)}", f"{held} / {len(mine)}", wanted])
    heads = ["class", "held on 2026-11-26", "held at first", "held now", "to be tried"]
    result.say("Tried anew here, and held at first and after mends:", "", table(heads, lines))
    result.say("Cited:", "", table(["class", "held on 2026-11-26", "done since"], [list(row) for row in CITED]))
    failed = [row for row in rows.values() if row["failed"]]
    result.put("attempts", list(rows.values()))
    cells = [
        [row["class"], row["what"][:70], _cell(row["failed"]), "no" if row["problem"] else "yes"] for row in failed
    ]
    result.say("What didn't hold at first:", "", table(["class", "attempt", "how it ended", "holds now"], cells))
    result.say(f"Load average at the end: {load_average()}")
    result.close()


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")[-160:]


if __name__ == "__main__":
    main()

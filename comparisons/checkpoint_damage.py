"""A save that is killed at each of its operations on files, and damages to a checkpoint at random: what is found.

    python comparisons/checkpoint_damage.py              some minutes on one core
    python comparisons/checkpoint_damage.py --quick      some points and damages, to see that it runs
    --damages 10000 --seed 7                             others, and more of them

Both are the tests' (tests/checkpoint/test_kills.py, damages.py): four ranks' saves under ZeRO-3 as threads, an `open`,
`write`, `fsync` and `os` that count, SIGKILL at the n-th for every n, and the same for one rank while the others go on.
A run then goes on from a whole checkpoint, the older or the new one, bit by bit, and its next save leaves nothing over.
Exit code 1 at the first that doesn't.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from harness.facts import ROOT, facts
from harness.result import Result, facts_text, table

sys.path += [str(ROOT), str(ROOT / "tests")]
from tests.checkpoint import damages, ranks, test_kills

from scalewright.checkpoint import pieces, sums

WHAT = {None: "all ranks, SIGKILL", **{rank: f"rank {rank} alone" for rank in range(ranks.WORLD)}}


def kills(root: Path, quick: bool) -> list[dict[str, Any]]:
    """Each case and who is ended: the operations of the save, and how many ended with the older or the new step."""
    rows = []
    for case, (older, step, _, beside) in test_kills.CASES.items():
        for rank, who in WHAT.items():
            done = test_kills.operations(root, case, rank)
            points = range(1, len(done) + 1, 40 if quick else 1)
            newer = sum(test_kills.end_at(root, case, rank, point) for point in points)
            what = f"step {step} where {' and '.join(map(str, older))} is{', beside training' if beside else ''}"
            row = {"saved": what, "ended": who, "operations": dict(Counter(done)), "points": len(points)}
            rows.append({**row, "older": len(points) - newer, "newer": newer})
    return rows


def damage(root: Path, count: int, seed: int) -> dict[str, dict[str, Any]]:
    """By kind: how many, and what the last of them was said to be."""
    kinds: dict[str, dict[str, Any]] = {}
    with mock.patch.object(pieces, "PIECE", damages.SMALL_PIECE), mock.patch.object(sums, "PIECE", damages.SMALL_PIECE):
        for step in (8, 12):
            ranks.save(root, step)
        for number in range(seed, seed + count):
            kind, problem = damages.try_damage(root, number, test_kills.ALONE)
            row = kinds.setdefault(kind, {"tried": 0, "found": 0})
            row["tried"] += 1
            row["found"] += bool(problem)
            row["example"] = problem
    return kinds


def main() -> None:
    """Runs both and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="some points and damages")
    parser.add_argument("--damages", type=int, default=1000, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    parser.add_argument("--out", type=Path, default=None, help="folder of the result")
    options = parser.parse_args()
    torch.set_num_threads(1)
    title = "A save killed at every operation, and a checkpoint damaged at random"
    result = Result("checkpoint-damage", title, facts(), options.out)
    result.say(facts_text(result.data["facts"]))
    with tempfile.TemporaryDirectory() as folder:
        rows = kills(Path(folder), options.quick)
    result.put("kills", rows)
    total = sum(row["points"] for row in rows)
    cells = [[row["saved"], row["ended"], row["points"], row["older"], row["newer"]] for row in rows]
    result.say(
        f"## Kills\n\n{total:,} ends of a save, at each operation once: after each a run went on from a whole"
        " checkpoint, bit by bit the older one or the new, and the next save left nothing over.\n",
        table(["", "ended", "points", "went on from the older", "from the new"], cells),
    )
    with tempfile.TemporaryDirectory() as folder:
        kinds = damage(Path(folder), options.damages // (20 if options.quick else 1), options.seed)
    result.put("damages", kinds)
    lines = {getattr(damages, kind).__doc__.strip().rstrip("."): row for kind, row in kinds.items()}
    tried = sum(row["tried"] for row in kinds.values())
    cells = [[what, row["tried"], row["found"], row["example"] or "(as it was)"] for what, row in lines.items()]
    result.say(
        f"## Damages\n\n{tried:,} damages to the newest of two checkpoints of four ranks (pieces of"
        f" {damages.SMALL_PIECE:,} bytes). Found are all but extra files, which change nothing; the file is named,"
        " and of changed bytes the piece; a run goes on from the other one, and readers of the damaged are stopped.\n",
        table(["damage", "tried", "found", "the last one, as it is told"], cells),
    )
    result.close()


if __name__ == "__main__":
    main()

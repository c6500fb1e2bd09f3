"""Whether other trainers' own parsers take what `emit` writes for random runs.

    python comparisons/their_parsers.py megatron --count 200 [--seed 1] [--software-version 0.2]    a minute

The trainer must be importable here (`NEEDS` of its file in harness/parsers tells how); no GPU is asked for.
A refusal is listed with the parser's own words and the layout that it was about.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

from harness.facts import facts
from harness.result import Result, facts_text, table

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))  # random runs are the tests'
JUDGES = ("megatron", "megatron-bridge", "torchtitan")


def main() -> None:
    """Emits, asks, and writes the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("trainer", choices=JUDGES)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--software-version", help="of the trainer, where its format changed")
    parser.add_argument("--out", type=Path, help="where the result goes")
    options = parser.parse_args()
    judge = import_module(f"harness.parsers.{options.trainer.replace('-', '_')}")
    version = judge.prepare()
    name = f"their-parsers-{options.trainer}" + (
        f"-{options.software_version}" if options.software_version else ""
    )
    result = Result(name, f"{judge.TITLE}'s own parser on emitted runs", facts(), options.out)
    result.data |= {"trainer": options.trainer, "version": version, "seed": options.seed}
    result.say(facts_text(result.data["facts"]), f"- {judge.TITLE} {version}")
    rows = asked(judge, options)
    result.put("runs", rows)
    summary(judge, rows, result)
    result.close()


def asked(judge: Any, options: argparse.Namespace) -> list[dict[str, Any]]:
    """What became of each run: accepted, refused with the parser's words, or not written at all."""
    from emit.random_runs import random_runs
    from scalewright.emit.trainers import emit
    from scalewright.spec.errors import UserError

    rows: list[dict[str, Any]] = []
    for index, settings in enumerate(random_runs(options.count, seed=options.seed)):
        settings.version = options.software_version
        row: dict[str, Any] = {"run": index, "layout": settings.layout.stated(), "model": settings.model.name}
        try:
            emitted = emit(options.trainer, settings)
        except UserError as error:
            rows.append({**row, "outcome": "not written", "reason": str(error)})
            continue
        with tempfile.TemporaryDirectory() as folder:
            for file, text in emitted.files.items():
                (Path(folder) / file).write_text(text, encoding="utf-8")
            reason = judge.refusal(Path(folder), emitted, settings)
        changed = [item.key for item in (*emitted.dropped, *emitted.changed)]
        rows.append(
            {**row, "outcome": "refused" if reason else "accepted", "reason": reason, "changed": changed}
        )
    return rows


def summary(judge: Any, rows: list[dict[str, Any]], result: Result) -> None:
    """Counts, every reason once, and what such an answer is worth."""
    counts = Counter(row["outcome"] for row in rows)
    result.say(
        f"Of {len(rows)} random runs: {counts['accepted']} accepted, {counts['refused']} refused, "
        f"{counts['not written']} not written, since a size of theirs has no word there."
    )
    reasons = Counter((row["outcome"], row["reason"]) for row in rows if row["outcome"] != "accepted")
    if reasons:
        heads = ["outcome", "runs", "reason"]
        result.say(table(heads, [[kind, number, why] for (kind, why), number in reasons.most_common()]))
    result.put("reasons", [{"outcome": kind, "reason": why, "runs": n} for (kind, why), n in reasons.items()])
    result.say("**It checks**: " + "; ".join(judge.CHECKS) + ".")
    result.say("**It doesn't check**: " + "; ".join(judge.UNCHECKED) + ".")


if __name__ == "__main__":
    main()

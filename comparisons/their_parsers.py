"""Whether other trainers' own parsers take what `emit` writes: for random runs, and for every preset.

    python comparisons/their_parsers.py megatron --count 200 [--seed 1] [--software-version 0.2]    a minute

The trainer must be importable here (`NEEDS` of its file in harness/parsers tells how); no GPU is asked for.
A refusal is listed with the parser's own words. As a control, one run is shown to it as of 7 devices.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from harness.facts import facts
from harness.result import Result, facts_text, table

from scalewright.emit.emitted import Emitted
from scalewright.emit.settings import Settings, settings_of
from scalewright.emit.write import emit, save
from scalewright.spec.errors import UserError
from scalewright.spec.presets import model_presets
from scalewright.spec.run import RunSpec

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))  # random runs are the tests'
SHOWN = 12  # reasons of runs that weren't written, in the page; the JSON has all
MOST = 20  # runs that are drawn for each that the trainer can run
HELPERS = ("__init__", "stand_ins", "words")
JUDGES = sorted(
    path.stem.replace("_", "-")
    for path in (ROOT / "comparisons" / "harness" / "parsers").glob("*.py")
    if path.stem not in HELPERS
)


def main() -> None:
    """Emits, asks, and writes the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("trainer", choices=JUDGES)
    parser.add_argument("--count", type=int, default=50, help="random runs that the trainer can run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--software-version", help="of the trainer, where its format changed")
    parser.add_argument("--no-presets", action="store_true", help="random runs alone")
    parser.add_argument("--out", type=Path, help="where the result goes")
    options = parser.parse_args()
    judge = import_module(f"harness.parsers.{options.trainer.replace('-', '_')}")
    version = judge.prepare()
    more = f"-{options.software_version}" if options.software_version else ""
    name = f"their-parsers-{options.trainer}{more}"
    result = Result(name, f"{judge.TITLE}'s own parser on emitted runs", facts(), options.out)
    result.data |= {"trainer": options.trainer, "version": version, "seed": options.seed}
    result.say(facts_text(result.data["facts"]), f"- {judge.TITLE} {version}")
    from emit.random_runs import random_runs

    drawn = random_runs(MOST * options.count, seed=options.seed)
    written = ask(judge, "random runs", drawn, options, result, options.count)
    if not options.no_presets:
        written += ask(judge, "presets", presets(), options, result)
    if written:
        settings, emitted = written[0]
        said = control_of(judge, emitted, settings)
        result.put("control", said)
        said = said or "nothing: it doesn't look at the number of devices"
        result.say(f"Control, a run of {settings.layout.devices} devices on 7: {said}.")
    result.say("**It checks**: " + "; ".join(judge.CHECKS) + ".")
    result.say("**It doesn't check**: " + "; ".join(judge.UNCHECKED) + ".")
    result.close()


def presets() -> Iterator[Settings]:
    """A run of each preset on 8 devices."""
    for name, model in model_presets().items():
        layout = {"devices": 8, "zero_stage": 3, "global_batch": 8, "precision": "bf16"}
        data = {"train": "corpus", "seq_len": min(2048, model.context)}
        keys = {"name": name, "model": model.dump(), "layout": layout, "data": data}
        yield settings_of(RunSpec.parse(keys))


def ask(
    judge: Any,
    what: str,
    runs: Iterator[Settings],
    options: argparse.Namespace,
    result: Result,
    enough: int | None = None,
) -> list[tuple[Settings, Emitted]]:
    """What became of each run, until `enough` were written: accepted, refused, or not written at all."""
    rows: list[dict[str, Any]] = []
    unwritten: Counter[str] = Counter()  # reasons
    written: list[tuple[Settings, Emitted]] = []  # the first alone: the control's
    for index, settings in enumerate(runs):
        settings.version = options.software_version
        try:
            emitted = emit(options.trainer, settings)
        except UserError as error:
            unwritten[str(error)] += 1
            continue
        written = written or [(settings, emitted)]
        reason = shown(judge, emitted, settings)
        changed = [item.key for item in (*emitted.dropped, *emitted.changed)]
        row = {"run": index, "model": settings.model.name, "changed": changed, "refusal": reason}
        rows.append(row | ({"layout": settings.layout.stated()} if reason else {}))
        if len(rows) == enough:
            break
    result.put(what, {"runs": rows, "not_written": dict(unwritten.most_common())})
    refusals = Counter(row["refusal"] for row in rows if row["refusal"])
    whole = sum(not any(key.startswith("model.") for key in row["changed"]) for row in rows)
    result.say(
        f"Of {len(rows)} {what}: {len(rows) - refusals.total()} accepted, {refusals.total()} refused; "
        f"{whole} of them lose no part of their model. "
        f"{unwritten.total()} more weren't written, since it can't run them."
    )
    reasons = [["refused", number, why] for why, number in refusals.most_common()]
    reasons += [["not written", number, why] for why, number in unwritten.most_common(SHOWN)]
    if reasons:
        result.say(table(["outcome", "runs", "reason"], reasons))
    return written


def shown(judge: Any, emitted: Emitted, settings: Settings) -> str:
    """The parser's words on emitted files; "" where it accepts them."""
    with tempfile.TemporaryDirectory() as folder:
        save(emitted.files, Path(folder))
        return str(judge.refusal(Path(folder), emitted, settings))


def control_of(judge: Any, emitted: Emitted, settings: Settings) -> str:
    """What it says of a run whose sizes don't make the world."""
    other = Settings(settings.run, settings.model)
    other.layout = settings.layout.model_copy(update={"devices": 7})
    return shown(judge, emitted, other)


if __name__ == "__main__":
    main()

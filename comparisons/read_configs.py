"""Other trainers' real configurations: read, predicted, and beaten by a plan.

    python comparisons/read_configs.py FOLDER [--cluster dgx-h100]      some minutes

FOLDER holds a folder for each trainer. The files are other people's and aren't part of this repository. Each
is read as `scalewright read` does; where it has a model and a layout, that is priced on the cluster as its
trainer runs it, and the same run is planned for the same devices.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from harness.facts import facts
from harness.result import Result, facts_text, table

import scalewright as sw
from scalewright.emit.question import Question, question
from scalewright.emit.read import read_file
from scalewright.spec.errors import UserError
from scalewright.spec.text.words import short_time

FORMS = (".yaml", ".yml", ".json", ".toml", ".sh", ".py", ".txt", ".log")


def main() -> None:
    """Reads everything in the folder and writes the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cluster", default="dgx-h100")
    parser.add_argument("--out", type=Path, help="where the result goes")
    options = parser.parse_args()
    result = Result("read-configs", "Configurations of other trainers", facts(), options.out)
    result.say(facts_text(result.data["facts"]))
    rows = []
    for path in sorted(options.folder.rglob("*")):
        if path.suffix in FORMS and path.is_file():
            rows.append({"file": str(path.relative_to(options.folder)), **tried(path, options.cluster)})
            result.put("files", rows)
            print(rows[-1]["file"], rows[-1].get("error", ""), flush=True)
    show(result, rows, options.cluster)
    result.close()


def tried(path: Path, cluster: str) -> dict[str, Any]:
    """What became of one file; `error` where a step refused it."""
    try:
        reading = read_file(path)
    except UserError as error:
        return {"error": str(error)}
    row: dict[str, Any] = {
        "trainer": reading.trainer,
        "unread": [item.key for item in reading.unread],
        "assumed": list(reading.assumed),
        "model": "model" in reading.run,
    }
    try:
        return row | priced(question(str(path)), cluster)
    except UserError as error:
        return row | {"error": str(error)}


def priced(asked: Question, cluster: str) -> dict[str, Any]:
    """Its own cost, the best single change, and the plan's best for the same devices and batch."""
    sizes = {"devices": asked.layout.devices, "global_batch": asked.layout.global_batch}
    plan = sw.plan(
        asked.model,
        cluster,
        seq_len=asked.seq_len,
        framework=asked.trainer,
        yours=asked.layout,
        top=1,
        **sizes,
    )
    yours = plan["yours"]
    return {
        "layout": asked.layout.stated(),
        "step_time_s": yours["step_time_s"]["p50"],
        "fits": yours["fits"],
        "change": yours["changes"][0] if yours["changes"] else None,
        "best_gain_pct": yours["gain_pct"],
        "best": plan["best"][0]["layout"],
    }


def show(result: Result, rows: list[dict[str, Any]], cluster: str) -> None:
    """A row a file, and what wasn't understood most often."""
    cells = []
    for row in rows:
        if "error" in row:
            cells.append(
                [
                    f"`{row['file']}`",
                    row.get("trainer", "-"),
                    len(row.get("unread", ())),
                    row["error"],
                    "",
                    "",
                ]
            )
            continue
        change = row["change"]
        what = f"{change['change']}: +{change['gain_pct']:.0f}%" if change else "none"
        step = short_time(row["step_time_s"]) + ("" if row["fits"] else ", does not fit")
        cells.append(
            [
                f"`{row['file']}`",
                row["trainer"],
                len(row["unread"]),
                step,
                what,
                f"+{row['best_gain_pct']:.0f}%",
            ]
        )
    read = sum("trainer" in row for row in rows)
    result.say(
        f"{read} of {len(rows)} files are read; {sum('step_time_s' in row for row in rows)} are priced and "
        f"planned on {cluster}, as their own trainers run them. The JSON names keys that weren't understood.",
        "",
        table(["file", "trainer", "unread keys", "step", "best single change", "the plan's best"], cells),
    )
    counts = Counter(key for row in rows for key in row.get("unread", ()))
    result.say("Unread most often: " + ", ".join(f"`{key}` {n}" for key, n in counts.most_common(20)) + ".")


if __name__ == "__main__":
    main()

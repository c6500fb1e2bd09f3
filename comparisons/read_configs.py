"""Other trainers' real configurations: read, predicted, and beaten by a plan.

    python comparisons/read_configs.py FOLDER [--cluster dgx-h100]      some minutes

FOLDER holds a folder for each trainer. The files are other people's and aren't part of this repository. Each
is read as `scalewright read` does, priced on the cluster as its trainer runs it, and the same run is planned
for the same devices. Files that name no model (DeepSpeed's, Accelerate's) get one; those that name no number
of devices get the first of 8, 64 and 512 that the model fits on.
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
from scalewright.spec.common.formatting import short_time
from scalewright.spec.errors import UserError

MODEL = "llama-3.2-1b"  # where a file has none
DEVICES = (8, 64, 512)
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
        return {"error": str(error).replace(str(path), path.name)}
    row: dict[str, Any] = {
        "trainer": reading.trainer,
        "unread": [item.key for item in reading.unread],
        "assumed": list(reading.assumed),
        "model": "model" in reading.run,
    }
    try:
        asked = question(str(path), None if row["model"] else MODEL)
        return row | priced_where_it_fits(asked, cluster)
    except UserError as error:
        return row | {"error": str(error).replace(str(path), path.name)}


def priced_where_it_fits(asked: Question, cluster: str) -> dict[str, Any]:
    """The price on its own devices; on more where their number was assumed and nothing fits."""
    if "devices" not in asked.guessed:
        return priced(asked, cluster)
    problem = UserError("its layout fits no number of devices that was tried")
    for devices in DEVICES:
        times = devices / asked.layout.devices
        if times >= 1 and times % 1 == 0:
            try:
                return priced(asked, cluster, devices, int(asked.layout.global_batch * times))
            except UserError as error:
                problem = error
    raise problem


def priced(asked: Question, cluster: str, devices: int | None = None, batch: int | None = None) -> dict[str, Any]:
    """Its own cost, the best single change, the plan's best, and whether its file was edited for that."""
    plan = sw.plan(asked, cluster, devices=devices, global_batch=batch, top=1, emit=True)
    yours, emitted = plan["yours"], plan["emitted"]
    return {
        "layout": yours["layout"],
        "step_time_s": yours["step_time_s"]["p50"],
        "fits": yours["fits"],
        "change": yours["changes"][0] if yours["changes"] else None,
        "best_gain_pct": yours["gain_pct"],
        "best": plan["best"][0]["layout"],
        "edited": "refused" if "refused" in emitted else "in place" if emitted["in_place"] else "whole",
        "refused": emitted.get("refused"),
    }


def show(result: Result, rows: list[dict[str, Any]], cluster: str) -> None:
    """A row a file that was priced, a line a file that wasn't, and what wasn't understood most often."""
    cells = []
    for row in rows:
        if "error" not in row:
            change = row["change"]
            what = f"{change['change']}: {change['gain_pct']:+.0f}%" if change else "none"
            step = short_time(row["step_time_s"]) + ("" if row["fits"] else ", does not fit")
            best = f"{row['best_gain_pct']:+.0f}%"
            name = f"`{row['file']}`" + ("" if row["model"] else " *")
            cells.append([name, row["trainer"], len(row["unread"]), step, what, best, row["edited"]])
    read = sum("trainer" in row for row in rows)
    result.say(
        f"{read} of {len(rows)} files are read; {len(cells)} are priced and planned on {cluster}, as their "
        f"own trainers run them (* with {MODEL}, as they name no model). A layout that does not fit may be "
        "faster than the best one that does. The JSON names keys that weren't understood.",
        "",
        table(["file", "trainer", "unread keys", "step", "best single change", "the plan's best", "its file"], cells),
    )
    edited = Counter(row["edited"] for row in rows if "edited" in row)
    result.say("Its file for that layout: " + ", ".join(f"{word} {n}" for word, n in edited.items()) + ".")
    for row in rows:
        if "error" in row:
            result.say(f"- `{row['file']}`: {row['error']}")
    counts = Counter(key for row in rows for key in row.get("unread", ()))
    result.say("Unread most often: " + ", ".join(f"`{key}` {n}" for key, n in counts.most_common(20)) + ".")


if __name__ == "__main__":
    main()

"""docs/gpu.md from committed GPU results: `python comparisons/gpu_page.py [DIR]`.

DIR is the folder of a check that was run (gpu_check.py --out DIR): its JSON becomes a dated result first.
Without a result of a real GPU the page names what would be measured.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from harness.gpu.parts import PARTS
from harness.gpu.report import page
from harness.result import RESULTS, table

DOCS = RESULTS.parents[1] / "docs" / "gpu.md"
TOP = "<!-- made by comparisons/gpu_page.py from comparisons/results/*-gpu-check-*.json: don't edit -->\n"


def main() -> None:
    """Takes a new result over, and writes the page."""
    for name in sys.argv[1:]:
        keep(json.loads((Path(name) / "gpu-check.json").read_text(encoding="utf-8")))
    DOCS.write_text(text(results()), encoding="utf-8")
    print(f"wrote {DOCS}")


def keep(state: dict[str, Any]) -> None:
    """Stores a result by its date and device; refuses one that measured nothing."""
    visit = state["visits"][-1]
    if visit["quick"] or "gpu" not in visit:
        sys.exit("error: a quick run on a CPU is no GPU result")
    device = visit["gpu"]["name"].lower().replace(" ", "-").replace("/", "-")
    path = RESULTS / f"{visit['started'][:10]}-gpu-check-{device}.json"
    path.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(page(state) + "\n", encoding="utf-8")


def results() -> list[tuple[str, dict[str, Any]]]:
    """Committed results, the newest first."""
    paths = sorted(RESULTS.glob("*-gpu-check-*.json"), reverse=True)
    return [(path.stem, json.loads(path.read_text(encoding="utf-8"))) for path in paths]


def text(found: list[tuple[str, dict[str, Any]]]) -> str:
    """The page: the newest result of each device, or what waits."""
    lines = [TOP, "# On a GPU", "", "[All pages](README.md)", ""]
    if not found:
        lines += [
            "No part of this has run on a GPU yet: no machine with one was at hand. This page will hold",
            "what [the GPU check](gpu-checks.md#run-this-first) measures, with its hardware and versions.",
            "",
            table(["part", "what it answers"], [[part.name, part.answers] for part in PARTS]),
            "",
        ]
        return "\n".join(lines)
    for device in dict.fromkeys(state["visits"][-1]["gpu"]["name"] for _, state in found):
        stem, state = next(pair for pair in found if pair[1]["visits"][-1]["gpu"]["name"] == device)
        body = page(state).replace("\n## ", "\n### ").removeprefix(f"# {state['title']}\n")
        lines += [f"## {device}", "", f"[{stem}](../comparisons/results/{stem}.md)", body, ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()

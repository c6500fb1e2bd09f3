"""The course's first three tracks as notebooks: python .ci/notebooks.py writes docs/course/*.ipynb from the pages.

## 3. A step, its text and exercise    markdown
```sh                                  a cell with `!` before each command
<details> ... (`roofline.x(1)`)        a cell to answer in, then the answer and a cell that computes its numbers
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"
TRACKS = ("deepspeed", "ultra-scale", "scale-your-model")
PIECES = re.compile(
    r"(?:<!-- run -->\n)?```sh\n(?P<shell>.*?)```\n"
    r"|<details markdown=\"1\"><summary>Answer</summary>\n(?P<answer>.*?)</details>\n"
    r"|(?P<step>(?=^## ))",
    re.MULTILINE | re.DOTALL,
)
COMPUTED = re.compile(r"\*\*[\d.,e%-]+\*\*[^`*]{0,120}\(`([^`]+)`")


def notebook(page: str, imports: str) -> dict[str, Any]:
    """A track's page as a notebook; `imports` is the first code cell."""
    cells = list(
        _cells(
            re.sub(
                r"^\[All pages\].*\n\n| \[As a notebook\]\(.*?\)\.| *<!-- published: .*? -->",
                "",
                page,
                flags=re.MULTILINE,
            )
        )
    )
    cells.insert(1, ("code", imports))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": [_cell(number, kind, text) for number, (kind, text) in enumerate(cells)],
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4, "nbformat_minor": 5,
    }  # fmt: skip


def _cells(page: str) -> Iterator[tuple[str, str]]:
    """Kind and text of each cell, in the page's order."""
    at = 0
    for match in PIECES.finditer(page):
        yield from (("markdown", text) for text in [page[at : match.start()].strip()] if text)
        at = match.end()
        if match["shell"]:
            yield "code", re.sub(r"^(?=\w)", "!", match["shell"].strip(), flags=re.MULTILINE)
        if match["answer"]:
            yield "code", "# your answer\n"
            yield "markdown", f"<details><summary>Answer</summary>\n{match['answer']}</details>"
            yield "code", ",\n".join(COMPUTED.findall(match["answer"]))
    yield "markdown", page[at:].strip()


def _cell(number: int, kind: str, text: str) -> dict[str, Any]:
    code = {"execution_count": None, "outputs": []} if kind == "code" else {}
    source = text.splitlines(keepends=True)
    return {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": source, **code}


def written(track: str) -> str:
    """The text of a track's notebook."""
    shown = re.search(r"```python\n(.*?)```", (DOCS / "course.md").read_text(encoding="utf-8"), re.DOTALL)
    assert shown
    made = notebook((DOCS / "course" / f"{track}.md").read_text(encoding="utf-8"), shown[1].rpartition("\n\n")[0])
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name in TRACKS:
        (DOCS / "course" / f"{name}.ipynb").write_text(written(name), encoding="utf-8")

"""The words of words.yaml: what users call a command or an option that is named otherwise here, or isn't there.

    scalewright chaos          ->  there is none; `accept run.yaml` kills a rank, resumes and compares
    scalewright plan --days 3  ->  days ... come out of --tokens 15T and --price 2.5

Spelling alone finds such a word's neighbour by chance: `--days` is near `--data`.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from scalewright.spec.errors import nearest

FILE = Path(__file__).parent / "words.yaml"
LIKE = 0.65  # of two names' letters in common order: `trian` and `train` have 0.8, `days` and `data` 0.5


def table(kind: str) -> dict[str, Any]:
    """The words for `commands` or `options`, each by itself."""
    from scalewright.spec.base import read_yaml

    return {word: entry for words, entry in read_yaml(FILE)[kind].items() for word in words.split()}


def like_option(name: str, options: Collection[str]) -> str | None:
    """Which of a command's options an unknown one means, by the table, else by spelling; None where none is near."""
    word = name.lstrip("-").replace("_", "-").lower()
    entry = table("options").get(word, [])
    if isinstance(entry, dict):
        return str(entry["how"]) if entry["needs"] in options else None
    plain = {option.lstrip("-"): option for option in options}
    near = [option for option in entry if option.split()[0] in options]
    near = near or [plain[key] for key in nearest(word, plain, 2, LIKE)]
    return "did you mean " + " or ".join(near) + "?" if near else None

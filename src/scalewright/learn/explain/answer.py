"""The keys of `explain TERM --json` and of `explain --list --json`.

{term, title, text, formula, value, source, command, see, read, theme, aliases, picture}
value: {number, unit, of, function, run}      {terms: [{term, title, theme, aliases}, ...]}
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scalewright.learn.explain.entries import find, places


def explain(name: str, run: str | Path | None = None) -> dict[str, Any]:
    """What a term means, with its number for a run. Raises UserError for an unknown term, or a source of no run."""
    from scalewright.learn.explain.compute import compute, draw
    from scalewright.learn.explain.find import find_subject

    place = find(name)
    entry, subject = place.entry(), find_subject(run)
    value = compute(entry.number, subject)
    return {
        "term": entry.term, "title": entry.title, "text": entry.text.strip(), "formula": entry.formula.strip() or None,
        "value": vars(value), "source": entry.source or None, "command": entry.command, "see": list(entry.see),
        "read": entry.read, "theme": place.theme, "aliases": list(entry.aliases),
        "picture": draw(entry.picture, subject) if entry.picture else None,
    }  # fmt: skip


def listing() -> dict[str, Any]:
    """Every term by theme, with what it is in a line."""
    rows = [
        {"term": place.term, "title": place.title, "theme": place.theme, "aliases": list(place.aliases)}
        for place in places()
    ]
    return {"terms": rows}

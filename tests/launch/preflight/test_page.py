"""The tables of docs/preflight-rules.md are those of the rules.

PYTHONPATH=src:tests python -m launch.preflight.test_page > tables.md     prints them, for the page
"""

from __future__ import annotations

import re
from pathlib import Path

from scalewright.launch.preflight.rules import RULES, SUBJECTS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "preflight-rules.md"
COLUMNS = ("rule", "severity", "when", "looks for", "source")


def tables() -> str:
    """A table for each subject, a rule a row."""
    parts = []
    for subject in SUBJECTS:
        rows = [
            (
                f"`{rule.name}`",
                rule.severity,
                ", ".join(rule.at) + (f"; with {', '.join(rule.needs)}" if rule.needs else ""),
                rule.title,
                rule.source,
            )
            for rule in subject.rules
        ]
        lines = [COLUMNS, tuple("---" for _ in COLUMNS), *rows]
        parts += [f"## {subject.name}\n", *("| " + " | ".join(cells) + " |" for cells in lines), ""]
    return "\n".join(parts)


def test_the_page_has_the_rules() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition("\n## ")[2].strip() == tables().partition("## ")[2].strip()
    assert f"{len(RULES)} rules" in text
    overview = PAGE.with_name("preflight.md").read_text(encoding="utf-8")
    assert f"the {len(RULES)} rules" in overview
    linked = re.findall(r"^\| \[(\w+)\]\(preflight-rules", overview, re.MULTILINE)
    assert [subject.name for subject in SUBJECTS] == linked


def test_sources_that_are_pages_exist() -> None:
    for rule in RULES:
        for word in rule.source.replace(":", " ").replace(";", " ").split():
            if word.startswith("docs/"):
                assert (PAGE.parent.parent / word).is_file(), rule.name


if __name__ == "__main__":
    print(tables(), end="")

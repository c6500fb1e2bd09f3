"""One term for one thing: no page, table or message uses a word that the glossary replaces by another."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHOWN = [
    *sorted((ROOT / "src/scalewright/report").rglob("*.py")),
    *sorted((ROOT / "src/scalewright/report").rglob("*.html")),
    *sorted((ROOT / "src/scalewright/report").rglob("*.js")),
    *sorted((ROOT / "src/scalewright/cli").rglob("*.py")),
]
BANNED = {  # what is shown -> the term
    r"tensor parallelism, exposed": "tensor parallel, exposed",
    r"context parallelism, exposed": "context parallel, exposed",
    r"exchange with experts": "expert parallel",
    r"gradients and parameters, exposed": "data parallel, exposed",
    r"pipeline's fill and drain": "pipeline bubble",
    r"in \{copies\} copies|\bcopies\b\"": "replicas",
    r">waits<|\"waits\"": "idle, bubble",
    r"recomputing|recompute time": "recomputation",
}


@pytest.mark.parametrize("pattern", BANNED)
def test_no_banned_word_is_shown(pattern: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in SHOWN
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(pattern, line)
    ]
    assert not found, f"the term is: {BANNED[pattern]}"


def test_the_glossary_is_in_order_and_has_each_term_once() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = [row.split("|")[1].strip() for row in text.splitlines() if row.startswith("| ")][1:]
    terms = [term for term in terms if not set(term) <= {"-", " "}]
    assert len(terms) > 25
    assert len(set(terms)) == len(terms)
    assert [term.lower() for term in terms] == sorted(term.lower() for term in terms)


def test_pictures_are_small_and_all_shown() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")])
    pictures = sorted((ROOT / "docs" / "pictures").iterdir())
    assert pictures
    for picture in pictures:
        assert picture.stat().st_size < 300_000, picture.name
        assert picture.name in pages

"""Reading a page as a browser would: its tags, its data, and what it would load."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import html5lib

LOADS = {"src", "srcset", "data", "poster", "action", "formaction", "background", "manifest", "ping"}


@dataclass
class Seen:
    """What is in a page."""

    text: str
    tags: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    @property
    def body(self) -> str:
        """All text that a reader sees, with single spaces."""
        return re.sub(r"\s+", " ", " ".join(self.words))

    @property
    def charts(self) -> dict[str, dict[str, Any]]:
        """The data behind each chart."""
        found = re.search(r'<script type="application/json" id="charts">(.*?)</script>', self.text, re.DOTALL)
        assert found
        return {chart["id"]: chart for chart in json.loads(found[1])}

    def having(self, tag: str, **attributes: str) -> list[dict[str, str]]:
        """The attributes of every such tag."""
        return [
            found
            for name, found in self.tags
            if name == tag and all(found.get(key.rstrip("_")) == value for key, value in attributes.items())
        ]


class _Reader(HTMLParser):
    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.seen = seen
        self.hidden = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.tags.append((tag, {key: value or "" for key, value in attrs}))
        self.hidden = tag in ("style", "script")

    def handle_endtag(self, tag: str) -> None:
        self.hidden = False

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.seen.words.append(data)


def read_page(path: Path) -> Seen:
    """The page, after checking that it is valid HTML and loads nothing."""
    seen = Seen(path.read_text(encoding="utf-8"))
    html5lib.HTMLParser(strict=True).parse(seen.text)  # raises at the first error
    _Reader(seen).feed(seen.text)
    for tag, attributes in seen.tags:
        assert tag not in {"link", "iframe", "object", "embed", "base", "img", "audio", "video"}, tag
        assert not LOADS & set(attributes), (tag, attributes)
        for key in ("href", "xlink:href"):
            assert attributes.get(key, "#").startswith("#"), attributes
    code = "".join(re.findall(r"<(?:style|script)>(.*?)</(?:style|script)>", seen.text, re.DOTALL))
    assert not re.search(r"https?://|@import|url\(|fetch\(|XMLHttpRequest|WebSocket|import\(", code)
    (policy,) = seen.having("meta", **{"http-equiv": "Content-Security-Policy"})
    assert policy["content"].startswith("default-src 'none'")
    return seen

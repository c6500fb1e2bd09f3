"""Numbers as text for people."""

from __future__ import annotations

import math
import re

import html5lib
import pytest
import yaml
from markdown_it import MarkdownIt

from scalewright.spec.common.formatting import (
    commented,
    count,
    counted,
    decimal,
    duration,
    gib,
    markdown_text,
    printable,
    share,
    short_time,
)


@pytest.mark.parametrize(
    ("number", "things", "text"),
    [
        (1, "devices", "1 device"),
        (2, "devices", "2 devices"),
        (1, "CPU processes", "1 CPU process"),
        (1, "micro-batches", "1 micro-batch"),
        (1, "more entries", "1 more entry"),
        (1, "rows are in metrics.jsonl", "1 row is in metrics.jsonl"),
        (1, "nodes of 8 ranks aren't", "1 node of 8 ranks isn't"),
        (1, "steps have a loss", "1 step has a loss"),
        (0, "steps have a loss", "0 steps have a loss"),
        (1, "files with bytes that aren't UTF-8", "1 file with bytes that aren't UTF-8"),
        (1234, "tokens", "1,234 tokens"),
    ],
)
def test_a_number_agrees_with_its_noun_and_verb(number: int, things: str, text: str) -> None:
    assert counted(number, things) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (50.7, "50.7 GiB"),
        (0.5, "0.50 GiB"),
        (0.02, "20.5 MiB"),
        (0.0, "0.00 GiB"),
        (1e-6, "0.00102 MiB"),
        (None, "– GiB"),
    ],
)
def test_a_small_size_is_not_nothing(value: float | None, text: str) -> None:
    assert gib(value) == text


def test_words() -> None:
    assert [count(v) for v in (0, 7, 999.4, 12_345, 999_600, 3.2e9, None)] == [
        "0", "7", "999", "12.3k", "1M", "3.2B", "–",
    ]  # fmt: skip
    assert [duration(v) for v in (0, 42.4, 3723, 200_000, None, -1)] == ["0:00", "0:42", "1:02:03", "2 d 7 h", "–", "–"]
    assert [short_time(v) for v in (8.5e-4, 9.999e-4, 0.0123, 0.9999, 4.2, 564.3, 1234.5, None)] == [
        "850 µs",
        "1 ms",
        "12.3 ms",
        "1 s",
        "4.2 s",
        "564 s",
        "1,234 s",
        "–",
    ]
    assert [decimal(v, 3) for v in (0.0, 0.8421, 12.345, 3e-4, 2.5e7, None, math.nan)] == [
        "0.00", "0.84", "12.3", "3.00e-4", "2.50e7", "–", "nan",
    ]  # fmt: skip
    assert share(0.3412) == "34.1%"


@pytest.mark.parametrize(("value", "text"), [(2e-3, "0.00200"), (0.0123, "0.0123"), (0.75, "0.75"), (4e-5, "4.00e-5")])
def test_small_decimals_keep_their_digits(value, text):
    assert decimal(value, 3) == text


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\x85", "\u2028", "\u2029", "\x0c", "\0", "\x1b[2J"])
def test_no_line_ends_its_comment(end):
    text = commented(f"of x{end}init: elsewhere", "another")
    assert yaml.safe_load(text) is None
    assert [line[:2] for line in text.splitlines()] == ["# ", "# "]


@pytest.mark.parametrize(
    "text",
    ["<img src=x>", "&lt;b&gt;", "![a](http://b)", "[a]: b", "HTTPS://b", "wWw.b.c", "a|b", "`a`", "a\n# b",
     "~~~", "**a**", "\x1b[2J"],
)  # fmt: skip
def test_a_text_stays_text_in_markdown(text):
    escaped = markdown_text(text)
    assert not re.search(r"[^\\]://|www\.", escaped, re.IGNORECASE)  # of which GitHub makes links
    parser = MarkdownIt("commonmark").enable("strikethrough")
    page = html5lib.parse(parser.render(f"- {escaped}"), namespaceHTMLElements=False)
    assert {element.tag for element in page.iter()} == {"html", "head", "body", "ul", "li"}
    assert "".join(page.itertext()).strip() == printable(" ".join(text.split()))

"""Values put into a YAML, JSON or TOML document where they stand: its comments, order and spaces stay.

{a: {b: 4}}, {"a.b": 8}   ──►   {a: {b: 8}}         a key that isn't there yet is added to its section
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

# A line of TOML: a section, or a key with its value before a comment.
LINE = re.compile(r"(?m)^[ \t]*(?:\[([\w.]+)\]|([\w-]+)[ \t]*=[ \t]*(\"[^\"]*\"|[^#\n]*?)[ \t]*(?:#.*)?$)")


def put_values(text: str, suffix: str, changed: Mapping[str, Any]) -> str | None:
    """The text with dotted keys set; None where one can't be (no such section, a key to remove)."""
    try:
        places = dict(_toml(text) if suffix == ".toml" else _nodes(yaml.compose(text, yaml.SafeLoader)))
    except yaml.YAMLError:
        return None
    edits: list[tuple[int, int, str]] = []
    for key, value in changed.items():
        if key in places:
            edits.append((*places[key], _written(value, suffix)))
            continue
        if value is None:
            continue
        section, _, name = key.rpartition(".")
        beside = next((span for other, span in places.items() if other.rpartition(".")[0] == section), None)
        if beside is None:
            return None
        edits.append(_added(text, suffix, beside, name, _written(value, suffix)))
    for start, end, words in sorted(edits, reverse=True):
        text = text[:start] + words + text[end:]
    return text


def _added(text: str, suffix: str, beside: tuple[int, int], name: str, value: str) -> tuple[int, int, str]:
    """A new key, before a sibling of its section: on a line of its own, or in the sibling's braces."""
    line = text.rfind("\n", 0, beside[0]) + 1
    head = text[line : beside[0]]
    before = re.match(r"\s*(?:\"[^\"]*\"|[\w-]+)\s*[:=]", head)
    quoted = f'"{name}"' if suffix == ".json" else name
    sign = " = " if suffix == ".toml" else ": "
    if before is None or "{" in head:
        at = beside[0] - len(re.search(r"(?:\"[^\"]*\"|[\w-]+)\s*[:=]\s*$", text[: beside[0]])[0])  # type: ignore[index]
        return at, at, f"{quoted}{sign}{value}, "
    indent = head[: len(head) - len(head.lstrip())]
    return line, line, f"{indent}{quoted}{sign}{value}{',' if suffix == '.json' else ''}\n"


def _nodes(node: yaml.Node | None, prefix: str = "") -> Iterator[tuple[str, tuple[int, int]]]:
    """Dotted keys, and from where to where their values stand."""
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        name = f"{prefix}{key.value}"
        if isinstance(value, yaml.MappingNode):
            yield from _nodes(value, f"{name}.")
        else:
            yield name, (value.start_mark.index, value.end_mark.index)


def _toml(text: str) -> Iterator[tuple[str, tuple[int, int]]]:
    section = ""
    for match in LINE.finditer(text):
        if match[1]:
            section = f"{match[1]}."
        else:
            yield f"{section}{match[2]}", match.span(3)


def _written(value: Any, suffix: str) -> str:
    if suffix in (".json", ".toml"):
        return json.dumps(value)
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6).strip()
    return text.removesuffix("...").strip()

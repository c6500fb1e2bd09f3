"""Literals put into a Python configuration where they stand; nothing of it is run.

ParallelismConfig(tensor_parallel_degree=2, ...)      the keyword of a call of that name
cfg.model.tensor_model_parallel_size = 2              an assignment to an attribute of that name
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

Keyword = tuple[str, str]  # of a call: its name's last part (or its class's, before .Config), and the keyword


def changed_literals(before: str, after: str) -> dict[Keyword, str | None] | None:
    """Keywords whose literals differ, with their new text; None in all where something else differs, too."""
    old, new = (_keywords(text) for text in (before, after))
    changed: dict[Keyword, str | None] = {}
    for key in [*old, *(key for key in new if key not in old)]:
        if old.get(key) == new.get(key):
            continue
        for text in (old.get(key), new.get(key)):
            if text is not None and not _is_literal(text):
                return None
        changed[key] = new.get(key)
    return changed


def put_literals(text: str, changed: dict[Keyword, str | None] | None) -> str | None:
    """The text with keywords set, added or taken out; None where a call isn't there, or is there twice."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    if changed is None:
        return None
    starts = [0]
    for row in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(row.encode()))
    raw = text.encode()  # positions of ast are in bytes
    edits: list[tuple[int, int, bytes]] = []

    def span(node: ast.expr | ast.keyword) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    for (name, keyword), value in changed.items():
        calls = [node for node in _calls(tree) if _name(node) == name]
        places = [item for call in calls for item in call.keywords if item.arg == keyword]
        values: list[ast.expr | ast.keyword] = [*places] if value is None else [item.value for item in places]
        values += _assigned(tree, keyword) if value is not None else []
        if len(values) == 1 and value is not None:
            edits.append((*span(values[0]), value.encode()))
        elif len(values) == 1:
            edits.append((*_with_its_comma(raw, *span(values[0])), b""))
        elif values or len(calls) != 1 or not calls[0].keywords:
            return None
        elif value is not None:
            start, _ = span(calls[0].keywords[0])
            line = raw.rfind(b"\n", 0, start) + 1
            gap = b"\n" + raw[line:start] if not raw[line:start].strip() else b" "
            edits.append((start, start, f"{keyword}={value},".encode() + gap))
    for start, end, words in sorted(edits, reverse=True):
        raw = raw[:start] + words + raw[end:]
    return raw.decode()


def _with_its_comma(raw: bytes, start: int, end: int) -> tuple[int, int]:
    """A keyword with the comma after it (before it, where it is the last), and its line where it is alone."""
    after = re.compile(rb"\s*,").match(raw, end)
    if after is None:
        before = re.compile(rb",\s*$").search(raw, 0, start)
        return (before.start() if before else start), end
    line, close = raw.rfind(b"\n", 0, start) + 1, raw.find(b"\n", after.end())
    if not raw[line:start].strip() and not raw[after.end() : close].strip():
        return line, close + 1
    return start, after.end() + (raw[after.end() : after.end() + 1] == b" ")


def _keywords(text: str) -> dict[Keyword, str]:
    """Keywords of all calls, with their values' text."""
    return {
        (_name(call), item.arg): ast.unparse(item.value)
        for call in _calls(ast.parse(text))
        for item in call.keywords
        if item.arg and not any(isinstance(node, ast.Call) for node in ast.walk(item.value))
    }


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _name(call: ast.Call) -> str:
    parts = ast.unparse(call.func).split(".")
    return parts[-2] if parts[-1] == "Config" and len(parts) > 1 else parts[-1]


def _assigned(tree: ast.AST, attribute: str) -> list[ast.expr]:
    """What statements set an attribute of that name to."""
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Attribute)
        and node.targets[0].attr == attribute
    ]


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except ValueError:
        return False
    return True

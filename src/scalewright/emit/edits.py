"""Values put into a YAML, JSON or TOML document where they stand: its comments, order and spaces stay.

{a: {b: 4}}, {"a.b": 8}   ──►   {a: {b: 8}}         a key that isn't there yet is added to its section

Likewise literals into a Python configuration; nothing of it is run:

ParallelismConfig(tensor_parallel_degree=2, ...)      the keyword of a call of that name
cfg.model.tensor_model_parallel_size = 2              an assignment to an attribute of that name
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

import yaml

Keyword = tuple[str, str]  # of a call: its name's last part (or its class's, before .Config), and the keyword


def changed_literals(before: str, after: str) -> dict[Keyword, str | None] | None:
    """Keywords whose literals differ, with their new text; None in all where something else differs, too."""
    old, new = (_keywords(text) for text in (before, after))
    changed: dict[Keyword, str | None] = {}
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) == new.get(key):
            continue
        if not all(text is None or _is_literal(text) for text in (old.get(key), new.get(key))):
            return None
        changed[key] = new.get(key)
    return changed


def put_literals(text: str, changed: dict[Keyword, str | None] | None) -> str | None:
    """The text with keywords set, added or taken out; None where a call isn't there, or is there twice."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    if changed is None or "\r" in text.replace("\r\n", ""):
        return None
    raw = text.encode()  # positions of ast are in bytes, of lines that end in line feeds alone
    starts = [0, *accumulate(len(row) + 1 for row in raw.split(b"\n"))]
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
    assigned = [(node.targets[0], node.value) for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    return [value for target, value in assigned if isinstance(target, ast.Attribute) and target.attr == attribute]


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except ValueError:
        return False
    return True


# A line of TOML: a section, or a key with its value before a comment.
LINE = re.compile(r"(?m)^[ \t]*(?:\[([\w.]+)\]|([\w-]+)[ \t]*=[ \t]*(\"[^\"]*\"|[^#\n]*?)[ \t]*(?:#.*)?$)")

Edit = tuple[int, int, str]  # from, to, and what comes there
SIGNS = {".toml": " = ", ".json": ": ", ".yaml": ": ", ".yml": ": "}


def put_values(text: str, suffix: str, changed: Mapping[str, Any]) -> Iterator[str]:
    """Texts with dotted keys set (None: taken out), the one that keeps most of the file first."""
    if "\r\n" in text:
        for lines in put_values(text.replace("\r\n", "\n"), suffix, changed):
            yield lines.replace("\n", "\r\n")
        return
    if (edited := _edited(text, suffix, changed)) is not None:
        yield edited
    if suffix == ".json":
        yield _written_anew(text, changed)


def _edited(text: str, suffix: str, changed: Mapping[str, Any]) -> str | None:
    """The text with values replaced where they stand; None where a section can't be found in it."""
    places = _places(text, suffix)
    edits: list[Edit] = []
    sections: dict[str, list[str]] = {}  # that the file doesn't have yet
    for key, value in changed.items():
        section, _, name = key.rpartition(".")
        if key in places:
            edits.append(_replaced(text, places[key], value, suffix))
        elif value is not None:
            beside = next((span for other, span in places.items() if other.rpartition(".")[0] == section), None)
            if beside is not None:
                added = _added(text, suffix, beside, name, _written(value, suffix))
                if added is None:
                    return None
                edits.append(added)
            else:
                sections.setdefault(section, []).append(f"{name}{SIGNS[suffix]}{_written(value, suffix)}")
    if sections and (suffix == ".json" or any("." in section or not section for section in sections)):
        return None
    for start, end, words in sorted(edits, reverse=True):
        text = text[:start] + words + text[end:]
    head, indent = ("[{}]", "") if suffix == ".toml" else ("{}:", "  ")
    for section, lines in sections.items():
        text = "\n".join([text.rstrip("\n"), head.format(section), *(indent + line for line in lines), ""])
    return text


def _replaced(text: str, place: tuple[int, int], value: Any, suffix: str) -> Edit:
    """A value in another's place; a key that is taken out goes with its line where it has one."""
    first, last = text.rfind("\n", 0, place[0]) + 1, text.find("\n", place[1]) + 1
    alone = re.fullmatch(r"[ \t]*[\w-]+[ \t]*[:=][ \t]*", text[first : place[0]])
    if value is None and alone and last and not text[place[1] : last].split("#")[0].strip():
        return first, last, ""
    return (*place, _written(value, suffix))


def _written_anew(text: str, changed: Mapping[str, Any]) -> str:
    """JSON with its keys in their order, indented as its first line is."""
    document = json.loads(text)
    for key, value in changed.items():
        *sections, name = key.split(".")
        node = document
        for section in sections:
            if not isinstance(node.get(section), dict):  # such as the "auto", or the true, of a short form
                node[section] = {}
            node = node[section]
        if value is None:
            node.pop(name, None)
        else:
            node[name] = value
    indent = re.search(r"\n([ \t]+)\S", text)
    return json.dumps(document, indent=indent[1] if indent else 2) + "\n" * text.endswith("\n")


def _added(text: str, suffix: str, beside: tuple[int, int], name: str, value: str) -> Edit | None:
    """A new key, before a sibling of its section: on a line of its own, or in the sibling's braces."""
    line = text.rfind("\n", 0, beside[0]) + 1
    head = text[line : beside[0]]
    before = re.match(r"\s*(?:\"[^\"]*\"|[\w-]+)\s*[:=]", head)
    quoted = f'"{name}"' if suffix == ".json" else name
    if before is None or "{" in head:
        key = re.search(r"(?:\"[^\"]*\"|'[^']*'|[\w-]+)\s*[:=]\s*$", text[: beside[0]])
        if key is None:
            return None
        at = key.start()
        return at, at, f"{quoted}{SIGNS[suffix]}{value}, "
    indent = head[: len(head) - len(head.lstrip())]
    return line, line, f"{indent}{quoted}{SIGNS[suffix]}{value}{',' if suffix == '.json' else ''}\n"


def named(text: str, suffix: str, literals: Mapping[Keyword, str | None] | None) -> dict[str, object]:
    """Keywords of a Python recipe as the dotted keys that the document has, or would have, for them."""
    keys: dict[str, object] = {}
    for (_, name), literal in (literals or {}).items():
        there = [key for key in _places(text, suffix) if key.rpartition(".")[2] == name]
        keys[there[0] if len(there) == 1 else name] = None if literal is None else ast.literal_eval(literal)
    return keys


def _places(text: str, suffix: str) -> dict[str, tuple[int, int]]:
    """Dotted keys and where their values stand; none of a text that isn't such a document."""
    try:
        return dict(_toml(text) if suffix == ".toml" else _nodes(yaml.compose(text, yaml.SafeLoader)))
    except yaml.YAMLError:
        return {}


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

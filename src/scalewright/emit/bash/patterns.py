"""Braces, separators, and patterns such as `*.json`, in time that grows with the lengths alone.

case $MODEL in *70b*) ...        ${FILE%.json}        ${NAME//-/_}        [[ $X == llama* ]]

x{1..3}{a,b}     x1a x1b x2a ...        IFS=,  a,b,,c     a b "" c

A pattern is a list of items; from a set of places in a text, an item leads to a set of places. Backslashes quote.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

from scalewright.emit.bash.tree import Node
from scalewright.emit.bash.unknown import Ended

Items: TypeAlias = Sequence[tuple[str, Any]]  # ("char", "a"), ("any", None), ("set", compiled), ("*(", [items, items])
LONGEST, MOST = 2_000, 10_000  # characters of a text and of a pattern; words of braces
SPACES = " \t\n"
GLOB = re.compile(r"(?<!\\)(?:\\\\)*[*?[]")  # of a pattern for files
CLASSES = {"alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "space": r"\s", "upper": "A-Z", "lower": "a-z"}
ITEM = re.compile(
    r"(?P<group>[@?*+!]\()|\\(?P<char>.)|(?P<set>\[[!^]?\]?(?:\[:\w+:\]|[^\]])*\])|(?P<any>\?)|(?P<all>\*)|(?P<other>.)",
    re.DOTALL,
)


@lru_cache(256)
def compiled(pattern: str) -> Items:
    """The items of a pattern."""
    groups: list[tuple[str, list[list[tuple[str, Any]]]]] = [("", [[]])]
    for match in ITEM.finditer(pattern):
        kind, text = match.lastgroup or "", match[match.lastgroup or 0]
        if kind == "group":
            groups.append((text, [[]]))
        elif text == "|" and kind == "other" and len(groups) > 1:
            groups[-1][1].append([])
        elif text == ")" and kind == "other" and len(groups) > 1:
            group = groups.pop()
            groups[-1][1][-1].append(group)
        else:
            item = ("char", text) if kind == "other" else (kind, _set(text) if kind == "set" else text)
            groups[-1][1][-1].append(item)
    return groups[0][1][0] if len(groups) == 1 else [("char", char) for char in pattern]


def _set(text: str) -> re.Pattern[str] | None:
    inner = re.sub(r"\[:(\w+):\]", lambda match: CLASSES.get(match[1], ""), text[1:-1])
    negated = inner[:1] in ("!", "^")
    inner = re.sub(r"([\[\]])", r"\\\1", inner[1:] if negated else inner)
    try:
        return re.compile(f"[{'^' if negated else ''}{inner}]", re.DOTALL)
    except re.error:
        return None


def ends(items: Items, text: str, places: Iterable[int]) -> set[int]:
    """Where matches of all items that begin at these places may end."""
    current = set(places)
    for kind, what in items:
        if kind == "all":
            current = set(range(min(current), len(text) + 1)) if current else current
        elif kind in ("char", "any", "set"):
            current = {
                place + 1 for place in current if place < len(text) and (
                    kind == "any" or (text[place] == what if kind == "char" else what and what.match(text[place]))
                )
            }  # fmt: skip
        elif kind == "!(":
            without = {place: {each for items in what for each in ends(items, text, [place])} for place in current}
            current = {end for place in current for end in range(place, len(text) + 1) if end not in without[place]}
        else:
            reached, after = set(current) if kind in ("*(", "?(") else set(), current
            while after := {each for items in what for each in ends(items, text, after)} - reached:
                reached |= after
                if kind not in ("*(", "+("):
                    break
            current = reached
        if not current:
            break
    return current


def _checked(text: str, pattern: str) -> Items:
    groups = len(re.findall(r"[@?*+!]\(", pattern))
    if max(len(text), len(pattern)) > (LONGEST // 10 if groups else LONGEST) or groups > 4 or pattern.count("!(") > 1:
        raise Ended("a pattern is too long to be followed")
    return compiled(pattern)


def matches(text: str, pattern: str) -> bool:
    """Whether a pattern is the whole text's."""
    return len(text) in ends(_checked(text, pattern), text, [0])


def removed(text: str, pattern: str, sign: str) -> str:
    """`${text#pattern}`, `##`, `%`, `%%`: the shortest or longest match at an end is taken away."""
    items, shortest = _checked(text, pattern), len(sign) == 1
    if sign.startswith("#"):
        places = ends(items, text, [0]) or {0}
        return text[min(places) if shortest else max(places) :]
    starts = reversed(range(len(text) + 1)) if shortest else range(len(text) + 1)
    return text[: next((start for start in starts if len(text) in ends(items, text, [start])), len(text))]


def replaced(text: str, pattern: str, word: str, everywhere: bool) -> str:
    """`${text/pattern/word}`; `//` everywhere; `/#` and `/%` at the beginning and the end alone."""
    anchor = pattern[:1] if not everywhere and pattern[:1] in ("#", "%") else ""
    items, result, place = _checked(text, pattern[len(anchor) :]), "", 0
    while place <= len(text) and (text or anchor):
        longest = max(ends(items, text, [place]), default=-1)
        if longest >= place + (not anchor) and (anchor != "%" or longest == len(text)):
            result, place = result + word, longest
            if not everywhere:
                break
        elif anchor == "#":
            break
        else:
            result, place = result + text[place : place + 1], place + 1
    return result + text[place:]


def cut(text: str, separators: str, most: int = 0) -> list[str]:
    """A text cut at IFS: texts at even places, the separators between them; at most so many cuts, or any."""
    spaces = re.escape("".join(char for char in separators if char in SPACES)) or "^\\w\\W"
    others = re.escape("".join(char for char in separators if char not in SPACES))
    if not separators:
        return [text]
    return re.split(
        f"([{spaces}]*[{others}][{spaces}]*|[{spaces}]+)" if others else f"([{spaces}]+)", text, maxsplit=most
    )


def braces(parts: Sequence[Node]) -> list[list[Node]]:
    """`a{1..3}` and `{x,y}b` of a word's parts, which come before all else: the parts of each word."""
    if not any(part["Type"] == "Lit" and "{" in part["Value"] for part in parts):
        return [list(parts)]
    items: list[str | Node] = []
    for part in parts:
        items += re.findall(r"\\.|.", part["Value"], re.DOTALL) if part["Type"] == "Lit" else [part]
    return [_joined(word) for word in _braces(items)]


def _joined(items: Sequence[str | Node]) -> list[Node]:
    """Characters as literals; those behind a variable without braces are a part of its name: `{$A,b}c`."""
    parts: list[Node] = []
    for item in items:
        last: Node = parts[-1] if parts else {"Type": ""}
        if isinstance(item, str) and last["Type"] == "Lit":
            parts[-1] = {**last, "Value": last["Value"] + item}
        elif last.get("Short") and re.fullmatch(r"[A-Za-z_]\w*", f"{last['Param']['Value']}{item}"):
            parts[-1] = {**last, "Param": {**last["Param"], "Value": f"{last['Param']['Value']}{item}"}}
        else:
            parts.append({"Type": "Lit", "Value": item} if isinstance(item, str) else item)
    return parts


def _braces(items: list[str | Node]) -> list[list[str | Node]]:
    depth, start = 0, 0
    commas: list[int] = []
    for place, item in enumerate(items):
        if item == "{":
            start, commas = (start, commas) if depth else (place, [])
            depth += 1
        elif item == "," and depth == 1:
            commas.append(place)
        elif item == "}" and depth:
            depth -= 1
            if depth == 0:
                edges = [start, *commas, place]
                inner = [items[before + 1 : after] for before, after in pairwise(edges)]
                middles = inner if commas else _sequence(inner[0])
                if middles is None:
                    middles = [["{", *word, "}"] for word in _braces(inner[0])]
                ends = _braces(items[place + 1 :])
                begun = [word for middle in middles for word in (_braces(middle) if commas else [middle])]
                if len(begun) * len(ends) > MOST:
                    raise Ended(f"braces give more than {MOST:,} words")
                return [[*items[:start], *word, *end] for word in begun for end in ends]
    return [items]


def _sequence(items: list[str | Node]) -> list[list[str | Node]] | None:
    """`1..3`, `a..e..2`, `01..10`."""
    text = "".join(item if isinstance(item, str) else "\0" for item in items)
    match = re.fullmatch(r"(?:(-?\d{1,18})\.\.(-?\d{1,18})|([A-Za-z])\.\.([A-Za-z]))(?:\.\.(-?\d{1,18}))?", text)
    if match is None:
        return None
    first, last = (ord(match[3]), ord(match[4])) if match[3] else (int(match[1]), int(match[2]))
    step = abs(int(match[5] or 1)) or 1
    if abs(last - first) // step >= MOST:
        raise Ended(f"braces give more than {MOST:,} words")
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    padded = not match[3] and any(re.match(r"-?0\d", text) for text in (match[1], match[2]))
    width = max(len(match[1]), len(match[2])) if padded else 0
    return [[chr(number) if match[3] else str(number).zfill(width)] for number in numbers]

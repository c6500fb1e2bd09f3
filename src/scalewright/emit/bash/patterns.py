"""Bash's patterns: `*.json`, `[0-9]?`, `@(a|b)`, as regular expressions.

case $MODEL in *70b*) ...        ${FILE%.json}        ${NAME//-/_}        [[ $X == llama* ]]
"""

from __future__ import annotations

import re
from functools import cache

GROUPS = {"@(": "(?:", "?(": "(?:", "*(": "(?:", "+(": "(?:", "!(": "(?!"}
ENDS = {"@(": ")", "?(": ")?", "*(": ")*", "+(": ")+", "!(": r")[^/]*"}
CLASSES = {"alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "space": r"\s", "upper": "A-Z", "lower": "a-z"}


@cache
def expression(pattern: str, lazy: bool = False) -> str:
    """A pattern as a regular expression; `lazy`: `*` takes as little as it can."""
    result, index, open_ = "", 0, []
    while index < len(pattern):
        char, two = pattern[index], pattern[index : index + 2]
        if two in GROUPS:
            result, index = result + GROUPS[two], index + 2
            open_.append(two)
            continue
        if char == "\\" and index + 1 < len(pattern):
            result, index = result + re.escape(pattern[index + 1]), index + 2
            continue
        if char == "[" and (match := re.match(r"\[[!^]?\]?(?:\[:\w+:\]|[^\]])*\]", pattern[index:])):
            result, index = result + _set(match[0]), index + len(match[0])
            continue
        if char == ")" and open_:
            result += ENDS[open_.pop()]
        elif char == "|" and open_:
            result += "|"
        else:
            result += {"*": ".*?" if lazy else ".*", "?": "."}.get(char) or re.escape(char)
        index += 1
    return result


def _set(text: str) -> str:
    inner = re.sub(r"\[:(\w+):\]", lambda match: CLASSES.get(match[1], ""), text[1:-1])
    negated = inner[:1] in ("!", "^")
    inner = (inner[1:] if negated else inner).replace("\\", "\\\\")
    return f"[{'^' if negated else ''}{inner.replace('[', chr(92) + '[')}]"


def matches(text: str, pattern: str) -> bool:
    """Whether a pattern is the whole text's."""
    return re.fullmatch(expression(pattern), text, re.DOTALL) is not None


def removed(text: str, pattern: str, sign: str) -> str:
    """`${text#pattern}`, `##`, `%`, `%%`: the shortest or longest match at an end is taken away."""
    ends = range(len(text) + 1)
    if sign.startswith("#"):
        for end in ends if sign == "#" else reversed(ends):
            if matches(text[:end], pattern):
                return text[end:]
        return text
    for start in reversed(ends) if sign == "%" else ends:
        if matches(text[start:], pattern):
            return text[:start]
    return text


def replaced(text: str, pattern: str, word: str, everywhere: bool) -> str:
    """`${text/pattern/word}`; `//` everywhere; `/#` and `/%` at the beginning and the end alone."""
    anchor = pattern[:1] if not everywhere and pattern[:1] in ("#", "%") else ""
    inner = expression(pattern[1:] if anchor else pattern)
    sought = f"^(?:{inner})" if anchor == "#" else f"(?:{inner})$" if anchor == "%" else inner
    return re.sub(sought, lambda _: word, text, count=0 if everywhere else 1, flags=re.DOTALL) if inner else text

"""Whether `[ ... ]`, `test ...` and `[[ ... ]]` hold: True, False, or None where that can't be known.

[ -z "$X" ]     [ "$N" -gt 8 -a "$M" = 70b ]     [[ $M == *70b* && ! $X =~ ^[0-9]+$ ]]

Of files only those are known that the script wrote itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from scalewright.emit.bash import arithmetic
from scalewright.emit.bash.patterns import matches
from scalewright.emit.bash.state import Array, State
from scalewright.emit.bash.tree import Node
from scalewright.emit.bash.unknown import MARK, known
from scalewright.emit.bash.words import Words

NUMBERS = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}
FILES = ("-e", "-f", "-d", "-r", "-w", "-x", "-s", "-L", "-h")


def holds(words: Sequence[str], state: State) -> bool | None:
    """`[ words ]`: `!`, `-a`, `-o` and brackets, as POSIX has them."""
    words = list(words)
    if "-o" in words[1:-1]:
        cut = words.index("-o", 1)
        return either(holds(words[:cut], state), holds(words[cut + 1 :], state))
    if "-a" in words[1:-1]:
        cut = words.index("-a", 1)
        return both(holds(words[:cut], state), holds(words[cut + 1 :], state))
    if words[:1] == ["!"] and len(words) > 1:
        return negated(holds(words[1:], state))
    if words[:1] == ["("] and words[-1:] == [")"]:
        return holds(words[1:-1], state)
    if len(words) == 3:
        return compared(words[0], words[1], words[2], pattern=False)
    if len(words) == 2:
        return single(words[0], words[1], state)
    return bool(words and words[0]) if len(words) < 2 else None


def single(sign: str, text: str, state: State) -> bool | None:
    """A test of one text."""
    if sign in ("-z", "-n"):
        empty = None if MARK.fullmatch(text) else not text
        return empty if sign == "-z" else negated(empty)
    if sign in FILES and known(text) and state.path(text) in state.files:
        return sign not in ("-d", "-L", "-h", "-x")
    return None


def compared(x: str, sign: str, y: str, pattern: bool) -> bool | None:
    """A test of two texts or numbers; `pattern`: y is one."""
    if sign in NUMBERS:
        numbers = [arithmetic.calculated(text) if known(text) else None for text in (x, y)]
        return None if None in numbers else bool(arithmetic.BINARY[NUMBERS[sign]](numbers[0] or 0, numbers[1] or 0))
    if not known(x, y):
        return None
    if sign in ("=", "==", "!="):
        same = matches(x, y) if pattern else x == y
        return bool(same == (sign != "!="))
    return {"<": x < y, ">": x > y}.get(sign)


def holds_in_brackets(node: Node, words: Words, state: State) -> bool | None:
    """`[[ ... ]]`."""
    kind = node["Type"]
    if kind == "ParenTest":
        return holds_in_brackets(node["X"], words, state)
    if kind == "Word":
        return negated(single("-z", words.text(node), state))
    if kind == "UnaryTest":
        if node["Op"] == "!":
            return negated(holds_in_brackets(node["X"], words, state))
        if node["Op"] == "-v":
            return words.state.scalar(words.text(node["X"])) is not None
        return single(str(node["Op"]), words.text(node["X"]), state)
    sign = node["Op"]
    if sign in ("&&", "||"):
        first = holds_in_brackets(node["X"], words, state)
        if first is (sign == "||"):
            return bool(first)
        second = holds_in_brackets(node["Y"], words, state)
        return both(first, second) if sign == "&&" else either(first, second)
    x = words.text(node["X"])
    if sign == "=~":
        return _finds(x, node["Y"], words)
    if sign in NUMBERS:
        numbers = [arithmetic.value(side, words) for side in (node["X"], node["Y"])]
        return None if None in numbers else bool(arithmetic.BINARY[NUMBERS[sign]](numbers[0] or 0, numbers[1] or 0))
    return compared(x, sign, words.pattern(node["Y"]), pattern=True)


def _finds(text: str, word: Node, words: Words) -> bool | None:
    """`=~`: the word is a regular expression, and what it matches becomes BASH_REMATCH."""
    sought = words.pattern(word)
    if not known(text, sought):
        return None
    for name, inner in {"digit": r"\d", "alpha": "a-zA-Z", "alnum": "a-zA-Z0-9", "space": r"\s"}.items():
        sought = sought.replace(f"[:{name}:]", inner)
    try:
        match = re.search(sought, text)
    except re.error:
        return None
    if match:
        groups: Array = dict(enumerate([match[0], *(group or "" for group in match.groups())]))
        words.state.variables["BASH_REMATCH"] = groups
    return match is not None


def negated(status: bool | None) -> bool | None:
    return None if status is None else not status


def both(x: bool | None, y: bool | None) -> bool | None:
    return False if x is False or y is False else None if x is None or y is None else True


def either(x: bool | None, y: bool | None) -> bool | None:
    return True if x is True or y is True else None if x is None or y is None else False

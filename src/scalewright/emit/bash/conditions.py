"""Whether `[ ... ]`, `test ...` and `[[ ... ]]` hold: True, False, or None where that can't be known.

[ -z "$X" ]     [ "$N" -gt 8 -a "$M" = 70b ]     [[ $M == *70b* && ! $X =~ ^[0-9]+$ ]]

Of files only those are known that the script wrote itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from scalewright.emit.bash import arithmetic
from scalewright.emit.bash.patterns import CLASSES, matches
from scalewright.emit.bash.tree import Node
from scalewright.emit.bash.unknown import MARK, known
from scalewright.emit.bash.words import ALWAYS_SET, ARGUMENT, OUTER, OUTSIDE, Words

NUMBERS = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}
FILES = ("-e", "-f", "-r", "-w", "-s", "-d", "-x", "-L", "-h")  # the last four aren't of a file that was written
MOST = 10**8  # steps of a regular expression, at the worst


def holds(texts: Sequence[str], words: Words) -> bool | None:
    """`[ texts ]`: `!`, `-a`, `-o` and brackets, as POSIX has them."""
    if len(texts) == 3 and (texts[1] in NUMBERS or texts[1] in ("=", "==", "!=", "<", ">")):
        return compared(texts[0], texts[1], texts[2], words)
    for sign, joined in (("-o", either), ("-a", both)):
        if sign in texts[1:-1]:
            cut = texts.index(sign, 1)
            return joined(holds(texts[:cut], words), holds(texts[cut + 1 :], words))
    if texts[:1] == ["!"] and len(texts) > 1:
        return negated(holds(texts[1:], words))
    if texts[:1] == ["("] and texts[-1:] == [")"]:
        return holds(texts[1:-1], words)
    if len(texts) == 2:
        return single(texts[0], texts[1], words)
    return negated(single("-z", "".join(texts), words)) if len(texts) < 2 else None


def single(sign: str, text: str, words: Words) -> bool | None:
    """A test of one text."""
    if sign in ("-z", "-n"):
        empty = is_empty(text, words)
        return empty if sign == "-z" else negated(empty)
    if not known(text):
        return None
    if sign in ("-v", "-R"):
        return words.number(text) is not None if "[" in text else words.state.scalar(text) is not None
    if sign in FILES and words.state.path(text) in words.state.files:
        return sign in FILES[:5]
    return None


def is_empty(text: str, words: Words) -> bool | None:
    """Whether a text is; `X=$2` or `X=$SIZE` is where it is asked for that, as in `${2:-8}`."""
    if not MARK.fullmatch(text):
        return not text
    (mark,), may = words.marks.of([text]), words.empty_outside and words.empty_arguments
    name = mark.text.strip('"${}')
    empty = may and mark.why in (ARGUMENT, OUTER) and not OUTSIDE.fullmatch(name)
    words.assumed += [name] if empty else []
    return False if ALWAYS_SET.fullmatch(name) else True if empty else None


def compared(x: str, sign: str, y: str, words: Words, pattern: bool = False) -> bool | None:
    """A test of two texts or numbers; `pattern`: y is one."""
    if sign in NUMBERS:
        a, b = arithmetic.value(x, words), arithmetic.value(y, words)
        return None if a is None or b is None else bool(arithmetic.BINARY[NUMBERS[sign]](a, b))
    if sign in ("=", "==", "!=") and "" in (x, y):
        empty = is_empty(x + y, words)
        return empty if sign != "!=" else negated(empty)
    if not known(x, y):
        return None
    if sign in ("=", "==", "!="):
        return (matches(x, y) if pattern else x == y) == (sign != "!=")
    return {"<": x < y, ">": x > y}.get(sign)


def holds_in_brackets(node: Node, words: Words) -> bool | None:
    """`[[ ... ]]`."""
    kind, sign = node["Type"], node.get("Op")
    if kind == "ParenTest":
        return holds_in_brackets(node["X"], words)
    if kind == "Word":
        return negated(single("-z", words.text(node), words))
    if kind == "UnaryTest":
        if sign == "!":
            return negated(holds_in_brackets(node["X"], words))
        return single(str(sign), words.text(node["X"]), words)
    if sign in ("&&", "||"):
        first = holds_in_brackets(node["X"], words)
        if first is not None and first is (sign == "||"):
            return first
        return (both if sign == "&&" else either)(first, holds_in_brackets(node["Y"], words))
    x = words.text(node["X"])
    if sign == "=~":
        return _finds(x, words.pattern(node["Y"]), words)
    is_number = sign in NUMBERS
    return compared(x, str(sign), words.text(node["Y"]) if is_number else words.pattern(node["Y"]), words, pattern=True)


def _finds(text: str, sought: str, words: Words) -> bool | None:
    """`=~`: a regular expression, and what it matches becomes BASH_REMATCH.

    One that could take longer than its text allows isn't tried: a repeated group that repeats or chooses within it.
    """
    words.state.variables["BASH_REMATCH"] = {0: words.marks.make("${BASH_REMATCH[@]}", "what matched isn't known", 0)}
    repeats = len(re.findall(r"[*+{]", sought))
    nested = re.search(r"\([^)]*[*+?{|(][^)]*\)+[*+{]", sought)
    if not known(text, sought) or nested or (len(text) + 1) ** (repeats + 1) > MOST:
        return None
    for name, inner in CLASSES.items():
        sought = sought.replace(f"[:{name}:]", inner)
    try:
        match = re.search(sought, text, re.DOTALL)
    except (re.error, OverflowError, RecursionError):
        return None
    groups = match.groups() if match else ()
    words.state.variables["BASH_REMATCH"] = dict(
        enumerate(group or "" for group in ([match[0], *groups] if match else []))
    )
    return match is not None


def negated(status: bool | None) -> bool | None:
    return None if status is None else not status


def both(x: bool | None, y: bool | None) -> bool | None:
    return False if x is False or y is False else None if x is None or y is None else True


def either(x: bool | None, y: bool | None) -> bool | None:
    return negated(both(negated(x), negated(y)))

"""Bash's arithmetic: 64-bit integers, C's operators, variables by name without `$`.

X * 8 / 3      text, its $-expansions put in ──► value; null where a variable can't be known, or bash would stop
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Protocol

from scalewright.emit.bash.unknown import MARK

LARGEST = 1 << 63
DEEPEST, LONGEST = 12, 10_000  # variables within variables, each of them an expression; characters
TOKEN = re.compile(
    rf"\s*(?:(?P<number>\d+#[\w@]+|0[xX][\da-fA-F]+|\d+)|(?P<mark>{MARK.pattern})|(?P<name>[A-Za-z_]\w*)|"
    r"(?P<sign><<=|>>=|\*\*|<<|>>|&&|\|\||\+\+|--|[<>=!*/%+\-&|^]=|[-+*/%<>&|^!~?:,()=\[\]]))|\s*$"
)
LEVELS = ("||", "&&", "|", "^", "&", "== !=", "< > <= >=", "<< >>", "+ -", "* / %", "**")
LEVEL = {sign: level for level, signs in enumerate(LEVELS) for sign in signs.split()}
BINARY: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "&": operator.and_, "|": operator.or_, "^": operator.xor,
    "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
    "/": lambda x, y: _divided(x, y), "%": lambda x, y: x - y * _divided(x, y), "<<": lambda x, y: x << (y & 63),
    ">>": lambda x, y: x >> (y & 63), "**": lambda x, y: pow(x, y, 2 * LARGEST),
    "||": lambda x, y: bool(x or y), "&&": lambda x, y: bool(x and y),
}  # fmt: skip
UNARY: dict[str, Callable[[int], int]] = {"!": lambda x: not x, "~": lambda x: ~x, "-": lambda x: -x, "+": lambda x: x}
ASSIGNING = ("=", *(f"{sign}=" for sign in ("+", "-", "*", "/", "%", "<<", ">>", "&", "|", "^")))


class Variables(Protocol):
    """What arithmetic needs of a shell; `name` may be `X[2]`, its subscript calculated."""

    def number(self, name: str) -> str | None: ...
    def assign(self, name: str, value: str | None) -> None: ...  # null: it can't be known


def value(text: str, variables: Variables | None = None, depth: int = 0) -> int | None:
    """The value of an expression; None where it can't be known, or where bash would stop with an error."""
    try:
        expression = _Expression(text, variables, depth)
        number = expression.comma() if len(expression.tokens) > 1 else 0
        return number if len(expression.tokens) == 1 else None
    except (ValueError, ZeroDivisionError, RecursionError):
        return None


def _divided(x: int, y: int) -> int:
    """C's division: towards zero."""
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


class _Expression:
    """Calculated while it is read; `live` is false in a part that `&&`, `||` or `?:` passes over."""

    def __init__(self, text: str, variables: Variables | None, depth: int) -> None:
        self.variables, self.depth, self.live = variables, depth, True
        matches = list(TOKEN.finditer(text))
        if len(text) > LONGEST or depth > DEEPEST or sum(len(match[0]) for match in matches) != len(text):
            raise ValueError("too long, or no expression")
        tokens = [(match.lastgroup or "", match[match.lastgroup or 0]) for match in matches if match.lastgroup]
        self.tokens = [("end", ""), *reversed(tokens)]

    def take(self, *signs: str) -> str:
        """The next sign, if it is one of these."""
        return self.tokens.pop()[1] if self.tokens[-1][1] in signs and self.tokens[-1][0] == "sign" else ""

    def within(self, number: int | None, end: str) -> int | None:
        if not self.take(end):
            raise ValueError(f"no {end}")
        return number

    def comma(self) -> int | None:
        number = self.choice()
        while self.take(","):
            number = self.choice()
        return number

    def choice(self) -> int | None:
        chosen = self.binary(0)
        if not self.take("?"):
            return chosen
        yes = self.within(self.passed(not chosen, self.comma), ":")
        no = self.passed(chosen != 0, self.choice)
        return None if chosen is None else yes if chosen else no

    def passed(self, over: bool, read: Callable[[], int | None]) -> int | None:
        before, self.live = self.live, self.live and not over
        number = read()
        self.live = before
        return number

    def binary(self, least: int) -> int | None:
        x = self.unary()
        while LEVEL.get(self.tokens[-1][1], -1) >= least:
            sign = self.tokens.pop()[1]
            decided = sign in ("&&", "||") and x is not None and bool(x) == (sign == "||")
            level = LEVEL[sign] + (sign != "**")
            y = self.passed(decided, lambda level=level: self.binary(level))  # type: ignore[misc]
            x = int(sign == "||") if decided else self.applied(sign, x, y)
        return x

    def applied(self, sign: str, x: int | None, y: int | None) -> int | None:
        if x is None or y is None or not self.live:
            return None
        return (int(BINARY[sign](x, y)) + LARGEST) % (2 * LARGEST) - LARGEST

    def unary(self) -> int | None:
        if sign := self.take(*UNARY):
            x = self.unary()
            return None if x is None else int(UNARY[sign](x))
        step = self.take("++", "--")
        if self.take("("):
            return self.within(self.comma(), ")")
        kind, text = self.tokens.pop() if len(self.tokens) > 1 else ("", "")
        if kind == "number":
            base, sign, digits = text.rpartition("#")
            return int(digits, int(base or (8 if re.match("0[0-9]", text) else 0)))
        if kind == "mark":
            return None
        if kind != "name":
            raise ValueError("no number")
        return self.variable(text, step)

    def variable(self, name: str, step: str) -> int | None:
        """A variable's value, which is an expression in its turn, and what is assigned to it."""
        if self.take("["):
            name = f"{name}[{self.within(self.comma(), ']')}]"
        stored = self.variables.number(name) if self.variables else None
        before = None if stored is None else value(stored, self.variables, self.depth + 1)
        number, after = before, self.applied(step[0], before, 1) if step else None
        if step:
            number = after
        elif step := self.take("++", "--"):
            after = self.applied(step[0], before, 1)
        elif step := self.take(*ASSIGNING):
            after = self.choice()
            number = after = after if step == "=" else self.applied(step[:-1], before, after)
        if step and self.variables and self.live:
            self.variables.assign(name, None if after is None else str(after))
        return number

"""Bash's arithmetic: 64-bit integers, C's operators, variables by name without `$`.

((X * 8 / 3))     BinaryArithm("/", BinaryArithm("*", X, 8), 3)     null where a variable can't be known
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Protocol

from scalewright.emit.bash.tree import Node, parse
from scalewright.emit.bash.unknown import known
from scalewright.spec.errors import UserError

BINARY: dict[str, Callable[[int, int], int | bool]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "<<": operator.lshift, ">>": operator.rshift,
    "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
    "&": operator.and_, "|": operator.or_, "^": operator.xor, ",": lambda _, last: last,
}  # fmt: skip
NAME = re.compile(r"[A-Za-z_]\w*")
LARGEST = 1 << 63
DEEPEST = 20  # variables within variables


class Variables(Protocol):
    """What arithmetic needs of a shell."""

    def text(self, word: Node) -> str: ...
    def number(self, name: str) -> str | None: ...
    def assign(self, name: str, value: str | None) -> None: ...  # null: it can't be known


def value(node: Node, variables: Variables) -> int | None:
    """The value of an expression; None where it can't be known, or where bash would stop with an error."""
    kind = node.get("Type")
    if kind == "Word":
        return _word(variables.text(node), variables, 0)
    if kind == "ParenArithm":
        return value(node["X"], variables)
    if kind == "UnaryArithm":
        return _unary(node, variables)
    if kind == "BinaryArithm":
        return _binary(node, variables)
    return None


def calculated(text: str) -> int | None:
    """The value of an expression of numbers."""
    return _expression(text, _NoVariables())


class _NoVariables:
    """Of a text that has numbers alone."""

    def text(self, word: Node) -> str:
        return "".join(part.get("Value", "") for part in word["Parts"])

    def number(self, name: str) -> str | None:
        return None

    def assign(self, name: str, value: str | None) -> None:
        """Nothing is kept."""


def _word(text: str, variables: Variables, depth: int) -> int | None:
    """A number, or a variable's value, which is an expression in its turn."""
    text = text.strip()
    if not text:
        return 0
    if re.fullmatch(r"[+-]?\d+", text):
        sign, digits = (-1, text[1:]) if text[0] == "-" else (1, text.lstrip("+"))
        octal = len(digits) > 1 and digits[0] == "0"
        if octal and set(digits) - set("01234567"):
            return None
        return _wrapped(sign * int(digits, 8 if octal else 10))
    if re.fullmatch(r"0[xX][0-9a-fA-F]+", text):
        return _wrapped(int(text, 16))
    if match := re.fullmatch(r"(\d{1,2})#([0-9a-z]+)", text):
        try:
            return _wrapped(int(match[2], int(match[1])))
        except ValueError:
            return None
    if NAME.fullmatch(text) and depth < DEEPEST:
        stored = variables.number(text)
        return None if stored is None else _word(stored, variables, depth + 1)
    return _expression(text, variables) if known(text) and depth < DEEPEST and set(text) & set("+-*/%(") else None


def _expression(text: str, variables: Variables) -> int | None:
    """`X="8 * 2"; $((X))`: an expression in a variable."""
    try:
        (statement,) = parse(f"(({text}))", "an expression")
        return value(statement["Cmd"]["X"], variables)
    except (UserError, ValueError, KeyError, RecursionError):
        return None


def divided(x: int, y: int, sign: str) -> int:
    """C's division and remainder: towards zero. Raises ZeroDivisionError."""
    quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
    return quotient if sign == "/" else x - quotient * y


def _wrapped(number: int) -> int:
    return (number + LARGEST) % (2 * LARGEST) - LARGEST


def _unary(node: Node, variables: Variables) -> int | None:
    sign, inner = node["Op"], value(node["X"], variables)
    if sign in ("++", "--"):
        after = None if inner is None else inner + (1 if sign == "++" else -1)
        variables.assign(variables.text(node["X"]), None if after is None else str(after))
        return inner if node.get("Post") else after
    if inner is None:
        return None
    return {"!": int(not inner), "~": ~inner, "-": -inner, "+": inner}.get(sign)


def _binary(node: Node, variables: Variables) -> int | None:
    sign, left = node["Op"], node["X"]
    if sign == "?":
        chosen = value(left, variables)
        return None if chosen is None else value(node["Y"]["X" if chosen else "Y"], variables)
    if sign in ("&&", "||"):
        first = value(left, variables)
        if first is None or bool(first) == (sign == "||"):
            return first if first is None else int(bool(first))
        second = value(node["Y"], variables)
        return None if second is None else int(bool(second))
    assigns = sign.endswith("=") and sign not in ("==", "!=", "<=", ">=")
    right = value(node["Y"], variables)
    if sign == "=":
        result = right
    else:
        result = _applied(sign[:-1] if assigns else sign, value(left, variables), right)
    if assigns:
        variables.assign(variables.text(left), None if result is None else str(result))
    return result


def _applied(sign: str, x: int | None, y: int | None) -> int | None:
    if x is None or y is None:
        return None
    try:
        if sign in ("/", "%"):
            return divided(x, y, sign)
        if sign == "**":
            return _wrapped(x**y) if 0 <= y < 64 else None
        return _wrapped(int(BINARY[sign](x, y)))
    except (ZeroDivisionError, ValueError, KeyError):
        return None

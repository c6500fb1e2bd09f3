"""Flags that take a number take it as people write it: `--seq-len 8k --tokens 15T` is read as 8192 and 15e12."""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf
from typing import Any

from scalewright.spec.common.numbers import number_of
from scalewright.spec.errors import UserError


def plain_numbers(command: Any, arguments: Sequence[str]) -> list[str]:
    """The arguments with digits in place of suffixes; raises UserError for a flag's value that is no number."""
    words = list(arguments)
    end = words.index("--") if "--" in words else len(words)
    for place, word in enumerate(words[:end]):
        command = getattr(command, "commands", {}).get(word, command)
        flag, equals, value = word.partition("=")
        kind = next((_kind(param) for param in command.params if flag in param.opts), None)
        if kind is not None and equals:
            words[place] = f"{flag}={_plain(flag, value, kind)}"
        elif kind is not None and place + 1 < end:
            words[place + 1] = _plain(flag, words[place + 1], kind)
    return words


def _kind(param: Any) -> type | None:
    """int or float of a flag that takes one number, by the old typer's click type or the new one's annotation."""
    kind = getattr(getattr(param, "type_descriptor", None), "annotation", None)
    name = str(getattr(getattr(param, "type", None), "name", ""))
    kind = {"integer": int, "float": float}.get(name.partition(" ")[0], kind)
    return kind if kind in (int, float) and not getattr(param, "multiple", False) else None


def _plain(flag: str, value: str, kind: type) -> str:
    number = number_of(value, flag.removeprefix("--").replace("-", "_"))
    if number is None:
        try:
            kind(value)
        except ValueError:
            what = "a whole number" if kind is int else "a number"
            raise UserError(f"{value!r} is not {what}", flag, "write it as 8192, 8k or 4e6") from None
        return value
    if isinf(number) or (kind is int and number != int(number)):
        what = "beyond all numbers" if isinf(number) else "not a whole number"
        raise UserError(f"{value!r} is {what}", flag, "write it as 8192, 8k or 4e6")
    return str(int(number)) if number == int(number) else repr(number)

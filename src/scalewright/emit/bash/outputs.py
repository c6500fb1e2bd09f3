"""What small programs print, as scripts use them in `$(...)`: of texts that are known, files aside.

echo "$GPUS" | tr ',' '\\n' | wc -l        basename "$MODEL" .json        expr $N \\* 8        echo "$A*$B" | bc
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from pathlib import PurePosixPath

from scalewright.emit.bash import arithmetic
from scalewright.emit.bash.unknown import known

ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "e": "\x1b"}
LONGEST = 200_000  # characters


def output(words: Sequence[str], text: str) -> str | None:
    """What a command prints, given its input; None where that isn't known here."""
    program = PROGRAMS.get(words[0])
    try:
        printed = None if program is None else program(list(words[1:]), text)
    except (ValueError, IndexError, OverflowError, KeyError):
        return None
    return printed if printed is not None and len(printed) <= LONGEST else None


def unescaped(text: str) -> str:
    """Backslash escapes, as in $'...'."""

    def character(match: re.Match[str]) -> str:
        code = int(match[1], 16) if match[1] else int(match[2], 8) if match[2] else 0
        return chr(code) if code else ESCAPES.get(match[3], match[3] if match[3] in "'\"?" else match[0])

    return re.sub(r"\\(?:x([0-9a-fA-F]{1,2})|0?([0-7]{3})|(.))", character, text)


def _echo(words: list[str], text: str) -> str:
    end, escapes = "\n", False
    while words and re.fullmatch(r"-[neE]+", words[0]):
        option = words.pop(0)
        end, escapes = "" if "n" in option else end, "e" in option or escapes
    line = " ".join(words)
    return (unescaped(line) if escapes else line) + end


def _printf(words: list[str], text: str) -> str | None:
    words = words[1:] if words[0] == "--" else words
    form, values, printed = unescaped(words[0]), words[1:], ""
    fields = re.findall(r"%[-+ 0#]*\d{0,3}(?:\.\d{1,2})?([sdiufg%])", form)
    if form.count("%") != len(fields) + fields.count("%"):
        return None
    taking = [field for field in fields if field != "%"]
    while len(printed) <= LONGEST:
        row, values = values[: len(taking)], values[len(taking) :]
        row += [""] * (len(taking) - len(row))
        if not known(*(value for field, value in zip(taking, row, strict=True) if field != "s")):
            return None
        printed += form % tuple(
            value if field == "s" else float(value or 0) if field in "fg" else int(value or 0)
            for field, value in zip(taking, row, strict=True)
        )
        if not values or not taking:
            return printed
    return None


def _expr(words: list[str], text: str) -> str | None:
    number = arithmetic.value(" ".join(words)) if len(words) == 3 and words[1] in "+-*/%" else None
    return f"{words[0]}\n" if len(words) == 1 else None if number is None else f"{number}\n"


def _bc(words: list[str], text: str) -> str | None:
    """Whole numbers alone; `scale` and `-l` give decimals."""
    plain = not words and re.fullmatch(r"[\d\s+*/%()-]{1,200}", text)
    number = arithmetic.value(re.sub(r"\b0+(?=\d)", "", text)) if plain else None
    return None if number is None else f"{number}\n"


def _seq(words: list[str], text: str) -> str | None:
    numbers = [int(word) for word in words]
    first, step, last = {1: (1, 1, numbers[0]), 2: (numbers[0], 1, numbers[-1]), 3: tuple(numbers)}[len(numbers)]
    places = range(first, last + (1 if step > 0 else -1), step)
    return _lines(map(str, places)) if len(places) <= 10_000 else None


def _basename(words: list[str], text: str) -> str:
    name = PurePosixPath(words[0]).name
    return f"{name.removesuffix(''.join(words[1:2])) or name}\n"


def _dirname(words: list[str], text: str) -> str:
    folder, slash, _ = words[0].rstrip("/").rpartition("/")
    return f"{folder or ('/' if slash else '.')}\n"


def _wc(words: list[str], text: str) -> str | None:
    counts = {"-l": text.count("\n"), "-w": len(text.split()), "-c": len(text.encode())}
    return f"{counts[words[0]]}\n" if len(words) == 1 else None


def _tr(words: list[str], text: str) -> str | None:
    options = [word for word in words if word.startswith("-") and len(word) > 1]
    sets = [_set(word) for word in words if word not in options]
    if options == ["-d"] and len(sets) == 1:
        return text.translate({ord(char): None for char in sets[0]})
    if options == ["-s"] and len(sets) == 1:
        return re.sub(f"([{re.escape(sets[0])}])\\1+", r"\1", text)
    if options or len(sets) != 2 or not sets[1]:
        return None
    padded = sets[1].ljust(len(sets[0]), sets[1][-1])
    return text.translate(str.maketrans(sets[0], padded[: len(sets[0])]))


def _set(word: str) -> str:
    """A set of characters, `a-z` and escapes put in."""
    word = word.replace("[:upper:]", "A-Z").replace("[:lower:]", "a-z").replace("[:space:]", " \\t\\n")
    if "[:" in word or not word.isascii():
        raise ValueError("a class of characters")
    return re.sub(r"(.)-(.)", lambda match: "".join(map(chr, range(ord(match[1]), ord(match[2]) + 1))), unescaped(word))


def _joined(words: list[str]) -> str:
    """`-d , -f 1` as `-d, -f1`, with nulls between."""
    return re.sub(r"(^|\0)(-[dfnF])\0", r"\1\2", "\0".join(words))


def _cut(words: list[str], text: str) -> str | None:
    joined = re.fullmatch(r"-d(.)\0-f(\d+)|-f(\d+)\0-d(.)", _joined(words))
    if joined is None:
        return None
    sign, number = joined[1] or joined[4], int(joined[2] or joined[3])
    rows = [row.split(sign) for row in text.splitlines()]
    return _lines(row[0] if len(row) == 1 else "".join(row[number - 1 : number]) for row in rows)


def _awk(words: list[str], text: str) -> str | None:
    """A field, or the number of fields: `awk -F, '{print NF}'`."""
    match = re.fullmatch(r"(?:-F(.)\0)?\{ ?print (NF|\$NF|\$\d+);? ?\}", _joined(words))
    if match is None:
        return None
    rows = [[line, *(line.split(match[1]) if line else [])] for line in text.splitlines()]
    if match[2] == "NF":
        return _lines(str(len(row) - 1) for row in rows)
    return _lines("".join(row[-1:] if match[2] == "$NF" else row[int(match[2][1:]) :][:1]) for row in rows)


def _ends(words: list[str], text: str, last: bool) -> str | None:
    match = re.fullmatch(r"-n?(\d+)", _joined(words) or "-n10")
    lines, count = text.splitlines(keepends=True), int(match[1]) if match else 0
    return None if match is None else "".join(lines[max(len(lines) - count, 0) :] if last else lines[:count])


def _sort(words: list[str], text: str) -> str | None:
    if words not in ([], ["-u"], ["-r"], ["-n"]):
        return None
    ordered = sorted(text.splitlines(), key=int if words == ["-n"] else None, reverse=words == ["-r"])
    return _lines(dict.fromkeys(ordered) if words == ["-u"] else ordered)


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


PROGRAMS: dict[str, Callable[[list[str], str], str | None]] = {
    "echo": _echo, "printf": _printf, "expr": _expr, "bc": _bc, "seq": _seq, "basename": _basename, "awk": _awk,
    "dirname": _dirname, "wc": _wc, "tr": _tr, "cut": _cut, "sort": _sort,
    "uniq": lambda words, text: None if words else _lines(line for line, _ in groupby(text.splitlines())),
    "cat": lambda words, text: None if words else text,
    "head": partial(_ends, last=False), "tail": partial(_ends, last=True),
}  # fmt: skip

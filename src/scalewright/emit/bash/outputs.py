"""What small programs print, as scripts use them in `$(...)`: of texts that are known, files aside.

echo "$GPUS" | tr ',' '\\n' | wc -l        basename "$MODEL" .json        expr $N \\* 8        echo "$A*$B" | bc
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import PurePosixPath

ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "e": "\x1b"}


def output(words: Sequence[str], text: str) -> str | None:
    """What a command prints, given its input; None where that isn't known here."""
    program = PROGRAMS.get(words[0])
    try:
        return None if program is None else program(list(words[1:]), text)
    except (ValueError, IndexError, ZeroDivisionError):
        return None


def unescaped(text: str) -> str:
    """Backslash escapes, as in $'...'."""
    text = re.sub(r"\\x([0-9a-fA-F]{1,2})", lambda match: chr(int(match[1], 16)), text)
    text = re.sub(r"\\0?([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
    return re.sub(r"\\(.)", lambda match: ESCAPES.get(match[1], match[0]) if match[1] not in "'\"?" else match[1], text)


def _echo(words: list[str], text: str) -> str:
    end, escapes = "\n", False
    while words and re.fullmatch(r"-[neE]+", words[0]):
        option = words.pop(0)
        end, escapes = "" if "n" in option else end, "e" in option or escapes
    line = " ".join(words)
    return (unescaped(line) if escapes else line) + end


def _printf(words: list[str], text: str) -> str | None:
    form, values = unescaped(words[0]), words[1:]
    fields = re.findall(r"%[-+ 0#]*\d*(?:\.\d+)?([sdiufg%])", form)
    if form.count("%") != len(fields) + fields.count("%"):
        return None
    taking = [field for field in fields if field != "%"]
    printed = ""
    while True:
        row, values = values[: len(taking)], values[len(taking) :]
        row += [""] * (len(taking) - len(row))
        row_values = [
            value if field == "s" else float(value or 0) if field in "fg" else int(value or 0)
            for field, value in zip(taking, row, strict=True)
        ]
        printed += form % tuple(row_values)
        if not values or not taking:
            return printed


def _expr(words: list[str], text: str) -> str | None:
    from scalewright.emit.bash.arithmetic import divided

    if len(words) == 1:
        return f"{words[0]}\n"
    if len(words) != 3:
        return None
    x, sign, y = int(words[0]), words[1], int(words[2])
    if sign in ("/", "%"):
        return f"{divided(x, y, sign)}\n"
    return {"+": f"{x + y}\n", "-": f"{x - y}\n", "*": f"{x * y}\n"}.get(sign)


def _bc(words: list[str], text: str) -> str | None:
    """Whole numbers alone; `scale` and `-l` give decimals."""
    from scalewright.emit.bash.arithmetic import calculated

    if words or not re.fullmatch(r"[\d\s+*/%()-]+", text):
        return None
    number = calculated(text.strip())
    return None if number is None else f"{number}\n"


def _seq(words: list[str], text: str) -> str:
    numbers = [int(word) for word in words]
    first, step, last = {1: (1, 1, numbers[0]), 2: (numbers[0], 1, numbers[-1]), 3: tuple(numbers)}[len(numbers)]
    return "".join(f"{n}\n" for n in range(first, last + (1 if step > 0 else -1), step)[:10_000])


def _basename(words: list[str], text: str) -> str:
    name = PurePosixPath(words[0]).name
    suffix = words[1] if len(words) > 1 else ""
    return f"{name.removesuffix(suffix) or name}\n"


def _dirname(words: list[str], text: str) -> str:
    folder, slash, _ = words[0].rstrip("/").rpartition("/")
    return f"{folder or ('/' if slash else '.')}\n"


def _wc(words: list[str], text: str) -> str | None:
    counts = {"-l": text.count("\n"), "-w": len(text.split()), "-c": len(text.encode())}
    return f"{counts[words[0]]}\n" if len(words) == 1 and words[0] in counts else None


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
    word = unescaped(word)
    return re.sub(r"(.)-(.)", lambda match: "".join(map(chr, range(ord(match[1]), ord(match[2]) + 1))), word)


def _cut(words: list[str], text: str) -> str | None:
    joined = re.fullmatch(r"-d(.)\0-f(\d+)|-f(\d+)\0-d(.)", "\0".join(_joined(words)))
    if joined is None:
        return None
    sign, number = joined[1] or joined[4], int(joined[2] or joined[3])
    rows = [row.split(sign) for row in text.splitlines()]
    return "".join(f"{row[0] if len(row) == 1 else row[number - 1] if number <= len(row) else ''}\n" for row in rows)


def _joined(words: list[str]) -> list[str]:
    """`-d , -f 1` as `-d, -f1`."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] in ("-d", "-f", "-n"):
            joined[-1] += word
        else:
            joined.append(word)
    return joined


def _awk(words: list[str], text: str) -> str | None:
    """A field, or the number of fields: `awk -F, '{print NF}'`."""
    match = re.fullmatch(r"(?:-F(.)\0)?\{ ?print (NF|\$NF|\$\d+);? ?\}", "\0".join(_awk_words(words)))
    if match is None:
        return None
    printed = ""
    for line in text.splitlines():
        row = line.split(match[1]) if line else []
        number = len(row) if match[2] == "$NF" else int(match[2][1:]) if match[2] != "NF" else None
        field = str(len(row)) if number is None else line if number == 0 else "".join(row[number - 1 : number])
        printed += f"{field}\n"
    return printed


def _awk_words(words: list[str]) -> list[str]:
    return [f"-F{words[1]}", *words[2:]] if words[0] == "-F" else words


def _ends(words: list[str], text: str, last: bool) -> str | None:
    options = _joined(words) or ["-n10"]
    match = re.fullmatch(r"-n?(\d+)", options[0])
    if match is None or len(options) > 1:
        return None
    lines = text.splitlines(keepends=True)
    return "".join(lines[-int(match[1]) :] if last and int(match[1]) else lines[: int(match[1])])


def _sort(words: list[str], text: str) -> str | None:
    lines = text.splitlines()
    if words not in ([], ["-u"], ["-r"], ["-n"]):
        return None
    ordered = sorted(lines, key=int if words == ["-n"] else None, reverse=words == ["-r"])
    return "".join(f"{line}\n" for line in (dict.fromkeys(ordered) if words == ["-u"] else ordered))


def _uniq(words: list[str], text: str) -> str | None:
    lines = text.splitlines()
    kept = lines[:1] + [after for before, after in pairwise(lines) if after != before]
    return None if words else "".join(f"{line}\n" for line in kept)


PROGRAMS: dict[str, Callable[[list[str], str], str | None]] = {
    "echo": _echo, "printf": _printf, "expr": _expr, "bc": _bc, "seq": _seq, "basename": _basename, "awk": _awk,
    "dirname": _dirname, "wc": _wc, "tr": _tr, "cut": _cut, "sort": _sort, "uniq": _uniq,
    "cat": lambda words, text: None if words else text,
    "head": partial(_ends, last=False), "tail": partial(_ends, last=True),
    "xargs": lambda words, text: None if words else _echo(text.split(), ""),
}  # fmt: skip

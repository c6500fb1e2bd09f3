"""Numbers as text for people: `12.3k`, `3:07`, `2.99e-4`; a missing one is a dash.

Nested data by dotted keys, as users write them: {"layout": {"tp": 2}} is layout.tp = 2.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

MISSING = "–"
NOUNS = (  # of `counted`
    "channel", "check", "collective", "core", "device", "document", "entrie", "error", "failure", "fault", "file",
    "folder", "GPU", "group", "host", "kernel", "layer", "layout", "line", "link", "log", "machine", "micro-batche",
    "node", "number", "pair", "pod", "position", "problem", "processe", "rank", "resume", "row", "run", "sample",
    "save", "sequence", "slot", "spike", "split", "stage", "stall", "step", "tensor", "thing", "thread", "time",
    "token", "trace", "value", "warning", "worker",
)  # fmt: skip
IRREGULAR = {"entrie": "entry", "micro-batche": "micro-batch", "processe": "process"}


VERBS = {"are": "is", "aren't": "isn't", "have": "has", "need": "needs", "don't": "doesn't"}
VERB = re.compile(rf"^((?:(?! that ).)*?)\b({'|'.join(VERBS)})\b")  # not that of a clause
SINGULAR = re.compile(rf"\b({'|'.join(NOUNS)})s\b")


def count(value: float | None) -> str:
    """A count with three digits and a unit.

    >>> count(12_345), count(7), count(3.2e9)
    ('12.3k', '7', '3.2B')
    """
    if value is None or not math.isfinite(value):
        return MISSING
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def duration(seconds: float | None) -> str:
    """A length of time: `0:42`, `1:02:03`, `2 d 3 h`; `–` when it isn't known."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return MISSING
    whole = int(seconds + 0.5)
    if whole >= 48 * 3600:
        return f"{whole // 86400} d {whole % 86400 // 3600} h"
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def short_time(seconds: float | None) -> str:
    """The length of a step: `850 µs`, `12.3 ms`, `4.2 s`."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:,.0f} s"


def decimal(value: float | None, digits: int = 4) -> str:
    """A number with `digits` significant digits, zeros kept so that columns align; `nan` stays `nan`."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return str(value)
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.{max(digits - 1, 1)}e}".replace("e-0", "e-").replace("e+0", "e")
    whole = len(str(int(abs(value))))
    if 0 < abs(value) < 0.1:  # zeros behind the point are no digits: 0.002 is 0.00200, not 0.00
        whole = math.floor(math.log10(abs(value))) + 1
    return f"{value:.{max(digits - whole, 0)}f}"


def gib(value: float | None) -> str:
    """A size in GiB: `50.7 GiB`; a small one in MiB."""
    small = value is not None and 0 < value < 0.1
    return f"{decimal(1024 * value, 3)} MiB" if value and small else f"{decimal(value, 3)} GiB"


def metric(value: float, unit: str) -> str:
    """An amount with a decimal prefix: 2.04e11 FLOP/s is `204 GFLOP/s`."""
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * size:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def share(value: float | None) -> str:
    """A fraction in percent."""
    return MISSING if value is None or not math.isfinite(value) else f"{100 * value:.1f}%"


def against(measured: float, predicted: float) -> str:
    """The measured value's relative difference to the prediction.

    >>> against(0.158, 0.142), against(0.9, 1.0)
    ('+11%', '−10%')
    """
    return f"{100 * (measured / predicted - 1):+.0f}%".replace("-", "−")


def counted(number: int, things: str) -> str:
    """A number with its noun, and the verb behind it, given in the plural.

    >>> counted(1, "empty files are left out"), counted(2, "files with bytes that aren't UTF-8")
    ('1 empty file is left out', "2 files with bytes that aren't UTF-8")
    """
    if number != 1:
        return f"{number:,} {things}"
    singular = re.sub(SINGULAR, lambda noun: IRREGULAR.get(noun[1], noun[1]), things, count=1)
    return f"1 {re.sub(VERB, lambda text: text[1] + VERBS[text[2]], singular)}"


def printable(text: object, keep: str = "\n\t") -> str:
    """A text with control characters escaped, so that a terminal shows them and doesn't execute them.

    Names come from untrusted files: an escape sequence in one could clear the screen, set the window's title
    or fake a line. Marks that change the direction of writing are escaped too.

    >>> printable("evil\\x1b[2J"), printable("a\\rb")
    ('evil\\\\x1b[2J', 'a\\\\rb')
    """
    shown = str(text)
    if shown.isascii() and shown.isprintable():
        return shown
    # controls, halves of surrogate pairs, separators of lines, and marks of direction
    hidden = {c for c in shown if c in DIRECTIONS or unicodedata.category(c) in {"Cc", "Cs", "Zl", "Zp"}} - set(keep)
    return "".join(c.encode("unicode_escape").decode() if c in hidden else c for c in shown)


# A link needs no brackets: GitHub makes one of an address.
MARKDOWN = re.compile(r"[\\`*_\[\]<>|#~&]|:(?=//)|(?<=www)\.", re.IGNORECASE)


def markdown_text(text: object) -> str:
    """Text without a meaning for Markdown, on one line."""
    return MARKDOWN.sub(r"\\\g<0>", printable(" ".join(str(text).split())))


def commented(*lines: object) -> str:
    """Lines as comments of YAML, TOML, Python or shell, none of which a name in them can end."""
    return "".join(f"# {printable(line, keep='')}\n" for line in lines)


DIRECTIONS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def dotted(data: Mapping[str, Any], prefix: str = "", whole: Container[str] = ()) -> Iterator[tuple[str, Any]]:
    """Dotted keys and their values; lists, empty sections, and those named in `whole` are values, too."""
    for name, value in data.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value and key not in whole:
            yield from dotted(value, f"{key}.", whole)
        else:
            yield key, value


def flat(data: Mapping[str, Any], whole: Container[str] = ()) -> dict[str, Any]:
    """The same without empty sections."""
    return {key: value for key, value in dotted(data, whole=whole) if value != {} or key in whole}


def below(key: str, prefixes: Iterable[str]) -> bool:
    """Whether a dotted key is one of these, or below one."""
    return any(key == prefix or key.startswith(f"{prefix}.") for prefix in prefixes)

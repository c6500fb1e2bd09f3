"""Words of a command: quotes, variables, arrays, arithmetic and outputs put in, then split as bash splits them.

"${ARGS[@]}" --tp=${TP:-8} $FLAGS "n $((N*8))"      →  fields; what can't be known is a mark in them (unknown.py)

A variable that the script doesn't set comes from outside: a mark. It is empty where `${X:-8}` or `[ -z "$X" ]`
ask for that, as the script's author would have it on a bare machine, but for those that a scheduler sets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from scalewright.emit.bash import arithmetic
from scalewright.emit.bash.outputs import unescaped
from scalewright.emit.bash.patterns import removed, replaced
from scalewright.emit.bash.state import State
from scalewright.emit.bash.tree import Node, line_of, source
from scalewright.emit.bash.unknown import Marks, known

OUTSIDE = re.compile(
    r"(SLURM|PBS|LSB|PMI|OMPI|FLUX|COBALT|AZ|SM|KUBERNETES)_\w+|(LOCAL_|NODE_|GROUP_)?RANK|WORLD_SIZE|"
    r"MASTER_(ADDR|PORT)|HOSTNAME|HOME|USER|PATH|PWD|OLDPWD|SHELL|TMPDIR|LANG|EUID|UID|RANDOM|SECONDS|PPID|NODE_IP"
)
SPACES = " \t\n"
ASSIGNED = re.compile(r"(?<![\w$-])([A-Za-z_]\w*)\+?=")


@dataclass(frozen=True)
class Piece:
    """A part of a word, put in: `split` where it stood without quotes; `fields`, of "$@", where it is several words."""

    text: str = ""
    split: bool = False
    fields: list[str] | None = None


class Words:
    """Expands words in a state. `output` runs the statements of a `$(...)`: what they print, or None."""

    def __init__(self, state: State, marks: Marks, text: bytes, output: Callable[[list[Node]], str | None]) -> None:
        self.state, self.marks, self.source, self.output = state, marks, text, output
        self.empty_outside = False  # a variable that isn't set is empty: in a condition
        self.empty_arguments = True  # then; but not where a case tells them apart
        self.assumed: list[str] = []  # variables that were taken as not set
        self.assigned = set(ASSIGNED.findall(text.decode(errors="replace")))  # somewhere in the script

    # -- words --------------------------------------------------------------------------------------------

    def fields(self, word: Node) -> list[str]:
        """The words that this one gives: none, one or several."""
        fields: list[str] = []
        current: str | None = None
        for piece in self._pieces(word.get("Parts") or [], quoted=False):
            if piece.fields is not None:
                for index, field in enumerate(piece.fields):
                    if index:
                        fields.append(current or "")
                        current = None
                    current = (current or "") + field
            elif not piece.split:
                current = (current or "") + piece.text
            else:
                parts = re.split(f"[{SPACES}]+", piece.text)
                for index, part in enumerate(parts):
                    if index and current is not None:
                        fields.append(current)
                        current = None
                    if part:
                        current = (current or "") + part
        if current is not None:
            fields.append(current)
        return [each for field in fields for each in braces(field)] if _plain(word) else fields

    def text(self, word: Node) -> str:
        """One text: of an assignment, a pattern's subject, a here-document. Nothing is split."""
        return "".join(
            " ".join(piece.fields) if piece.fields is not None else piece.text
            for piece in self._pieces(word.get("Parts") or [], quoted=False)
        )

    def pattern(self, word: Node) -> str:
        """A pattern, what is quoted in it escaped."""
        parts = []
        for part in word.get("Parts") or []:
            text = "".join(
                " ".join(piece.fields) if piece.fields is not None else piece.text
                for piece in self._pieces([part], quoted=False, raw=True)
            )
            quoted = part["Type"] in ("SglQuoted", "DblQuoted")
            parts.append(re.sub(r"([*?\[\]\\])", r"\\\1", text) if quoted else text)
        return "".join(parts)

    def _pieces(self, parts: list[Node], quoted: bool, raw: bool = False) -> Iterator[Piece]:
        for part in parts:
            kind = part["Type"]
            if kind == "Lit":
                yield Piece(part["Value"] if raw else unquoted(part["Value"], quoted))
            elif kind == "SglQuoted":
                text = part.get("Value", "")
                yield Piece(unescaped(text) if part.get("Dollar") else text)
            elif kind == "DblQuoted":
                yield from self._pieces(part.get("Parts") or [], quoted=True) if part.get("Parts") else [Piece()]
            elif kind == "ParamExp":
                yield self._expansion(part, quoted)
            elif kind == "CmdSubst":
                yield Piece(self._output(part), split=not quoted)
            elif kind == "ArithmExp":
                number = arithmetic.value(part["X"], self)
                yield Piece(str(number) if number is not None else self._mark(part, "its numbers aren't known"))
            elif kind == "ExtGlob":
                yield Piece(f"{part['Op']}{part['Pattern']['Value']})")
            else:  # <(...)
                yield Piece(self._mark(part, "it is the output of a program"))

    def _mark(self, node: Node, why: str) -> str:
        return self.marks.make(source(self.source, node), why, line_of(node))

    def _output(self, part: Node) -> str:
        printed = self.output(part.get("Stmts") or [])
        return self._mark(part, "it is the output of a program") if printed is None else printed.rstrip("\n")

    # -- arithmetic.Variables -----------------------------------------------------------------------------

    def number(self, name: str) -> str | None:
        """A variable's text in arithmetic, where one that isn't set is 0 as in a condition."""
        text = self.state.scalar(name)
        if text is None:
            if name in self.state.unset or not OUTSIDE.fullmatch(name):
                self.assumed.append(name)
                return ""
            return None
        return text if known(text) else None

    def assign(self, name: str, value: str | None) -> None:
        """Sets a variable, or an element `X[2]`."""
        if match := re.fullmatch(r"(\w+)\[(\w+)\]", name):
            name, subscript = match[1], match[2]
            self.state.put(
                name, self.state.items(name) | {int(subscript) if subscript.isdecimal() else subscript: value or ""}
            )
            return
        self.state.put(name, self.marks.make(f"${name}", "its numbers aren't known", 0) if value is None else value)

    # -- ${...} -------------------------------------------------------------------------------------------

    def _expansion(self, part: Node, quoted: bool) -> Piece:
        value = self._value(part)
        if isinstance(value, list):
            star = _subscript(part) == "*"
            if quoted and star:
                return Piece(" ".join(value))
            return Piece(fields=value) if quoted else Piece(" ".join(value), split=True)
        return Piece(value, split=not quoted)

    def _value(self, part: Node) -> str | list[str]:
        """The text of an expansion, or the texts of `$@` and `${X[@]}`."""
        stored = self._stored(part)
        if part.get("Length"):
            if stored is None:
                stored = self._outside(part)
            if isinstance(stored, str) and not known(stored):
                return self._mark(part, "its text isn't known")
            return str(len(stored))
        operation = part.get("Exp")
        if operation and operation["Op"] in ("-", ":-", "=", ":=", "?", ":?", "+", ":+"):
            return self._default(part, operation, stored)
        if stored is None:
            stored = self._outside(part)
        if isinstance(stored, list):
            changed = [self._changed(part, text) for text in stored]
            return self._sliced(part, changed)
        return self._changed(part, stored, slices=True)

    def _stored(self, part: Node) -> str | list[str] | None:
        """What a parameter has; None where it isn't set."""
        name, subscript = part["Param"]["Value"], part.get("Index")
        if name in "@*" and self.state.arguments is not None:
            return list(self.state.arguments)
        if name == "#" and self.state.arguments is not None:
            return str(len(self.state.arguments))
        if name in ("0", "BASH_SOURCE"):
            return self.state.name
        if name.isdecimal():
            arguments = self.state.arguments or []
            return arguments[int(name) - 1] if int(name) <= len(arguments) else None
        if name == "?":
            return "0"
        if part.get("Excl"):
            return self._indirect(name, subscript, part)
        if subscript is None:
            return self.state.scalar(name)
        which = _subscript(part)
        items = self.state.items(name)
        if which in ("@", "*"):
            return list(items.values()) if name in self.state.variables or name in self.state.unset else None
        key = self._key(name, subscript)
        return None if key is None else items.get(key, "" if items else None)

    def _key(self, name: str, subscript: Node) -> int | str | None:
        items = self.state.variables.get(name)
        if isinstance(items, dict) and any(isinstance(key, str) for key in items):
            return self.text(subscript)
        number = arithmetic.value(subscript, self)
        if number is not None and number < 0:
            return max((key for key in self.state.items(name) if isinstance(key, int)), default=-1) + 1 + number
        return number

    def _indirect(self, name: str, subscript: Node | None, part: Node) -> str | list[str] | None:
        if part.get("Names"):
            return sorted(key for key in self.state.variables if key.startswith(name))
        if subscript is not None:
            return [str(key) for key in self.state.items(name)]
        pointed = self.state.scalar(name)
        return None if pointed is None or not known(pointed) else self.state.scalar(pointed)

    def _outside(self, part: Node) -> str | list[str]:
        """A parameter that the script doesn't set."""
        name = part["Param"]["Value"]
        if name in self.state.unset or (self.state.arguments is not None and (name.isdecimal() or name in "@*#")):
            return [] if name in "@*" else ""
        if name in self.assigned and not OUTSIDE.fullmatch(name):  # by the script, on a way that wasn't taken
            self.assumed.append(name)
            return [] if _subscript(part) else ""
        if name in "@*#" and self.empty_outside:
            self.assumed.append("arguments of its own")
            return "0" if name == "#" else []
        argument = name.isdecimal() and not self.empty_arguments
        if self.empty_outside and not OUTSIDE.fullmatch(name) and name not in "$!-_" and not argument:
            self.assumed.append(name)
            return [] if _subscript(part) else ""
        why = (
            "an argument that the script is started with"
            if name.isdecimal() or name in "@*#"
            else "set outside of the script"
        )
        return self._mark(part, why)

    def _default(self, part: Node, operation: Node, stored: str | list[str] | None) -> str | list[str]:
        """`${X:-word}` and its kin."""
        sign, word = operation["Op"], operation.get("Word")
        text = " ".join(stored) if isinstance(stored, list) else stored
        set_ = text is not None and (not sign.startswith(":") or text != "")
        if sign.endswith("+"):
            if stored is not None and isinstance(stored, list) and word and set_:
                return self.fields(word)
            return self.text(word) if set_ and word else ""
        if set_:
            return stored if stored is not None else ""
        default = self.text(word) if word else ""
        if text is None and part["Param"]["Value"] not in self.state.unset:
            self.assumed.append(part["Param"]["Value"])
        if sign.endswith("?"):
            return self._mark(part, "set outside of the script")
        if sign.endswith("="):
            self.state.put(part["Param"]["Value"], default)
        return default

    def _changed(self, part: Node, text: str, slices: bool = False) -> str:
        """Prefixes, replacements, cases, and a slice of a text."""
        operation, replacement, cut = part.get("Exp"), part.get("Repl"), part.get("Slice")
        if not (operation or replacement or (cut is not None and slices)):
            return text
        if not known(text):
            return self._mark(part, "its text isn't known")
        if operation:
            return self._operation(part, operation, text)
        if replacement:
            with_ = self.text(replacement["With"]) if replacement.get("With") else ""
            return replaced(text, self.pattern(replacement["Orig"]), with_, bool(replacement.get("All")))
        first, length = self._cut(cut)
        if first is None:
            return self._mark(part, "its numbers aren't known")
        rest = text[first:] if first >= 0 else text[max(len(text) + first, 0) :]
        return rest if length is None else rest[:length] if length >= 0 else rest[: len(rest) + length]

    def _operation(self, part: Node, operation: Node, text: str) -> str:
        sign = operation["Op"]
        if sign in ("#", "##", "%", "%%"):
            return removed(text, self.pattern(operation["Word"]), sign)
        if sign in ("^^", ",,"):
            return text.upper() if sign == "^^" else text.lower()
        if sign in ("^", ","):
            return (text[:1].upper() if sign == "^" else text[:1].lower()) + text[1:]
        return self._mark(part, f"${{...{sign}}} isn't followed")

    def _cut(self, cut: Node) -> tuple[int | None, int | None]:
        first = arithmetic.value(cut["Offset"], self) if cut.get("Offset") else 0
        length = arithmetic.value(cut["Length"], self) if cut.get("Length") else None
        return first, length

    def _sliced(self, part: Node, texts: list[str]) -> list[str]:
        cut = part.get("Slice")
        if cut is None:
            return texts
        first, length = self._cut(cut)
        if first is None:
            return [self._mark(part, "its numbers aren't known")]
        if part["Param"]["Value"] in "@*":  # counted from $0
            texts = [self.state.name, *texts]
        return texts[first:] if length is None else texts[first:][:length]

    @contextmanager
    def nothing_outside(self, arguments: bool = True) -> Iterator[list[str]]:
        """In a condition what isn't set is empty, `arguments`, too; gives the names of those that were met."""
        before, self.empty_outside, self.assumed = (self.empty_outside, self.assumed), True, []
        self.empty_arguments = arguments
        try:
            yield self.assumed
        finally:
            (self.empty_outside, self.assumed) = before[0], [*before[1], *self.assumed]


def _subscript(part: Node) -> str:
    """`@` or `*` of an expansion that is several texts, else empty."""
    if part["Param"]["Value"] in ("@", "*"):
        return str(part["Param"]["Value"])
    index = part.get("Index") or {}
    if index.get("Type") == "Word" and len(index["Parts"]) == 1 and index["Parts"][0].get("Value") in ("@", "*"):
        return str(index["Parts"][0]["Value"])
    return "@" if part.get("Names") else ""


def _plain(word: Node) -> bool:
    """Whether braces of a word are expanded: no part of it is quoted."""
    return all(part["Type"] in ("Lit", "ParamExp") for part in word.get("Parts") or []) and any(
        "{" in part.get("Value", "") for part in word.get("Parts") or [] if part["Type"] == "Lit"
    )


def unquoted(text: str, quoted: bool) -> str:
    """A literal without its backslashes."""
    return re.sub(
        r"\\([$`\"\\\n])" if quoted else r"\\(.|\n)", lambda match: match[1].replace("\n", ""), text, flags=re.DOTALL
    )


def braces(text: str) -> list[str]:
    """`a{1..3}` and `{x,y}b`, which come before all else."""
    match = re.search(r"(?<!\$)\{(?:(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?|([^{}\s]*,[^{}\s]*))\}", text)
    if match is None:
        return [text]
    if match[4] is not None:
        middles = match[4].split(",")
    else:
        first, last = int(match[1]), int(match[2])
        step = abs(int(match[3] or 1)) or 1
        width = max(len(match[1]), len(match[2])) if re.match(r"-?0\d", match[1]) or re.match(r"-?0\d", match[2]) else 0
        numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
        middles = [str(number).zfill(width) for number in numbers[:10_000]]
    return [each for middle in middles for each in braces(text[: match.start()] + middle + text[match.end() :])]
